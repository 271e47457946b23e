"""The openai client for Python: openai_python.py BASE_URL MODEL."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Annotated, Any, Literal

import openai
from pydantic import BaseModel, Field
from steps import refused, run, same

base, model = sys.argv[1:]
client = openai.OpenAI(base_url=f"{base}/v1", api_key="unused", max_retries=0)
PROMPT = "The sea is"
ASK: list[Any] = [{"role": "user", "content": "Name three whales."}]


class Whale(BaseModel):
    name: Literal["blue whale", "humpback", "orca"]
    metres: Annotated[int, Field(ge=1, le=33)]
    endangered: bool


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city now.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Oslo", "Paris", "Tokyo"]},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
TIME: Any = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time in a city now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Paris", "Tokyo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
ASK_WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]


def models() -> None:
    """models: list and retrieve"""
    same([entry.id for entry in client.models.list()], [model])
    same(client.models.retrieve(model).id, model)


def completion() -> None:
    """completion: text, finish_reason, usage, request id"""
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=12, temperature=0)
    assert answer.choices[0].text
    same(answer.choices[0].finish_reason, "length")
    assert answer.usage is not None
    same(answer.usage.completion_tokens, 12)
    same(answer.usage.total_tokens, answer.usage.prompt_tokens + 12)
    assert answer._request_id


def completion_stream() -> None:
    """completion, streamed: the same text, usage last"""
    fields: Any = {"model": model, "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    whole = client.completions.create(**fields)
    chunks = list(client.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    same("".join(c.text for chunk in chunks for c in chunk.choices), whole.choices[0].text)
    same(chunks[-1].choices, [])
    usage = chunks[-1].usage
    assert usage is not None and whole.usage is not None and usage.prompt_tokens_details is not None
    usage.prompt_tokens_details = whole.usage.prompt_tokens_details  # what the first one left, the second one finds
    same(usage, whole.usage)
    assert all(chunk.usage is None for chunk in chunks[:-1])


def completion_choices() -> None:
    """completion: prompts as texts and ids, n, seed, stop"""
    fields: Any = {"model": model, "max_tokens": 8, "seed": 7, "temperature": 1}
    several = client.completions.create(**fields, prompt=[PROMPT, "1, 2, 3,"], n=2)
    same([c.index for c in several.choices], [0, 1, 2, 3])
    again = client.completions.create(**fields, prompt=[PROMPT, "1, 2, 3,"], n=2)
    same([c.text for c in again.choices], [c.text for c in several.choices])
    same(len(client.completions.create(**fields, prompt=[[5, 6, 7], [8, 9]]).choices), 2)
    stopped = client.completions.create(model=model, prompt="1, 2, 3, 4,", max_tokens=40, temperature=0, stop=[" 7"])
    same(stopped.choices[0].finish_reason, "stop")
    assert " 7" not in stopped.choices[0].text


def completion_logprobs() -> None:
    """completion: logprobs, echo, max_tokens 0"""
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=6, temperature=0, logprobs=3)
    found = answer.choices[0].logprobs
    assert found is not None and found.tokens and found.token_logprobs and found.top_logprobs and found.text_offset
    same("".join(found.tokens), answer.choices[0].text)
    assert all(value is not None and value <= 0 for value in found.token_logprobs)
    assert all(len(top) >= 3 for top in found.top_logprobs)
    assert all(max(top.values()) == value for top, value in zip(found.top_logprobs, found.token_logprobs, strict=True))
    assert [b - a for a, b in zip(found.text_offset, found.text_offset[1:], strict=False)] == [
        len(token) for token in found.tokens[:-1]
    ]
    scored = client.completions.create(model=model, prompt=PROMPT, max_tokens=0, echo=True, logprobs=1).choices[0]
    same(scored.text, PROMPT)
    assert scored.logprobs is not None and scored.logprobs.token_logprobs
    same(scored.logprobs.token_logprobs[0], None)
    assert all(value <= 0 for value in scored.logprobs.token_logprobs[1:])


def chat() -> None:
    """chat: content, parts, roles, usage"""
    answer = client.chat.completions.create(model=model, messages=ASK, max_tokens=20, temperature=0)
    message = answer.choices[0].message
    same((message.role, message.refusal, message.tool_calls), ("assistant", None, None))
    assert message.content and answer.usage is not None and answer.usage.prompt_tokens_details is not None
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": ASK[0]["content"]}]}]
    same(client.chat.completions.create(model=model, messages=parts, max_tokens=20, temperature=0).choices,
         answer.choices)  # fmt: skip
    longer: list[Any] = [{"role": "developer", "content": "Be brief."}, *ASK, {"role": "assistant", "content": "Orca."}]
    longer += [{"role": "user", "content": "One more.", "name": "ann"}]
    assert client.chat.completions.create(model=model, messages=longer, max_completion_tokens=8).choices[0].message


def chat_stream() -> None:
    """chat, streamed: the same text; the client's stream helper"""
    fields: Any = {"model": model, "messages": ASK, "max_tokens": 200, "temperature": 0, "stop": ["."]}
    whole = client.chat.completions.create(**fields).choices[0]
    same(whole.finish_reason, "stop")
    chunks = list(client.chat.completions.create(**fields, stream=True))
    same("".join(chunk.choices[0].delta.content or "" for chunk in chunks), whole.message.content)
    same(chunks[0].choices[0].delta.role, "assistant")
    same([c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason], [whole.finish_reason])
    with client.chat.completions.stream(**fields) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion().choices[0]
    same((text, final.message.content), (whole.message.content, whole.message.content))


