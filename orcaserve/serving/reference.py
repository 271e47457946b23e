"""The API's description for people, as a page (`/docs`) and as Markdown (docs/api.md): both of `/openapi.json`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any

from orcaserve.serving.openapi import document

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Heading:
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


Block = Heading | Paragraph | Table
"""Texts have `code` between backquotes, and no other markup."""


def blocks(api: Mapping[str, Any]) -> Iterator[Block]:
    """The reference, in order."""
    info = api["info"]
    yield Heading(1, f"{info['title']} API")
    for text in info["description"].split("\n\n"):
        yield Paragraph(text)
    yield Heading(2, "Paths")
    operations = [(path, method, said) for path, item in api["paths"].items() for method, said in item.items()]
    yield Table(
        ("path", "", "protocol"),
        [(f"`{method.upper()} {path}`", said["summary"], said["tags"][0]) for path, method, said in operations],
    )
    for tag in dict.fromkeys(said["tags"][0] for _, _, said in operations):
        yield Heading(2, tag)
        for path, method, said in operations:
            if said["tags"][0] == tag:
                yield from _operation(path, method, said, api)
    yield Heading(2, "Objects")
    for name, schema in api["components"]["schemas"].items():
        yield Heading(3, name)
        if "description" in schema:
            yield Paragraph(schema["description"])
        yield _fields(schema)
    yield Heading(2, "Errors")
    yield Paragraph(
        '`{"error": {"message", "type", "param", "code"}}` with the protocols of OpenAI: `param` is the field that is '
        'wrong, or null; `code` is for programs. `{"error": "message"}` with Triton\'s, KServe\'s and TensorFlow '
        "Serving's."
    )
    yield Table(("status", "when"), list(api["x-errors"].items()))
    yield Table(
        ("code", "status", "when"),
        [(f"`{row['code']}`", ", ".join(map(str, row["status"])), row["when"]) for row in api["x-error-codes"]],
    )
    yield Heading(2, "Limits")
    yield Table(
        ("what", "limit", "past it"), [(limit["what"], limit["limit"], limit["past"]) for limit in api["x-limits"]]
    )


def _operation(path: str, method: str, said: Mapping[str, Any], api: Mapping[str, Any]) -> Iterator[Block]:
    yield Heading(3, f"`{method.upper()} {path}`")
    short = path.replace("/versions/{version}", "")
    if short != path and short in api["paths"]:
        yield Paragraph(f"The same as `{method.upper()} {short}`; the version is 1, the only one.")
        return
    yield Paragraph(said["summary"] + ("." if not said.get("description") else ". " + said["description"]))
    for place, title in (("path", "in the path"), ("query", "in the query"), ("header", "in the header")):
        named = [given for given in said.get("parameters", ()) if given["in"] == place]
        if named:
            rows = [(f"`{p['name']}`", in_words(p["schema"]), p.get("description", "")) for p in named]
            yield Table((title, "takes", ""), rows)
    for kind, content in said.get("requestBody", {}).get("content", {}).items():
        yield _fields(content["schema"], "field" if kind == "application/json" else f"field ({kind})", "takes")
    answers = said["responses"]["200"]["content"]
    told = [
        f"{'events' if kind == 'text/event-stream' else in_words(content['schema'])} (`{kind}`)"
        for kind, content in answers.items()
    ]
    yield Paragraph(f"Answers: {'; or '.join(told)}.")
    for content in answers.values():
        if content["schema"].get("description"):
            yield Paragraph(content["schema"]["description"])
        if "properties" in content["schema"]:
            yield _fields(content["schema"], "in the answer")
    errors = ", ".join(code for code in said["responses"] if code != "200")
    key = " Needs no API key." if said.get("security") == [] else ""
    yield Paragraph(f"Errors: {errors}.{key}")


def _fields(schema: Schema, title: str = "field", verb: str = "holds") -> Table:
    return Table((title, verb, ""), list(_rows("", schema)))


def _rows(prefix: str, schema: Schema) -> Iterator[tuple[str, ...]]:
    """A row for each field, and below it those of the objects in it."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        bare = field if name in required else _not_null(field)
        text = field.get("description", "")
        mark = " *" if name in required else ""
        yield (f"`{prefix}{name}`{mark}", in_words(bare), text)
        for inner in _objects(bare):
            yield from _rows(f"{prefix}{name}.", inner)


def _not_null(schema: Schema) -> Schema:
    """Without the null that stands for an absent field."""
    options = schema.get("anyOf", ())
    if len(options) == 2 and options[1] == {"type": "null"}:
        inner: Schema = options[0]
        return inner
    return schema


def _objects(schema: Schema) -> Iterable[Schema]:
    """Schemas of objects in a value, as far as no name stands for them."""
    for option in schema.get("anyOf", (schema,)):
        if "properties" in option:
            yield option
        elif "items" in option:
            yield from _objects(option["items"])


def in_words(schema: Schema) -> str:
    """What values a schema allows."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(in_words(option) for option in schema["anyOf"]))
    if "const" in schema:
        return f"`{_json(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return " or ".join(in_words({**schema, "type": kind}) for kind in kinds)
    if kinds is None:
        return "any value"
    words = {"array": f"list of {in_words(schema.get('items', {}))}", "string": "string"}.get(kinds, str(kinds))
    return words + _bounds(schema)


def _bounds(schema: Schema) -> str:
    for low, high, what in (
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
        ("minProperties", "maxProperties", " entries"),
    ):
        at_least, at_most = schema.get(low), schema.get(high)
        if at_least is not None and at_most is not None:
            return f", {at_least:g} to {at_most}{what}" if what else f" from {at_least} to {at_most}"
        if at_most is not None:
            return f", at most {at_most}{what}"
        if at_least is not None:
            return f", {at_least} or more{what}"
    return ""


def _json(value: Any) -> str:
    return "true" if value is True else str(value)


def markdown(api: Mapping[str, Any]) -> str:
    parts = []
    for block in blocks(api):
        match block:
            case Heading(level, text):
                parts.append(f"{'#' * level} {text}")
            case Paragraph(text):
                parts.append(text)
            case Table(head, rows):
                lines = [head, ("---",) * len(head), *rows]
                parts.append(
                    "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
                )
    return "\n\n".join(parts) + "\n"


@cache
def page() -> str:
    """As HTML; needs nothing from anywhere else."""
    parts = []
    for block in blocks(document()):
        match block:
            case Heading(level, text):
                parts.append(f"<h{level}>{_marked(text)}</h{level}>")
            case Paragraph(text):
                parts.append(f"<p>{_marked(text)}</p>")
            case Table(head, rows):
                titles = "".join(f"<th>{_marked(cell)}</th>" for cell in head)
                cells = ("".join(f"<td>{_marked(cell)}</td>" for cell in row) for row in rows)
                parts.append(f"<table><tr>{titles}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>")
    return _PAGE.replace("BODY", "\n".join(parts))


def _marked(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text, quote=False))


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>OrcaServe API</title>
<meta name="viewport" content="width=device-width">
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
:root{color-scheme:light dark}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.2rem .6rem;border-bottom:1px solid #8886;
vertical-align:top}h2{margin-top:3rem}h3{margin-top:2rem}</style>
BODY
<p>The same for programs: <a href="openapi.json">openapi.json</a>.</p></html>"""
