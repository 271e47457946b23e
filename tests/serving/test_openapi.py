"""The API's description: whole, true to the code, and what the pages are made of."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import orcaserve
from orcaserve.serving.error_codes import CODES
from orcaserve.serving.fields import CHAT, COMPLETION
from orcaserve.serving.limits import LIMITS
from orcaserve.serving.openapi import ERRORS, document
from orcaserve.serving.reference import in_words, markdown, page
from orcaserve.serving.routes import ROUTES

PACKAGE = Path(orcaserve.__file__).parent
ROOT = PACKAGE.parent


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_the_document_holds_together() -> None:
    api = document()
    assert api["openapi"] == "3.1.0"
    for reference in references(api):
        assert reference.removeprefix("#/components/schemas/") in api["components"]["schemas"], reference
    for schema in api["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    names = [said["operationId"] for item in api["paths"].values() for said in item.values()]
    assert len(names) == len(set(names)) == len(ROUTES)
    for path, item in api["paths"].items():
        for method, said in item.items():
            assert said["summary"] and said["tags"]
            given = {p["name"] for p in said.get("parameters", ()) if p["in"] == "path"}
            assert given == set(re.findall(r"{(\w+)}", path))
            assert {"200", "400", "408", "431", "500"} <= set(said["responses"])
            assert ("401" in said["responses"]) == (said.get("security") != [])
            assert method in ("get", "post", "delete") and ("requestBody" not in said or method == "post")


def test_every_field_is_there() -> None:
    paths = document()["paths"]
    for path, fields in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert list(body["properties"]) == list(fields)


def test_pages_are_of_the_document() -> None:
    text, html = markdown(document()), page()
    for path, item in document()["paths"].items():
        for method in item:
            assert (
                f"### `{method.upper()} {path}`\n" in text and f"<h3><code>{method.upper()} {path}</code></h3>" in html
            )
    for name in (*COMPLETION, *CHAT):
        assert f"| `{name}`" in text and f"<code>{name}</code>" in html
    for limit in LIMITS:
        assert not limit.of_requests or f"| {limit.what} | {limit.value} | {limit.past} |" in text
    assert all(f"\n| {status} | " in text for status in ERRORS)
    assert all(f"\n| `{code}` | " in text for code in CODES)
    assert "<script" not in html and "{" not in re.sub(r"<style>.*?</style>|<code>.*?</code>", "", html, flags=re.S)


def told_fields() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every parameter, field of a body, and member of a named object, with its schema."""
    api = document()
    for path, item in api["paths"].items():
        for method, said in item.items():
            for parameter in said.get("parameters", ()):
                yield f"{method} {path}: {parameter['name']}", {**parameter["schema"], **parameter}
            for content in said.get("requestBody", {}).get("content", {}).values():
                yield from members(f"{method} {path}: ", content["schema"])
            for content in said["responses"]["200"]["content"].values():
                yield from members(f"{method} {path}: answer: ", content["schema"])
    for name, schema in api["components"]["schemas"].items():
        yield from members(f"{name}: ", schema)