def chat_logprobs() -> None:
    """chat: logprobs with bytes and top_logprobs"""
    answer = client.chat.completions.create(
        model=model, messages=ASK, max_tokens=8, temperature=0, logprobs=True, top_logprobs=2
    ).choices[0]
    assert answer.logprobs is not None and answer.logprobs.content
    joined = b"".join(bytes(entry.bytes or []) for entry in answer.logprobs.content)
    assert joined.decode().startswith(answer.message.content or "?")
    for entry in answer.logprobs.content:
        same(len(entry.top_logprobs), 2)
        assert entry.logprob <= 0 and entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob


def leaving() -> None:
    """chat, streamed: left after the first words"""
    with client.chat.completions.create(model=model, messages=ASK, max_tokens=2000, stream=True) as stream:
        for _, _chunk in zip(range(3), stream, strict=False):
            pass


async def asynchronous() -> None:
    """async: sixteen at once, whole and streamed, each its own text"""
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="unused", max_retries=0) as client:

        async def whole(n: int) -> str:
            answer = await client.completions.create(model=model, prompt=f"{n},", max_tokens=10, temperature=0)
            return answer.choices[0].text

        async def streamed(n: int) -> str:
            stream = await client.completions.create(
                model=model, prompt=f"{n},", max_tokens=10, temperature=0, stream=True
            )
            return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])

        texts = await asyncio.gather(*map(whole, range(8)), *map(streamed, range(8)))
        same(texts[8:], texts[:8])


def structured() -> None:
    """structured output: parse into a class, at temperature 0 and 1.5"""
    for seed in range(4):
        answer = client.chat.completions.parse(
            model=model, messages=ASK, response_format=Whale, max_tokens=200, seed=seed, temperature=1.5 * (seed > 0)
        )
        assert isinstance(answer.choices[0].message.parsed, Whale)
        same(answer.choices[0].finish_reason, "stop")


def structured_stream() -> None:
    """structured output, streamed into a class; json_object"""
    with client.chat.completions.stream(
        model=model, messages=ASK, response_format=Whale, max_tokens=200, temperature=0
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Whale)
    asked: list[Any] = [{"role": "user", "content": 'Answer with the JSON object {"a": 1} and nothing else.'}]
    free = client.chat.completions.create(
        model=model, messages=asked, response_format={"type": "json_object"}, max_tokens=400, temperature=0
    ).choices[0]
    if free.finish_reason == "stop":  # a small model may go on in an object until its tokens are used up
        assert isinstance(json.loads(free.message.content or ""), dict)
    else:
        same(free.finish_reason, "length")
        assert (free.message.content or "").lstrip().startswith("{")


def constrained() -> None:
    """structured_outputs (extension): choice, regex, grammar"""
    import re

    def ask(**rule: Any) -> str:
        return client.completions.create(
            model=model, prompt=PROMPT, max_tokens=30, temperature=1, seed=3, extra_body={"structured_outputs": rule}
        ).choices[0].text  # fmt: skip

    assert ask(choice=["calm", "wild"]) in ("calm", "wild")
    found = ask(regex="[0-9]{3}-[a-z]{2}")
    assert re.fullmatch("[0-9]{3}-[a-z]{2}", found), found
    assert ask(grammar='start: "a" | "b" "c"') in ("a", "bc")


def _check_weather(arguments: str) -> None:
    given = json.loads(arguments)
    same(sorted(given), ["city", "unit"])
    assert given["city"] in ("Oslo", "Paris", "Tokyo") and given["unit"] in ("celsius", "fahrenheit")


