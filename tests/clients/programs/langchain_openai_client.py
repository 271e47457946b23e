"""LangChain over its OpenAI package: langchain_openai_client.py BASE_URL MODEL."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from steps import run, same

base, model = sys.argv[1:]
WHERE: Any = {"base_url": f"{base}/v1", "model": model, "api_key": SecretStr("unused"), "max_retries": 0}
ASK = [SystemMessage("Be brief."), HumanMessage("Name three whales.")]


class Whale(BaseModel):
    """A kind of whale."""

    model_config = ConfigDict(extra="forbid")  # else a small model may go on with fields of its own until it is cut

    name: Literal["blue whale", "humpback", "orca"]
    metres: Annotated[int, Field(ge=1, le=33)]


@tool
def get_weather(city: Literal["Oslo", "Paris", "Tokyo"]) -> str:
    """The weather in a city now."""
    return f"12 degrees in {city}"


def chat(**fields: Any) -> ChatOpenAI:
    return ChatOpenAI(**{**WHERE, "temperature": 0, "max_tokens": 24, **fields})


def invoke() -> None:
    """invoke: text and usage_metadata"""
    answer = chat().invoke(ASK)
    assert isinstance(answer.content, str) and answer.content and answer.usage_metadata
    same(answer.usage_metadata["output_tokens"], 24)
    same(answer.response_metadata["model_name"], model)


def stream() -> None:
    """stream: the same text, and usage"""
    whole = chat().invoke(ASK)
    joined: Any = None
    for chunk in chat(stream_usage=True).stream(ASK):
        joined = chunk if joined is None else joined + chunk
    same(joined.content, whole.content)
    same(joined.usage_metadata["output_tokens"], 24)


async def asynchronous() -> None:
    """ainvoke, astream and abatch"""
    client = chat()
    whole = await client.ainvoke(ASK)
    same("".join([str(chunk.content) async for chunk in client.astream(ASK)]), whole.content)
    same([answer.content for answer in await client.abatch([ASK, ASK])], [whole.content] * 2)


def chain() -> None:
    """a chain: template, model, parser; stop"""
    template = ChatPromptTemplate.from_messages([("system", "Be brief."), ("human", "Name three {what}.")])
    text = (template | chat().bind(stop=["\n"]) | StrOutputParser()).invoke({"what": "whales"})
    assert "\n" not in text


def logprobs() -> None:
    """logprobs in response_metadata"""
    answer = chat().bind(logprobs=True, top_logprobs=2).invoke(ASK)
    same(len(answer.response_metadata["logprobs"]["content"]), 24)


def structured() -> None:
    """with_structured_output: json_schema and function_calling"""
    for method in ("json_schema", "function_calling"):
        for temperature in (0, 1.5):
            bound = chat(max_tokens=200, temperature=temperature, seed=1).with_structured_output(Whale, method=method)
            assert isinstance(bound.invoke(ASK), Whale), method


def tools() -> None:
    """bind_tools: required, streamed, and a result sent back"""
    ask: list[Any] = [HumanMessage("What is the weather in Oslo?")]
    bound = chat(max_tokens=120).bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False)
    called = bound.invoke(ask)
    assert isinstance(called, AIMessage) and not called.invalid_tool_calls
    (call,) = called.tool_calls
    same(call["name"], "get_weather")
    joined: Any = None
    for chunk in bound.stream(ask):
        joined = chunk if joined is None else joined + chunk
    same(joined.tool_calls[0]["args"], call["args"])
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    assert chat().bind_tools([get_weather], tool_choice="none").invoke([*ask, called, result]).content


def completions() -> None:
    """OpenAI (completions): invoke, stream, batch"""
    client = OpenAI(**WHERE, temperature=0, max_tokens=16)
    whole = client.invoke("The sea is")
    same("".join(client.stream("The sea is")), whole)
    same(client.batch(["The sea is", "1, 2, 3,"])[0], whole)
    same(len(client.generate(["The sea is", "1, 2, 3,"]).generations), 2)


sys.exit(run([invoke, stream, asynchronous, chain, logprobs, structured, tools, completions]))
