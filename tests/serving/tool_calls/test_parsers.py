"""Calls in the formats of the common families, found however the text is cut; what is no call is content."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orcaserve.serving.tool_calls.answer import UNBOUNDED, CallReading, reason_of
from orcaserve.serving.tool_calls.events import Arguments, CallBegins, CallBreaks, Content
from orcaserve.serving.tool_calls.formats import BY_NAME, format_for

NAMES = ("weather", "add", "no-op", "f")
TWO = [("weather", {"city": "Köln", "days": [1, 2]}), ("add", {"a": 1, "b": -2.5e3})]
ONE = TWO[:1]
WEATHER = '{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}'

# (format, text, content, calls)
WELL_FORMED: list[tuple[str, str, str | None, list[tuple[str, dict[str, Any]]]]] = [
    ("hermes", f"<tool_call>\n{WEATHER}\n</tool_call>", None, ONE),
    ("hermes", '<tool_call>{"arguments": {"city": "Köln", "days": [1, 2]}, "name": "weather"}</tool_call>', None, ONE),
    (
        "hermes",
        'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}\n</tool_call>\n'
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": -2.5e3}}\n</tool_call>',
        "Let me see.\n",
        TWO,
    ),
    (
        "hermes",
        '<tool_call>[{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}, '
        '{"name": "add", "arguments": {"a": 1, "b": -2.5e3}}]</tool_call>',
        None,
        TWO,
    ),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', None, [("f", {})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', None, [("f", {})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', None, [("f", {"a": 1})]),
    ("hermes", '<tool_call>{"name": "f", "id": 7, "arguments": {}}</tool_call> and then', " and then", [("f", {})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"t": "two\nlines"}}', None, [("f", {"t": "two\nlines"})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"t": "</tool_call>"}}', None, [("f", {"t": "</tool_call>"})]),
    ("hermes", '<tool_call>{"name": "no-op"}', None, [("no-op", {})]),
    ("llama3_json", '{"name": "weather", "parameters": {"city": "Köln", "days": [1, 2]}}', None, ONE),
    ("llama3_json", '<|python_tag|>{"name": "weather", "parameters": {"city": "Köln", "days": [1, 2]}}', None, ONE),
    (
        "llama3_json",
        ' {"type": "function", "name": "weather", "parameters": {"city": "Köln", "days": [1, 2]}}; '
        '{"name": "add", "parameters": {"a": 1, "b": -2.5e3}}',
        None,
        TWO,
    ),
    ("llama3_json", 'Yes: <|python_tag|>{"name": "f", "parameters": {}}', "Yes: ", [("f", {})]),
    ("mistral", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}]', None, ONE),
    (
        "mistral",
        'Well[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}, "id": "abcdefghi"}, '
        '{"name": "add", "arguments": {"a": 1, "b": -2.5e3}}]',
        "Well",
        TWO,
    ),
    (
        "mistral",
        '[TOOL_CALLS]weather[ARGS]{"city": "Köln", "days": [1, 2]}'
        '[TOOL_CALLS]add[CALL_ID]abc[ARGS]{"a": 1, "b": -2.5e3}',
        None,
        TWO,
    ),
    ("mistral", '[TOOL_CALLS]f{"x": {}}', None, [("f", {"x": {}})]),
    ("json_list", '<|tool_call|>[{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}]', None, ONE),
    (
        "json_list",
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}, '
        '{"name": "add", "arguments": {"a": 1, "b": -2.5e3}}]<|/tool_call|>',
        None,
        TWO,
    ),
    ("json_list", 'functools[{"name": "f", "arguments": {}}]', None, [("f", {})]),
    ("json_list", '[{"name": "f", "arguments": {}}]', None, [("f", {})]),
    ("json_list", '<tool_call>[{"name": "f", "arguments": {}}]', None, [("f", {})]),
    ("pythonic", '[weather(city="Köln", days=[1, 2]), add(a=1, b=-2.5e3)]', None, TWO),
    ("pythonic", "<|python_start|>[weather(city='Köln', days=(1, 2,))]<|python_end|>", None, ONE),
    ("pythonic", "[f()]", None, [("f", {})]),
    (
        "pythonic",
        "[f(a=True, b=None, c={'x': [False, '), ]']}, d='it\\'s', e=+.5, g=007)]",
        None,
        [("f", {"a": True, "b": None, "c": {"x": [False, "), ]"]}, "d": "it's", "e": 0.5, "g": 7})],
    ),
]  # fmt: skip

# (format, text): no call at all
CONTENT = [
    ("hermes", "Just a text, with < and <tool and { and [."),
    ("hermes", "  \n text after blanks"),
    ("hermes", " \n "),
    ("hermes", ""),
    ("hermes", "<tool_call>no JSON</tool_call>"),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "no object"}</tool_call>'),
    ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": tru}, "name": "f"}</tool_call>'),
    ("hermes", "<tool_call>{}</tool_call>"),
    ("hermes", "<tool_call>[]</tool_call>"),
    ("hermes", '<tool_call>{"name": "f",}</tool_call>'),
    ("hermes", "<tool_call>"),
    ("hermes", "<tool_"),
    ("hermes", '<tool_call>{"name": "f"'),
    ("hermes", '<tool_call>{"name": "f", "arguments": ' + "[" * 100),
    ("llama3_json", '{"answer": 42}'),
    ("llama3_json", '{"name": "Ada", "parameters": {}}'),
    ("llama3_json", 'It is {"name": "f", "parameters": {}}'),
    ("llama3_json", "<|python_tag|>print(1)"),
    ("mistral", "[TOOL_CALLS] nothing"),
    ("mistral", "[TOOL_CALLS]unknown[ARGS]{}"),
    ("mistral", "[TOOL_CALLS]f[ARGS]5"),
    ("mistral", "[1, 2]"),
    ("json_list", "[1, 2, 3] are numbers"),
    ("json_list", '[{"a": 1}]'),
    ("json_list", "functools are tools"),
    ("pythonic", "[1] is a list"),
    ("pythonic", "[unknown(a=1)]"),
    ("pythonic", "[f is a function]"),
    ("pythonic", ""),
]
# (format, text, content): a call had begun and was none after all
BROKEN = [
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call>', None),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1]}</tool_call> so', None),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', None),
    ("llama3_json", '{"name": "f", "parameters": {"a": 01}}', None),
    ("pythonic", "[f(a=open('x'))]", None),
    ("pythonic", "[f(a=1, a=2)]", None),
    ("pythonic", "[f(a=b'x')]", None),
]
TEXTS = [text for _, text, *_ in (*WELL_FORMED, *CONTENT, *BROKEN)]


def reading(name: str, most: int = UNBOUNDED, hidden: tuple[str, ...] = ()) -> CallReading:
    return CallReading(BY_NAME[name](), NAMES, most, hidden)


def joined(name: str, pieces: list[str], reason: str = "stop", **how: Any) -> tuple[list[Any], str | None]:
    """Events with neighbouring content and arguments put together, and why the answer ended."""
    parser = reading(name, **how).parser()
    events = [event for piece in pieces for event in parser.push(piece)]
    events += parser.end(cut=reason == "length")
    out: list[Any] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, Content) and isinstance(last, Content):
            out[-1] = Content(last.text + event.text)
        elif isinstance(event, Arguments) and isinstance(last, Arguments) and last.index == event.index:
            out[-1] = Arguments(event.index, last.text + event.text)
        else:
            out.append(event)
    return out, reason_of(parser, reason)


def cuts_of(text: str) -> st.SearchStrategy[list[str]]:
    places = st.lists(st.integers(0, len(text)), max_size=12).map(lambda at: [0, *sorted(at), len(text)])
    return places.map(lambda at: [text[i:j] for i, j in pairwise(at)])


@pytest.mark.parametrize(("name", "text", "content", "calls"), WELL_FORMED)
def test_calls_are_found(name: str, text: str, content: str | None, calls: list[tuple[str, Any]]) -> None:
    message, reason = reading(name).message(text, "stop")
    assert message["content"] == content and message["role"] == "assistant" and reason == "tool_calls"
    found = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]
    assert found == calls
    assert len({call["id"] for call in message["tool_calls"]}) == len(calls)
    assert all(call["type"] == "function" for call in message["tool_calls"])


@pytest.mark.parametrize(("name", "text"), CONTENT)
def test_what_is_no_call_is_content(name: str, text: str) -> None:
    message, reason = reading(name).message(text, "stop")
    assert message == {"role": "assistant", "content": text, "refusal": None} and reason == "stop"


@pytest.mark.parametrize(("name", "text", "content"), BROKEN)
def test_a_call_that_breaks_is_content_of_a_whole_answer(name: str, text: str, content: str | None) -> None:
    message, reason = reading(name).message(text, "stop")
    assert message == {"role": "assistant", "content": text, "refusal": None} and reason == "stop"
    events, _ = joined(name, list(text))
    assert any(isinstance(event, CallBreaks) for event in events)


@pytest.mark.parametrize(("name", "text"), [case[:2] for case in (*WELL_FORMED, *CONTENT, *BROKEN)])
def test_letter_by_letter_is_the_same(name: str, text: str) -> None:
    for reason in ("stop", "length"):
        assert joined(name, list(text), reason) == joined(name, [text], reason)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_cutting_gives_the_same_calls(data: st.DataObject) -> None:
    """Also of texts put together from pieces of calls, in whatever order, and for whatever format."""
    name = data.draw(st.sampled_from(sorted(BY_NAME)))
    pieces = st.sampled_from([*TEXTS, "<tool_call>", "{", "}", "[", "]", '"', "\n", "f(", "=", "[TOOL_CALLS]", "x"])
    text = "".join(data.draw(st.lists(pieces, min_size=1, max_size=4)))
    text = text[: data.draw(st.integers(0, len(text)))]
    reason = data.draw(st.sampled_from(["stop", "length"]))
    most = data.draw(st.sampled_from([1, UNBOUNDED]))
    assert joined(name, data.draw(cuts_of(text)), reason, most=most) == joined(name, [text], reason, most=most)


@given(st.text(max_size=200), st.sampled_from(sorted(BY_NAME)))
@settings(max_examples=300, deadline=None)
def test_any_text_is_content_or_calls(text: str, name: str) -> None:
    message, _ = reading(name).message(text, "stop")
    assert message["content"] == text and "tool_calls" not in message


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4), st.booleans(), st.integers(0, 2), st.data())
@settings(max_examples=200, deadline=None)
def test_any_arguments_come_through(arguments: dict[str, Any], ascii_only: bool, indent: int, data: Any) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii_only, indent=indent or None)
    text = f'a <tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    events, reason = joined("hermes", data.draw(cuts_of(text)))
    assert events == [Content("a "), CallBegins(0, "f"), Arguments(0, written)] and reason == "tool_calls"


@given(st.dictionaries(st.from_regex(r"\A[a-z_]{1,5}\Z"), VALUES, max_size=4), st.data())
@settings(max_examples=200, deadline=None)
def test_any_arguments_come_through_from_python(arguments: dict[str, Any], data: Any) -> None:
    text = f"[f({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"
    events, _ = joined("pythonic", data.draw(cuts_of(text)))
    assert [type(event) for event in events] == [CallBegins, Arguments]
    assert json.loads(events[1].text) == arguments


def test_text_is_held_back_only_while_it_may_begin_a_call() -> None:
    parser = reading("hermes").parser()
    assert parser.push("Hello") == [Content("Hello")]
    assert parser.push(" a <tool") == [Content(" a ")]
    assert parser.push("box>") == [Content("<toolbox>")]
    assert parser.push("<tool_call>") == []
    assert parser.push('{"name": "we') == []
    assert parser.push('ather", "arguments"') == []
    assert parser.push(": {") == [CallBegins(0, "weather"), Arguments(0, "{")]
    assert parser.push('"city": "K') == [Arguments(0, '"city": "K')]
    assert parser.push('öln"}}') == [Arguments(0, 'öln"}')]
    assert parser.push("</tool_call>") == [] and parser.end() == []


def test_a_bare_object_is_held_back_until_it_is_seen_to_be_none() -> None:
    parser = reading("llama3_json").parser()
    assert parser.push('{"ans') == [] and parser.push('wer": ') == []
    assert parser.push("4}") == [Content('{"answer": 4'), Content("}")] and parser.end() == []
    parser = reading("llama3_json").parser()
    assert parser.push('{"name": "Ada"') == [Content('{"name": "Ada"')]
    assert parser.push(", more") == [Content(", more")]


def test_a_call_that_was_cut_is_partial() -> None:
    text = 'So <tool_call>{"name": "f", "arguments": {"a": "b'
    message, reason = reading("hermes").message(text, "length")
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": "b'}
    assert message["content"] == "So " and reason == "length"


def test_one_call_at_most() -> None:
    for name, text in (("hermes", WELL_FORMED[2][1]), ("pythonic", "[f(), f(a=1), f()]")):
        message, reason = reading(name, most=1).message(text, "stop")
        assert len(message["tool_calls"]) == 1 and reason == "tool_calls"
        assert message["content"] in (None, "Let me see.\n")


def test_special_tokens_are_not_shown() -> None:
    hidden = ("<tool_call>", "</tool_call>")
    for text, shown in (
        ("<tool_call>what</tool_call> so", "what so"),
        ("a</tool_call>b", "ab"),
        ('<tool_call>{"name": "f"}</tool_call></tool_call>', None),
        ("<tool_call>", ""),
    ):
        message, _ = reading("hermes", hidden=hidden).message(text, "stop")
        assert message["content"] == shown
        assert joined("hermes", list(text), hidden=hidden) == joined("hermes", [text], hidden=hidden)


def test_mistrals_ids_are_those_its_template_takes() -> None:
    message, _ = reading("mistral").message('[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]f{}', "stop")
    assert all(len(call["id"]) == 9 and call["id"].isalnum() for call in message["tool_calls"])


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ tools }}<tool_call>{{ '</tool_call>' }}", "hermes"),
        ("[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS]", "mistral"),
        ("<|start_header_id|>{{ tools }}<|python_tag|>", "llama3_json"),
        ('{{ tools }}{"name": function name, "parameters": dictionary}', "llama3_json"),
        ("<|tool|>{{ tools }}<|/tool|>", "json_list"),
        ("<|start_of_role|>{{ tools }}<|tool_call|>", "json_list"),
        ("[func_name1(params_name1=params_value1)] {{ tools }}", "pythonic"),
        ("{{ tools }}", "hermes"),
        (None, "hermes"),
    ],
)
def test_the_template_says_the_format(template: str | None, name: str) -> None:
    assert format_for(template).name == name
    assert format_for(template, "mistral").name == "mistral"
