"""LiteLLM as a library: litellm_client.py BASE_URL MODEL."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Annotated, Any, Literal

import litellm
from pydantic import BaseModel, Field
from steps import refused, run, same

base, model = sys.argv[1:]
OPENAI: Any = {"model": f"openai/{model}", "api_base": f"{base}/v1", "api_key": "unused", "num_retries": 0}
HOSTED: Any = {**OPENAI, "model": f"hosted_vllm/{model}"}
TEXT: Any = {**OPENAI, "model": f"text-completion-openai/{model}"}
ASK = [{"role": "user", "content": "Name three whales."}]
FIELDS: Any = {"messages": ASK, "max_tokens": 24, "temperature": 0}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Paris", "Tokyo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Whale(BaseModel):
    name: Literal["blue whale", "humpback", "orca"]
    metres: Annotated[int, Field(ge=1, le=33)]


def completion() -> None:
    """completion under openai/ and hosted_vllm/"""
    texts = [litellm.completion(**where, **FIELDS).choices[0].message.content for where in (OPENAI, HOSTED)]
    assert texts[0]
    same(texts[1], texts[0])


def streamed() -> None:
    """completion, streamed: the same text, and usage"""
    whole = litellm.completion(**OPENAI, **FIELDS)
    chunks = list(litellm.completion(**OPENAI, **FIELDS, stream=True, stream_options={"include_usage": True}))
    same("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), whole.choices[0].message.content)
    built = litellm.stream_chunk_builder(chunks, messages=ASK)
    same(built.usage.completion_tokens, 24)


async def asynchronous() -> None:
    """acompletion: eight at once, streamed too"""
    answers = await asyncio.gather(*(litellm.acompletion(**OPENAI, **FIELDS) for _ in range(8)))
    same(len({answer.choices[0].message.content for answer in answers}), 1)
    stream = await litellm.acompletion(**OPENAI, **FIELDS, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    same(text, answers[0].choices[0].message.content)


def text_completion() -> None:
    """text_completion: whole, streamed, logprobs"""
    fields: Any = {**TEXT, "prompt": "The sea is", "max_tokens": 12, "temperature": 0}
    whole = litellm.text_completion(**fields)
    chunks = litellm.text_completion(**fields, stream=True)
    same("".join(chunk.choices[0].text or "" for chunk in chunks), whole.choices[0].text)
    same(len(litellm.text_completion(**fields, logprobs=1).choices[0].logprobs.tokens), 12)


def structured() -> None:
    """response_format: a class, at temperature 0 and 1.5"""
    for temperature in (0, 1.5):
        fields = {**FIELDS, "max_tokens": 200, "temperature": temperature, "seed": 1}
        answer = litellm.completion(**OPENAI, **fields, response_format=Whale)
        Whale.model_validate_json(answer.choices[0].message.content)


def tools() -> None:
    """tools: required, whole and streamed"""
    ask = {**FIELDS, "messages": [{"role": "user", "content": "What is the weather in Oslo?"}], "max_tokens": 120}
    fields = {**OPENAI, **ask, "tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    (call,) = litellm.completion(**fields).choices[0].message.tool_calls
    same(call.function.name, "get_weather")
    same(list(json.loads(call.function.arguments)), ["city"])
    built = litellm.stream_chunk_builder(list(litellm.completion(**fields, stream=True)))
    same(built.choices[0].message.tool_calls[0].function.arguments, call.function.arguments)


def errors() -> None:
    """errors: LiteLLM's own exceptions"""
    wrong = {**OPENAI, "model": "openai/no-such-model"}
    same(type(refused(404, lambda: litellm.completion(**wrong, **FIELDS))), litellm.NotFoundError)
    hot = {**FIELDS, "temperature": 3}
    same(type(refused(400, lambda: litellm.completion(**OPENAI, **hot))), litellm.BadRequestError)


sys.exit(run([completion, streamed, asynchronous, text_completion, structured, tools, errors]))
