"""Tools over HTTP: an engine that writes given texts, and the openai client, streaming and not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from chat_families import FAMILIES, save_family
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState

from orcaserve.config import ServingConfig
from orcaserve.core import EngineFacts, Request
from orcaserve.serving.service import Service
from orcaserve.text.tokenizer import Tokenizer

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
USER: Any = [{"role": "user", "content": "What is the weather?"}]
ONE = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
TWO = f'Let me see.\n{ONE}\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>'


class ToolServer:
    """A server whose model writes `text` whatever it is asked, then ends."""

    def __init__(self, server: Any, tokenizer: Tokenizer, eos: str, **settings: Any) -> None:
        self.server, self.engine, self.tokenizer = server, server.engine, tokenizer
        self.text = ""
        end = tokenizer.added[eos]
        self.engine.facts = EngineFacts("tiny", tokenizer.vocab_size, 4096, 8192, 8, 1, frozenset({end}))
        self.engine.seconds_per_token = 0.0001
        server.app.service = self.service = Service(server.engine, tokenizer, "tiny", ServingConfig(**settings))

        def script(request: Request, n: int) -> int:
            ids = [*tokenizer.encode(self.text, add_special_tokens=False), end]
            return ids[min(n, len(ids) - 1)]

        self.engine.script = script
        self.client = openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0)

    def create(self, text: str, **fields: Any) -> Any:
        self.text = text
        body: dict[str, Any] = {"model": "tiny", "messages": USER, "tools": [WEATHER, NOW], **fields}
        return self.client.chat.completions.create(**body)

    def both(self, text: str, **fields: Any) -> tuple[dict[str, Any], str]:
        """The message and the reason, which are the same of a whole answer and of a stream that the client puts
        together. Ids of calls differ."""
        [choice] = self.create(text, **fields).choices
        whole = choice.message.model_dump(exclude_unset=True)
        self.text = text
        body: dict[str, Any] = {"model": "tiny", "messages": USER, "tools": [WEATHER, NOW], **fields}
        state = ChatCompletionStreamState()
        for chunk in self.client.chat.completions.create(**body, stream=True):
            state.handle_chunk(chunk)
        [streamed] = state.get_final_completion().choices
        message = streamed.message
        assert message.content == whole["content"] and streamed.finish_reason == choice.finish_reason
        calls = message.tool_calls or []
        assert [(c.function.name, c.function.arguments) for c in calls] == [
            (c["function"]["name"], c["function"]["arguments"]) for c in whole.get("tool_calls", [])
        ]
        assert all(c.id and c.type == "function" for c in calls)
        return whole, choice.finish_reason


@pytest.fixture(scope="module")
def family_files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    known: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in known:
            known[name] = save_family(FAMILIES[name], tmp_path_factory.mktemp("family") / "files")
        return known[name]

    return of


@pytest.fixture
def tools(other_server: Any, family_files: Callable[[str], Path]) -> Callable[..., ToolServer]:
    def start(name: str = "qwen2.5", **settings: Any) -> ToolServer:
        return ToolServer(other_server(), Tokenizer.from_path(family_files(name)), FAMILIES[name].eos, **settings)

    return start


def test_a_call(tools: Callable[..., ToolServer]) -> None:
    server = tools()
    message, reason = server.both(ONE)
    assert reason == "tool_calls" and message["content"] is None
    [call] = message["tool_calls"]
    assert call["id"].startswith("call_") and call["type"] == "function"
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Köln"}'}
    prompt = server.tokenizer.decode(server.engine.seen[-1].input_ids, skip_special_tokens=False)
    assert '<tools>\n{"type": "function", "function": {"name": "get_weather"' in prompt


def test_several_calls_after_a_text(tools: Callable[..., ToolServer]) -> None:
    server = tools()
    message, reason = server.both(TWO)
    assert reason == "tool_calls" and message["content"] == "Let me see.\n"
    assert [json.loads(c["function"]["arguments"]) for c in message["tool_calls"]] == [{"city": "Köln"}, {}]
    message, _ = server.both(TWO, parallel_tool_calls=False)
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["get_weather"]


def test_a_stream_tells_the_name_first_and_arguments_as_they_come(tools: Callable[..., ToolServer]) -> None:
    server = tools()
    chunks = [chunk.choices[0] for chunk in server.create(TWO, stream=True)]
    assert chunks[0].delta.role == "assistant" and chunks[0].delta.content is None
    assert chunks[1].delta.content and chunks[1].delta.tool_calls is None  # at once
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    first = [call for call in calls if call.index == 0]
    assert first[0].id and first[0].type == "function" and first[0].function.name == "get_weather"
    assert first[0].function.arguments == "" and len(first) > 3
    assert all(call.id is None and call.type is None and call.function.name is None for call in first[1:])
    assert "".join(call.function.arguments for call in first) == '{"city": "Köln"}'
    assert [call.index for call in calls] == sorted(call.index for call in calls)
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["tool_calls"]


def test_what_is_no_call_is_content(tools: Callable[..., ToolServer]) -> None:
    server = tools()
    for text in (
        "It is warm <here>.",
        "<tool_call>{oops}</tool_call>",
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        "",
    ):
        message, reason = server.both(text)
        assert message == {"role": "assistant", "content": text, "refusal": None} and reason == "stop"
    broken = '<tool_call>{"name": "now", "arguments": {oops}}</tool_call>'
    [choice] = server.create(broken).choices
    assert choice.message.content == broken and choice.message.tool_calls is None and choice.finish_reason == "stop"


def test_without_tools_calls_are_text(tools: Callable[..., ToolServer]) -> None:
    server = tools()
    for fields in ({"tools": openai.NOT_GIVEN}, {"tool_choice": "none"}):
        [choice] = server.create(ONE, **fields).choices
        assert choice.message.content == ONE and choice.message.tool_calls is None
        prompt = server.tokenizer.decode(server.engine.seen[-1].input_ids, skip_special_tokens=False)
        assert "get_weather" not in prompt


def test_an_answer_that_is_cut(tools: Callable[..., ToolServer]) -> None:
    server = tools()
    n = len(server.tokenizer.encode(ONE[: ONE.index("ln")], add_special_tokens=False))
    [choice] = server.create(ONE, max_tokens=n).choices
    assert choice.finish_reason == "length" and choice.message.tool_calls is not None
    partial = choice.message.tool_calls[0].function.arguments
    streamed = ""
    for chunk in server.create(ONE, max_tokens=n, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            streamed += call.function.arguments
    assert '{"city": "Köln"}'.startswith(partial) and partial == streamed


def test_token_ids_of_calls_are_told_whole_and_streamed(tools: Callable[..., ToolServer]) -> None:
    """What stands beside the text goes with the events there are, also while text is held back."""
    server = tools()
    body = {"extra_body": {"return_token_ids": True}}
    whole = server.create(TWO, **body).choices[0].model_dump()
    streamed: list[int] = []
    for chunk in server.create(TWO, stream=True, **body):
        streamed += chunk.choices[0].model_dump().get("token_ids") or []
    assert streamed == whole["token_ids"]
    assert streamed[:-1] == server.tokenizer.encode(TWO, add_special_tokens=False)
    assert len(whole["message"]["tool_calls"]) == 2


def test_choices_have_parsers_of_their_own(tools: Callable[..., ToolServer]) -> None:
    server = tools()
    answer = server.create(ONE, n=3)
    assert [c.message.tool_calls[0].function.name for c in answer.choices] == ["get_weather"] * 3
    seen: dict[int, str] = {}
    for chunk in server.create(ONE, n=3, stream=True):
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                seen[choice.index] = seen.get(choice.index, "") + call.function.arguments
    assert seen == dict.fromkeys(range(3), '{"city": "Köln"}')


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("mistral", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]'),
        ("phi4", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|/tool_call|>'),
        ("granite", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]'),
        ("llama3.2", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}'),
        ("llama3.2", '{"name": "get_weather", "parameters": {"city": "Paris"}}'),
    ],
)
def test_marks_that_are_special_tokens_reach_the_parser(
    tools: Callable[..., ToolServer], family: str, text: str
) -> None:
    server = tools(family)
    message, reason = server.both(text)
    assert reason == "tool_calls" and json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris"}
    mark = next((token for token in FAMILIES[family].special if token in text), "")
    if mark:  # where it opens no call it is hidden, as special tokens are, unless they are asked for
        message, _ = server.both(f"{mark} no call")
        assert mark not in message["content"]
        [choice] = server.create(f"{mark} no call", extra_body={"skip_special_tokens": False}).choices
        assert choice.message.content.startswith(mark)


def test_a_whole_conversation_with_tools(tools: Callable[..., ToolServer]) -> None:
    server = tools()
    message, _ = server.both(ONE)
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "12 °C"}
    [choice] = server.create("It is 12 °C.", messages=[*USER, message, result]).choices
    assert choice.message.content == "It is 12 °C."
    prompt = server.tokenizer.decode(server.engine.seen[-1].input_ids, skip_special_tokens=False)
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call><|im_end|>' in prompt
    assert "<tool_response>\n12 °C\n</tool_response>" in prompt


def test_a_template_without_tools_is_told_of_them_in_words(tools: Callable[..., ToolServer]) -> None:
    server = tools("smollm2")
    message, reason = server.both(ONE)
    assert reason == "tool_calls"
    prompt = server.tokenizer.decode(server.engine.seen[-1].input_ids, skip_special_tokens=False)
    assert prompt.startswith("<|im_start|>system\nYou can call functions") and '"name": "get_weather"' in prompt
    results = [{"role": "tool", "tool_call_id": "x", "content": text} for text in ("12 °C", "noon")]
    system = {"role": "system", "content": "Be brief."}
    assert server.create("Warm.", messages=[system, *USER, message, *results]).choices[0].message.content == "Warm."
    prompt = server.tokenizer.decode(server.engine.seen[-1].input_ids, skip_special_tokens=False)
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\nYou can call functions")
    assert f"<|im_start|>assistant\n{ONE}<|im_end|>" in prompt
    answers = "<tool_response>\n12 °C\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
    assert f"<|im_start|>user\n{answers}<|im_end|>" in prompt


def test_a_template_without_a_system_message_has_them_in_the_first_one(tools: Callable[..., ToolServer]) -> None:
    server = tools("gemma2")
    server.both(ONE)
    prompt = server.tokenizer.decode(server.engine.seen[-1].input_ids, skip_special_tokens=False)
    assert prompt.count("<start_of_turn>") == 2 and "user\nYou can call functions" in prompt
    assert "</tool_call>\n\nWhat is the weather?" in prompt


def test_a_named_parser(tools: Callable[..., ToolServer]) -> None:
    server = tools("smollm2", tool_call_parser="pythonic")
    message, _ = server.both("[get_weather(city='Köln')]")
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city": "Köln"}'


def test_required_and_strict_calls_come_with_a_grammar(tools: Callable[..., ToolServer]) -> None:
    server = tools()
    strict = {**NOW, "function": {"name": "now", "strict": True}}
    named = {"type": "function", "function": {"name": "get_weather"}}
    for fields in ({"tool_choice": "required"}, {"tool_choice": named}, {"tools": [WEATHER, strict]}):
        assert server.both(ONE, **fields)[1] == "tool_calls" and server.engine.seen[-1].params.grammar is not None
    server.create(ONE)
    assert server.engine.seen[-1].params.grammar is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [NOW, NOW]}, "tools[1].function.name"),
        ({"tools": [NOW] * 129}, "tools"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": None, "parallel_tool_calls": True}, "parallel_tool_calls"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
         "tools[0].function.parameters.type"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}]},
         "tools[0].function.parameters"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
         "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}]},
         "messages[0].tool_calls[0].function.name"),
        ({"messages": [{"role": "assistant", "tool_calls": ["f"]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": {"a": 1}}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f"}}]}]},
         "messages[0].tool_calls"),
        ({"messages": [{"role": "tool", "content": "a", "tool_call_id": 5}]}, "messages[0].tool_call_id"),
        ({"chat_template": "x"}, "chat_template"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
        ({"documents": [{"text": "a"}]}, "documents"),
        ({"continue_final_message": "yes"}, "continue_final_message"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(tools: Callable[..., ToolServer], fields: dict[str, Any], param: str) -> None:
    server = tools()
    answer = server.server.post("/v1/chat/completions", {"model": "tiny", "messages": USER, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param and error["code"] and "orcaserve/" not in answer.text
    assert server.engine.seen == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["function", "f", "object"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["type", "function", "name", "parameters", "strict", "id", "arguments", "mode",
                                       "tools", "allowed_tools", "properties", "$ref", "required"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
FUZZED = ("tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "documents", "chat_template",
          "add_generation_prompt", "continue_final_message")  # fmt: skip


def test_whatever_is_sent_is_answered(tools: Callable[..., ToolServer]) -> None:
    server = tools(trust_request_chat_template=True)

    @given(st.dictionaries(st.sampled_from(FUZZED), JSON, max_size=3), st.none() | JSON)
    @settings(max_examples=150, deadline=None)
    def answered(fields: dict[str, Any], tool_calls: Any) -> None:
        said = {"role": "assistant", "content": "a", "tool_calls": tool_calls}
        body = {"model": "tiny", "messages": [*USER, said, *USER], "max_tokens": 1, **fields}
        answer = server.server.post("/v1/chat/completions", body)
        assert answer.status_code in (200, 400), answer.text

    answered()


def test_a_template_of_the_request(tools: Callable[..., ToolServer]) -> None:
    server = tools(trust_request_chat_template=True)
    body = {"chat_template": "{% for m in messages %}{{ m.content }}!{% endfor %}"}
    assert server.create("Yes", extra_body=body).choices[0].message.content == "Yes"
    seen = server.tokenizer.decode(server.engine.seen[-1].input_ids)
    assert seen.endswith("What is the weather?!") and "get_weather" in seen  # tools in words: this one knows none
    for bad in ("{% for %}", "", 5, "x" * 2**18, "{{ raise_exception('no') }}", "{{ ''.__class__.__mro__ }}"):
        answer = server.server.post("/v1/chat/completions", {"model": "tiny", "messages": USER, "chat_template": bad})
        assert answer.status_code == 400 and answer.json()["error"]["param"] in ("chat_template", "messages")


def test_continuing_and_tokenizing(tools: Callable[..., ToolServer]) -> None:
    server = tools("chatml")
    chat = [*USER, {"role": "assistant", "content": "It is"}]
    fields = {"model": "tiny", "messages": chat, "continue_final_message": True}
    ids = server.server.post("/tokenize", fields).json()["tokens"]
    assert server.tokenizer.decode(ids, skip_special_tokens=False).endswith("<|im_start|>assistant\nIt is")
    server.create(" warm.", messages=chat, tools=openai.NOT_GIVEN, extra_body={"continue_final_message": True})
    assert list(server.engine.seen[-1].input_ids) == ids
    qwen = tools("qwen2.5")
    with_tools = qwen.server.post("/tokenize", {"model": "tiny", "messages": USER, "tools": [NOW]}).json()["tokens"]
    qwen.create("x", tools=[NOW])
    assert list(qwen.engine.seen[-1].input_ids) == with_tools


def test_the_clients_helpers(tools: Callable[..., ToolServer]) -> None:
    """.parse() and .stream() with functions made from models, as the client's documentation has them."""
    import pydantic

    class get_weather(pydantic.BaseModel):
        city: str

    server = tools()
    function = openai.pydantic_function_tool(get_weather)
    server.text = ONE
    answer = server.client.chat.completions.parse(model="tiny", messages=USER, tools=[function])
    [call] = answer.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == get_weather(city="Köln")
    assert server.engine.seen[-1].params.grammar is not None  # the helper asks for strictness
    with server.client.chat.completions.stream(model="tiny", messages=USER, tools=[function]) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [event.parsed_arguments for event in done] == [get_weather(city="Köln")]


@pytest.mark.anyio
async def test_the_async_client(tools: Callable[..., ToolServer]) -> None:
    server = tools()
    server.text = TWO
    async with openai.AsyncOpenAI(base_url=f"{server.server.base}/v1", api_key="none") as client:
        state = ChatCompletionStreamState()
        ask: Any = {"model": "tiny", "messages": USER, "tools": [WEATHER, NOW], "stream": True}
        async for chunk in await client.chat.completions.create(**ask):
            state.handle_chunk(chunk)
        message = state.get_final_completion().choices[0].message
    assert [call.function.name for call in message.tool_calls or []] == ["get_weather", "now"]
