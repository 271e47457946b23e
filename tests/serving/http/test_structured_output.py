"""response_format and its kin at the door: what they ask for reaches the engine; what is no grammar is refused by name.

Grammars are compiled in a real process here, hostile ones too; the server is well after each.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from orcaserve.core import Grammar, GrammarKind

PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def json_schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


def refused(answer: Any, param: str | None, says: str = "", status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["param"] == param and says in error["message"], error
    return error


ASKED: list[tuple[dict[str, Any], Grammar]] = [
    ({"response_format": {"type": "json_object"}}, Grammar.json_schema({"type": "object"})),
    ({"response_format": json_schema(PERSON)}, Grammar.json_schema(PERSON)),
    ({"response_format": json_schema(PERSON, strict=True, description="who")}, Grammar.json_schema(PERSON)),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, Grammar.json_schema({})),
    ({"structured_outputs": {"json": PERSON}}, Grammar.json_schema(PERSON)),
    ({"structured_outputs": {"json": '{"type": "null"}'}}, Grammar.json_schema({"type": "null"})),
    ({"structured_outputs": {"json_object": True}}, Grammar.json_schema({"type": "object"})),
    ({"structured_outputs": {"regex": "[0-9]+", "choice": None}}, Grammar.regex("[0-9]+")),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, Grammar.choice(["yes", "no"])),
    ({"structured_outputs": {"grammar": 'start: "a"+'}}, Grammar.lark('start: "a"+')),
    ({"guided_json": PERSON}, Grammar.json_schema(PERSON)),
    ({"guided_regex": "a|b"}, Grammar.regex("a|b")),
    ({"guided_choice": ["a"], "guided_json": None}, Grammar.choice(["a"])),
    ({"guided_grammar": 'start: "a"'}, Grammar.lark('start: "a"')),
]


@pytest.mark.parametrize(("fields", "grammar"), ASKED)
def test_what_is_asked_for_reaches_the_engine(server: Any, fields: dict[str, Any], grammar: Grammar) -> None:
    for answer in (server.complete(**fields, max_tokens=2, n=2), server.chat(**fields, max_tokens=2)):
        assert answer.status_code == 200, answer.text
        assert "x-orcaserve-ignored-fields" not in answer.headers
    assert [request.params.grammar for request in server.engine.seen] == [grammar] * 3


@pytest.mark.parametrize(
    "fields", [{"response_format": {"type": "text"}}, {"response_format": None}, {"structured_outputs": {}}, {}]
)
def test_nothing_is_asked_for(server: Any, fields: dict[str, Any]) -> None:
    assert server.complete(**fields).status_code == 200
    assert server.engine.seen[-1].params.grammar is None


def test_the_end_of_a_grammar_ends_a_text_whatever_is_ignored(server: Any) -> None:
    server.complete(guided_regex="a", ignore_eos=True, stop_token_ids=[9])
    assert server.engine.seen[-1].stop_ids == {0, 9}


WRONG: list[tuple[str, Any, str]] = [
    ("response_format", "json", "must be an object"),
    ("response_format", {}, "type"),
    ("response_format", {"type": "xml"}, "must be text, json_object or json_schema"),
    ("response_format", {"type": "json_schema"}, "json_schema must be an object"),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {}}}, "name"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}, "name"),
    ("response_format", json_schema([]), "schema must be an object"),
    ("response_format", json_schema({}, strict="yes"), "strict"),
    ("response_format", json_schema({}, description=1), "description"),
    ("response_format", json_schema({"not": {}}), "keyword not is not supported"),
    ("response_format", json_schema({"type": "object", "properties": {"a": {"uniqueItems": True}}}), "uniqueItems"),
    ("response_format", json_schema({"enum": ["x" * 70_000]}), "65536 characters"),
    ("structured_outputs", "json", "must be an object"),
    ("structured_outputs", {"regex": "a", "choice": ["a"]}, "one of"),
    ("structured_outputs", {"disable_fallback": True}, "one of"),
    ("structured_outputs", {"json": "{"}, "not valid JSON"),
    ("structured_outputs", {"json": "[]"}, "must be a JSON object"),
    ("structured_outputs", {"json": 5}, "must be an object"),
    ("structured_outputs", {"json_object": 1}, "true or false"),
    ("structured_outputs", {"regex": 5}, "must be a string"),
    ("structured_outputs", {"regex": ""}, "1 to 65536"),
    ("structured_outputs", {"regex": "(?=a)"}, "not valid, or looks around"),
    ("structured_outputs", {"choice": []}, "1 to 1024"),
    ("structured_outputs", {"choice": ["a", 1]}, "list of strings"),
    ("structured_outputs", {"choice": "a"}, "list of strings"),
    ("structured_outputs", {"choice": ["a"] * 1025}, "1 to 1024"),
    ("structured_outputs", {"grammar": "root ::= a"}, "not valid in Lark's notation"),
    ("guided_json", [1], "must be an object"),
    ("guided_regex", "(", "not valid"),
    ("guided_choice", {}, "list"),
    ("guided_grammar", 'start: "a', "not valid in Lark's notation"),
]


@pytest.mark.parametrize(("name", "value", "says"), WRONG)
def test_what_is_no_grammar_is_refused_by_name(server: Any, name: str, value: Any, says: str) -> None:
    if value != {}:
        refused(server.complete(**{name: value}), name, says)
    refused(server.chat(**{name: value}, stream=True), name) if value != {} or name == "response_format" else None
    assert server.engine.seen == []


def test_one_grammar_at_most(server: Any) -> None:
    both = {"response_format": {"type": "json_object"}, "guided_regex": "a"}
    refused(server.complete(**both), "guided_regex", "cannot be given together")


def test_a_large_grammar_and_many_choices(server: Any) -> None:
    schema = {"enum": [f"{i:06}" for i in range(6000)]}
    assert server.complete(response_format=json_schema(schema), max_tokens=2).status_code == 200
    refused(server.complete(response_format=json_schema(schema), n=64), "n", "characters of a grammar")


def _deep(depth: int) -> Any:
    schema: Any = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def _product(n: int) -> Any:
    """n choices of two, all at once: 2 to the n ways."""

    def option(name: str) -> Any:
        return {"properties": {name: {"const": name}}, "required": [name]}

    return {"type": "object", "allOf": [{"anyOf": [option(f"{i}{c}") for c in "ab"]} for i in range(n)]}


def _chain(n: int, to: str, start: str = "r") -> dict[str, Any]:
    """Rules that refer to the next one, in some way."""
    rules = "".join(f"{start}{i}: " + to.replace("?", f"{start}{i + 1}") + "\n" for i in range(n))
    return {"guided_grammar": f'start: {start}0\n{rules}{start}{n}: "a"'}


def _definitions(n: int, make: Callable[[Any], Any]) -> dict[str, Any]:
    refs = [{"$ref": f"#/$defs/d{i}"} for i in range(n + 1)]
    return {"guided_json": {"$defs": {**{f"d{i}": make(refs[i + 1]) for i in range(n)}, f"d{n}": {}}, **refs[0]}}


CIRCLE = {"$ref": "#"}
HOSTILE: dict[str, dict[str, Any]] = {
    "a product of choices": {"response_format": json_schema(_product(24))},
    "deep": {"response_format": json_schema(_deep(50))},
    "a circle": {"response_format": json_schema(CIRCLE)},
    "a larger circle": {"guided_json": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                                        "$ref": "#/$defs/a"}},
    "a circle of choices": {"guided_json": {"anyOf": [CIRCLE, {"type": "array", "items": CIRCLE}]}},
    "a circle of all": {"guided_json": {"allOf": [CIRCLE, {"type": "object", "properties": {"a": CIRCLE}}]}},
    "doubling": _definitions(60, lambda ref: {"type": "array", "prefixItems": [ref, ref]}),
    "doubling choices": _definitions(60, lambda ref: {"anyOf": [ref, ref]}),
    "doubling all": _definitions(60, lambda ref: {"allOf": [ref, ref]}),
    "a long chain": _definitions(1500, lambda ref: ref),
    "many keys": {"guided_json": {"type": "object", "properties": {f"k{i}": {"type": "integer"} for i in range(1800)}}},
    "counting": {"guided_regex": "((a{1,300}){1,300}){1,300}"},
    "counting lazily": {"guided_regex": "(.*a.{400}){20}"},
    "parentheses of a regex": {"guided_regex": "(" * 20_000 + ")" * 20_000},
    "alternatives": {"guided_regex": "|".join(f"(a{i}.*)+" for i in range(3000))},
    "classes": {"guided_regex": r"(\p{L}{0,200}\w{0,200}){30}"},
    "parentheses of a grammar": {"guided_grammar": "start: " + "(" * 30_000 + '"a"' + ")" * 30_000},
    "brackets": {"guided_grammar": "start: " + "[" * 30_000 + '"a"' + "]" * 30_000},
    "a chain of rules": _chain(4000, "?"),
    "a chain of terminals": _chain(3500, '? "a"', "R"),
    "terminals that double": _chain(60, "? ?", "T"),
    "rules that double": _chain(60, "? ?"),
    "a terminal of itself": {"guided_grammar": "start: A\nA: A"},
    "a rule of itself": {"guided_grammar": "start: start"},
    "ambiguous": {"guided_grammar": 'start: s\ns: s s | s s s | "a" | ""'},
    "counts": {"guided_grammar": 'start: ("a"~1..1000000)~1..1000000'},
    "and not": {"guided_grammar": "start: A\nA: " + " & ".join(f"~/(?s:.*)a.{{{i}}}b(?s:.*)/" for i in range(1, 80))},
    "deep JSON in a grammar": {"guided_grammar": "start: %json " + '{"items":' * 5000 + "{}" + "}" * 5000},
    "a substring": {"guided_grammar": 'start: S\nS: %regex {"substring_chars": "' + "ab" * 30_000 + '"}'},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_cost_little_and_break_nothing(large: Any, name: str) -> None:
    """They are compiled or refused; meanwhile the server lives, and afterwards it is the same."""
    before = resident(os.getpid())
    answer = large.complete(**HOSTILE[name], max_tokens=1)
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["param"] == next(iter(HOSTILE[name]))
    assert resident(os.getpid()) - before < 100 * 2**20
    good = large.complete(guided_regex="ab", max_tokens=1)
    assert good.status_code == 200, good.text


def resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def checker(server: Any) -> Iterator[Any]:
    server.complete(guided_regex="a first one", max_tokens=1)
    yield server.service._grammars


def test_the_process_dies_and_there_is_another(server: Any, checker: Any) -> None:
    first = checker._process.pid
    os.kill(first, signal.SIGKILL)
    answer = server.complete(guided_regex="a second one", max_tokens=1)
    assert answer.status_code in (200, 400)  # the grammar may have been to blame
    assert server.complete(guided_regex="a third one", max_tokens=1).status_code == 200
    assert checker._process.pid != first


def test_verdicts_are_remembered_and_bounded(server: Any, checker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from orcaserve.serving import grammar_checker

    asked: list[Grammar] = []
    ask = checker._ask
    monkeypatch.setattr(checker, "_ask", lambda grammar: asked.append(grammar) or ask(grammar))
    for _ in range(3):
        server.complete(guided_regex="once", max_tokens=1)
        refused(server.complete(guided_regex="once("), "guided_regex")
    assert asked == [Grammar.regex("once"), Grammar.regex("once(")]
    monkeypatch.setattr(grammar_checker, "MAX_VERDICTS", 2)
    for letter in "abc":
        server.complete(guided_regex=letter, max_tokens=1)
    assert [g.text for g in checker._verdicts] == ["b", "c"]
    monkeypatch.setattr(grammar_checker, "MAX_VERDICT_CHARACTERS", 3)
    server.complete(guided_regex="ddd", max_tokens=1)
    assert list(checker._verdicts) == [Grammar(GrammarKind.REGEX, "ddd")]


def test_too_many_at_once(server: Any, checker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "_n_waiting", 64)
    refused(server.complete(guided_regex="not now"), None, "too many grammars", status=503)
    assert server.complete(guided_regex="a first one", max_tokens=1).status_code == 200  # it is known


def test_compiling_does_not_hold_up_others(server: Any, checker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, may_go_on = checker._ask, threading.Event()
    monkeypatch.setattr(checker, "_ask", lambda grammar: may_go_on.wait(20) and ask(grammar))
    with server.connection() as raw:
        body = b'{"model":"tiny","prompt":"the","guided_regex":"slow","max_tokens":1}'
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        )
        raw.sendall(head % len(body) + body)
        server.wait_until(lambda: checker._n_waiting == 1)
        assert server.complete(max_tokens=1).status_code == 200
        may_go_on.set()
        assert raw.recv(100).startswith(b"HTTP/1.1 200")


def test_the_openai_client(server: Any) -> None:
    with openai.OpenAI(base_url=f"{server.base}/v1", api_key="none") as client:
        answer = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=4,
            response_format=json_schema(PERSON),  # type: ignore[arg-type]
        )
        assert answer.choices[0].finish_reason == "length"
        assert server.engine.seen[-1].params.grammar == Grammar.json_schema(PERSON)


def test_the_description_has_the_fields(server: Any) -> None:
    document = server.http.get("/openapi.json").json()
    for path in ("/v1/completions", "/v1/chat/completions"):
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert {"response_format", "structured_outputs", "guided_json"} <= set(schema["properties"])