def tools_required() -> None:
    """tools: required, named, none, auto"""
    fields: Any = {"model": model, "messages": ASK_WEATHER, "tools": [WEATHER], "max_tokens": 120, "temperature": 0}
    required = client.chat.completions.create(**fields, tool_choice="required").choices[0]
    assert required.message.tool_calls and required.finish_reason == "tool_calls"
    for call in required.message.tool_calls:
        assert call.type == "function" and call.id
        same(call.function.name, "get_weather")
        _check_weather(call.function.arguments)
    named = {"type": "function", "function": {"name": "get_time"}}
    both = {**fields, "tools": [WEATHER, TIME]}
    forced = client.chat.completions.create(**both, tool_choice=named).choices[0]
    assert forced.message.tool_calls
    call = forced.message.tool_calls[0]
    assert call.type == "function"
    same((len(forced.message.tool_calls), call.function.name), (1, "get_time"))
    same(list(json.loads(call.function.arguments)), ["city"])
    none = client.chat.completions.create(**fields, tool_choice="none").choices[0].message
    assert not none.tool_calls and none.content
    auto = client.chat.completions.create(**fields).choices[0]
    assert auto.message.tool_calls or auto.message.content
    same(auto.finish_reason == "tool_calls", bool(auto.message.tool_calls))


def tools_stream() -> None:
    """tools, streamed: joined deltas equal the whole; one call where parallel_tool_calls is false"""
    fields: Any = {
        "model": model, "messages": ASK_WEATHER, "tools": [WEATHER, TIME], "tool_choice": "required",
        "parallel_tool_calls": False, "max_tokens": 120, "temperature": 0,
    }  # fmt: skip
    whole = client.chat.completions.create(**fields).choices[0]
    assert whole.message.tool_calls
    same(len(whole.message.tool_calls), 1)
    name = arguments = ""
    for chunk in client.chat.completions.create(**fields, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            same(call.index, 0)
            assert call.function is not None
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    call = whole.message.tool_calls[0]
    assert call.type == "function"
    same((name, arguments), (call.function.name, call.function.arguments))


def tools_round() -> None:
    """tools: a result sent back, and the answer to it"""
    fields: Any = {"model": model, "tools": [WEATHER], "max_tokens": 120, "temperature": 0}
    called = client.chat.completions.create(**fields, messages=ASK_WEATHER, tool_choice="required").choices[0].message
    assert called.tool_calls
    results = [{"role": "tool", "tool_call_id": call.id, "content": "12 degrees, rain"} for call in called.tool_calls]
    messages: Any = [*ASK_WEATHER, called.model_dump(exclude_none=True), *results]
    assert client.chat.completions.create(**fields, messages=messages, tool_choice="none").choices[0].message.content


def errors() -> None:
    """errors: status, code and param as the client's exceptions"""
    ask: Any = {"model": model, "messages": ASK}
    missing = refused(404, lambda: client.chat.completions.create(model="no-such-model", messages=ASK))
    same((type(missing), missing.code, missing.param), (openai.NotFoundError, "model_not_found", "model"))
    hot = refused(400, lambda: client.chat.completions.create(**ask, temperature=3))
    same((type(hot), hot.param), (openai.BadRequestError, "temperature"))
    same(refused(400, lambda: client.chat.completions.create(**{**ask, "messages": []})).param, "messages")
    same(refused(400, lambda: client.completions.create(model=model, prompt=[[-1]])).param, "prompt")
    same(refused(400, lambda: client.chat.completions.create(**ask, stream=True, top_p=2)).param, "top_p")
    long = refused(400, lambda: client.completions.create(model=model, prompt="a b " * 100_000))
    same(long.param, "prompt")
    wide = refused(400, lambda: client.embeddings.create(model=model, input="whale", dimensions=10**6))
    same(wide.param, "dimensions")


def batches() -> None:
    """files and batches: upload, run, download"""
    asked = [
        {"custom_id": f"r{n}", "method": "POST", "url": "/v1/completions",
         "body": {"model": model, "prompt": f"{n},", "max_tokens": 6, "temperature": 0}}
        for n in range(3)
    ]  # fmt: skip
    lines = "".join(json.dumps(entry) + "\n" for entry in asked)
    file = client.files.create(file=("in.jsonl", lines.encode()), purpose="batch")
    same(client.files.content(file.id).text, lines)
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    deadline = time.monotonic() + 120
    while batch.status not in ("completed", "failed", "expired", "cancelled") and time.monotonic() < deadline:
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    same(batch.status, "completed")
    assert batch.output_file_id and batch.request_counts
    same(batch.request_counts.completed, 3)
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    same(sorted(answer["custom_id"] for answer in answers), ["r0", "r1", "r2"])
    direct = client.completions.create(model=model, prompt="1,", max_tokens=6, temperature=0).choices[0].text
    found = {answer["custom_id"]: answer["response"]["body"]["choices"][0]["text"] for answer in answers}
    same(found["r1"], direct)
    assert batch.id in [entry.id for entry in client.batches.list()]
    assert client.files.delete(file.id).deleted


sys.exit(
    run(
        [
            models, completion, completion_stream, completion_choices, completion_logprobs, chat, chat_stream,
            chat_logprobs, leaving, asynchronous, structured, structured_stream, constrained, tools_required,
            tools_stream, tools_round, errors, batches,
        ]
    )
)  # fmt: skip