def members(prefix: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for inner in schema.get("anyOf", ()):
        yield from members(prefix, inner)
    yield from members(prefix, schema["items"]) if "items" in schema else ()
    for name, member in schema.get("properties", {}).items():
        yield f"{prefix}{name}", member
        yield from members(f"{prefix}{name}.", member)


def test_every_field_says_what_it_means() -> None:
    fields = list(told_fields())
    assert len(fields) > 400
    assert [name for name, schema in fields if "const" not in schema and not schema.get("description")] == []


def codes_in_the_code() -> set[str]:
    """What the endpoint gives errors as their codes, wherever it makes one."""
    found: set[str] = set()
    for path in (*(PACKAGE / "serving").rglob("*.py"), *(PACKAGE / "core").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                given = [word.value for word in node.keywords if word.arg == "code"]
                position = CODE_AT.get(getattr(node.func, "id", ""))
                given += node.args[position : position + 1] if position is not None else []
            elif isinstance(node, ast.FunctionDef):
                names = [argument.arg for argument in node.args.args][-len(node.args.defaults) :]
                given = [value for name, value in zip(names, node.args.defaults, strict=False) if name == "code"]
            else:
                continue
            found |= {
                value.value for value in given if isinstance(value, ast.Constant) and isinstance(value.value, str)
            }
    return found


CODE_AT = {"InvalidRequest": 2, "cls": 2, "_wrong": 1, "Overloaded": 1}  # its place among the arguments
OF_THE_PROTOCOL = {"header_too_large", "bad_http"}  # by status, in http_protocol
OF_LINES = {"invalid_line", "line_too_long", "too_many_requests", "empty_file"}  # of a batch: see BatchError


def test_every_code_of_an_error_is_in_the_table() -> None:
    assert codes_in_the_code() - OF_LINES == set(CODES) - OF_THE_PROTOCOL
    lines = document()["components"]["schemas"]["BatchError"]["properties"]["code"]["description"]
    assert all(code in lines for code in OF_LINES)
    assert {status for code in CODES.values() for status in code.statuses} == set(ERRORS)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 5}, "integer from 1 to 5"),
        ({"type": "integer", "minimum": 0}, "integer, 0 or more"),
        ({"type": "string", "minLength": 1, "maxLength": 9}, "string, 1 to 9 characters"),
        ({"type": "array", "maxItems": 4, "items": {"type": "string"}}, "list of string, at most 4 items"),
        ({"type": "object", "maxProperties": 3}, "object, at most 3 entries"),
        ({"type": ["string", "null"]}, "string or null"),
        ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}, "string or list of integer"),
        ({"enum": ["a", "b"]}, "`a` or `b`"),
        ({"const": True}, "`true`"),
        ({"$ref": "#/components/schemas/X"}, "`X`"),
        ({}, "any value"),
    ],
)
def test_schemas_in_words(schema: dict[str, Any], words: str) -> None:
    assert in_words(schema) == words


# Limits

LIMITING = re.compile(r"(MAX|MIN)_\w+|\w+_SECONDS|MAX_SECONDS")
NO_LIMITS = {
    "endpoint.FAREWELL_SECONDS", "launcher.DUMP_SECONDS",  # of the end
    "http.DRAIN_SECONDS",  # within another row
    "observing.traces.MAX_WAITING", "observing.traces.MAX_TOGETHER", "observing.traces.MAX_CHOICES",  # of no client
    "door.LOOK_SECONDS",  # how often, not how much
    "batches.records.RETRY_SECONDS", "batches.run.LOOK_SECONDS",  # how often, not how much
    "supervisor.MAX_RESTARTS",  # one less than the row says
    "template_sandbox.MAX_ARGUMENT", "template_sandbox.MAX_INT_BITS", "template_sandbox.MAX_INDENT",
    "template_sandbox.MAX_DIGITS",  # of single operations inside a template
}  # fmt: skip
DESCRIBED = {"chat_template.MAX_SECONDS"}


def constants() -> dict[str, float]:
    """Numbers of modules of the endpoint, and of sampling settings, whose names say that they limit something."""
    found: dict[str, float] = {}
    for path in (*(PACKAGE / "serving").rglob("*.py"), PACKAGE / "core" / "sampling_params.py"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        names = [
            node.id
            for statement in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            for node in ast.walk(target)
            if isinstance(node, ast.Name) and LIMITING.fullmatch(node.id)
        ]
        loaded = importlib.import_module(f"orcaserve.{module}")
        found |= {f"{module.removeprefix('serving.')}.{name}": getattr(loaded, name) for name in names}
    return found


def test_every_limit_in_the_code_is_in_the_table() -> None:
    """By name: limits.py reads it. A new constant that limits something needs a row, or a reason above."""
    source = (PACKAGE / "serving" / "limits.py").read_text(encoding="utf-8")
    alias = {"files.api": "files", "batches.api": "batches", "core.sampling_params": "sampling"}
    missing = []
    for name in constants():
        module, _, constant = name.rpartition(".")
        short = alias.get(module, module.rpartition(".")[2])
        if f"{short}.{constant}" not in source and name not in NO_LIMITS and "MAX_TOKEN" not in name:
            missing.append(name)
    assert missing == []


def test_the_table_of_the_docs_is_the_codes() -> None:
    rows = [
        [cell.strip() for cell in line.strip("| \n").split(" | ")]
        for line in (ROOT / "docs" / "limits.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    by_name = {row[0]: row for row in rows}
    for limit in LIMITS:
        assert limit.what in by_name, f"docs/limits.md needs a row: {limit.what} | {limit.value} | {limit.past}"
        assert by_name[limit.what][1].startswith(limit.value), limit
        assert by_name[limit.what][2].startswith(limit.past), limit


def test_the_reference_is_up_to_date() -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    script = [str(ROOT / "scripts" / "gen-api"), "--check"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
