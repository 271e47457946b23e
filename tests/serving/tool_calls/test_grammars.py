"""Grammars of calls, followed by the library itself over single bytes: what they allow is what the parsers read."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from orcaserve.core.errors import InvalidRequest
from orcaserve.core.grammar import Grammar, GrammarKind
from orcaserve.serving.tool_calls.answer import UNBOUNDED, CallReading
from orcaserve.serving.tool_calls.format import CallFormat
from orcaserve.serving.tool_calls.formats import FORMATS
from orcaserve.serving.tool_calls.grammar import grammar_of_calls
from orcaserve.serving.tool_calls.tools import ToolUse, read_tools
from orcaserve.text.compiler import Compiler
from orcaserve.text.vocabulary import Vocabulary

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z][a-z]{1,6}$"},
        "unit": {"enum": ["C", "F"]},
        "days": {"$ref": "#/$defs/days"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 7}},
}
PING = {
    "type": "object",
    "properties": {"loud": {"type": "boolean"}, "n": {"type": "null"}},
    "additionalProperties": False,
}
SCHEMAS = {"weather": WEATHER, "ping": PING}
SPECIAL = ["</s>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|tool_call|>",
           "<|/tool_call|>", "<|python_start|>", "<|python_end|>"]  # fmt: skip
EOS = 256
IDS = {text: EOS + i for i, text in enumerate(SPECIAL)}
VOCABULARY = Vocabulary(
    [bytes([b]) for b in range(256)] + [text.encode() for text in SPECIAL], frozenset(IDS.values()), frozenset({EOS})
)
KINDS = [(kind, special) for kind in FORMATS for special in (False, True)]


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(VOCABULARY)


def use_of(strict: bool = False, **fields: Any) -> ToolUse:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}
        for name, schema in SCHEMAS.items()
    ]
    use = read_tools({"tools": tools, **fields})
    assert use is not None
    return use


def grammar(form: CallFormat, use: ToolUse, special: bool, answer: Grammar | None = None) -> Grammar:
    made = grammar_of_calls(use, form, IDS if special else {}, answer)
    assert made is not None and made.kind is GrammarKind.LARK
    return made


def reading(form: CallFormat, use: ToolUse) -> CallReading:
    return CallReading(form, use.names, UNBOUNDED if use.most is None else use.most, ())


def allowed(matcher: Any) -> list[int]:
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits[: len(VOCABULARY.texts)])]


def drawn(compiler: Compiler, made: Grammar, seed: int, most: int = 1000) -> str:
    """A text of the grammar, each byte drawn from those it allows; it prefers to end, and must."""
    matcher, draw, text = compiler.compile(made), random.Random(seed), b""
    for _ in range(most):
        tokens = allowed(matcher)
        assert tokens and not matcher.is_error(), matcher.get_error()
        if EOS in tokens and (len(tokens) == 1 or draw.random() < 0.3):
            return text.decode()
        token = draw.choice([token for token in tokens if token != EOS])
        assert matcher.consume_token(token)
        text += VOCABULARY.texts[token]
    raise AssertionError(f"went on for too long: {text!r}")


def accepts(compiler: Compiler, made: Grammar, text: str, special: bool) -> bool:
    matcher = compiler.compile(made)
    tokens: list[int] = []
    rest = text
    while rest:
        mark = next((mark for mark in SPECIAL if special and rest.startswith(mark)), None)
        tokens += [IDS[mark]] if mark else list(rest[0].encode())
        rest = rest[len(mark) if mark else 1 :]
    return bool(matcher.consume_tokens(tokens)) and matcher.is_accepting()


@pytest.mark.parametrize(("kind", "special"), KINDS)
def test_required_calls_are_valid(compiler: Compiler, kind: type[CallFormat], special: bool) -> None:
    use, form = use_of(tool_choice="required"), kind()
    made = grammar(form, use, special)
    for seed in range(12):
        text = drawn(compiler, made, seed)
        message, reason = reading(form, use).message(text, "stop")
        assert reason == "tool_calls" and message["content"] is None, text
        for call in message["tool_calls"]:
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            jsonschema.validate(arguments, SCHEMAS[name])


@pytest.mark.parametrize(("kind", "special"), KINDS)
def test_a_named_function_is_called_once(compiler: Compiler, kind: type[CallFormat], special: bool) -> None:
    use, form = use_of(tool_choice={"type": "function", "function": {"name": "ping"}}), kind()
    made = grammar(form, use, special)
    for seed in range(6):
        message, _ = reading(form, use).message(drawn(compiler, made, seed), "stop")
        [call] = message["tool_calls"]
        assert call["function"]["name"] == "ping" and message["content"] is None


def calls_in(kind: type[CallFormat]) -> str:
    """A good call as the family writes it."""
    return {
        "hermes": '<tool_call>\n{"name": "ping", "arguments": {"loud": true}}\n</tool_call>',
        "llama3_json": '{"name": "ping", "parameters": {"loud": true}}',
        "mistral": '[TOOL_CALLS][{"name": "ping", "arguments": {"loud": true}}]',
        "json_list": '<|tool_call|>[{"name": "ping", "arguments": {"loud": true}}]',
        "pythonic": "[ping(loud=true)]",
    }[kind.name]


@pytest.mark.parametrize(("kind", "special"), KINDS)
def test_strict_functions_beside_free_text(compiler: Compiler, kind: type[CallFormat], special: bool) -> None:
    use, form = use_of(strict=True), kind()
    made = grammar(form, use, special)
    call = calls_in(kind)
    for text in ("Hello, [world] {x}!", "two\nlines ", call):
        assert accepts(compiler, made, text, special), text
    bare = kind.marks.bare and not special
    if not bare and kind.marks.begins:
        opened = call if form.opening else kind.marks.begins[0] + call
        if form.opening or special:
            assert accepts(compiler, made, "Let me see.\n" + opened, special)
    for wrong in (call.replace("true", '"yes"'), call.replace("ping", "pong"), call.replace("loud", "quiet")):
        assert not accepts(compiler, made, wrong, special), wrong
    required = grammar(form, use_of(strict=True, tool_choice="required"), special)
    assert accepts(compiler, required, call, special) and not accepts(compiler, required, "Hello", special)


def test_functions_that_are_not_strict_take_any_object(compiler: Compiler) -> None:
    tools = [
        {"type": "function", "function": {"name": "ping", "parameters": PING}},
        {"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}},
    ]
    use = read_tools({"tools": tools})
    assert use is not None
    made = grammar(FORMATS[3](), use, True)
    text = '<tool_call>\n{"name": "ping", "arguments": {"x": [1, {}]}}\n</tool_call>'
    assert accepts(compiler, made, text, True)
    assert not accepts(compiler, made, text.replace("ping", "weather"), True)


def test_nothing_is_held_to_a_grammar_without_need() -> None:
    assert grammar_of_calls(use_of(), FORMATS[3](), IDS) is None


def test_a_schema_for_the_answer_beside_tools(compiler: Compiler) -> None:
    answer = Grammar(
        GrammarKind.JSON_SCHEMA,
        json.dumps({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}),
    )
    for kind, special in KINDS:
        form = kind()
        if not form.opening and not special:  # a call and an answer begin alike
            with pytest.raises(InvalidRequest) as caught:
                grammar(form, use_of(), special, answer)
            assert caught.value.field == "tools"
            continue
        made = grammar(form, use_of(), special, answer)
        assert accepts(compiler, made, '{"a": 5}', special)
        call = calls_in(kind)
        assert accepts(compiler, made, call if form.opening else form.marks.begins[0] + call, special)
        assert not accepts(compiler, made, "text", special)
    with pytest.raises(InvalidRequest) as caught:
        grammar(FORMATS[0](), use_of(), True, Grammar(GrammarKind.REGEX, "a+"))
    assert caught.value.field == "tools"


def test_what_a_strict_schema_may_not_hold_is_named() -> None:
    tools = [
        {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {"required": ["a"]}}}}
    ]
    use = read_tools({"tools": tools})
    assert use is not None
    with pytest.raises(InvalidRequest) as caught:
        grammar_of_calls(use, FORMATS[3](), IDS)
    assert caught.value.field == "tools[0].function.parameters"
    tools[0]["function"]["strict"] = False
    use = read_tools({"tools": tools, "tool_choice": "required"})
    assert use is not None and grammar_of_calls(use, FORMATS[3](), IDS) is not None


def test_a_grammar_has_a_size() -> None:
    big = {"type": "object", "properties": {f"p{i}": {"type": "string", "enum": ["x" * 100]} for i in range(500)}}
    use = read_tools(
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": big}}], "tool_choice": "required"}
    )
    assert use is not None
    with pytest.raises(InvalidRequest) as caught:
        grammar_of_calls(use, FORMATS[3](), IDS)
    assert caught.value.field == "tools"
