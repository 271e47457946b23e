"""Structured output: the fields of a request that say what its text must be, as one Grammar.

response_format       OpenAI's: text, json_object, json_schema
structured_outputs    vLLM's: json, json_object, regex, choice or grammar
guided_json, ...      the same under the names that they had before
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.core.grammar import MAX_GRAMMAR_LENGTH, Grammar
from orcaserve.serving.json_body import parse_object

MAX_TEXTS = 1024  # texts to choose from
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ANY_OBJECT = {"type": "object"}
# Members of structured_outputs that change what is generated and are not served, with what asks for nothing.
_UNSUPPORTED = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern", "structural_tag")


def read_grammar(body: Mapping[str, Any]) -> Grammar | None:
    """Raises InvalidRequest naming the field, also if several are given."""
    field = grammar_field(body)
    if field is None:
        return None
    try:
        return _READ[field](body[field])
    except InvalidRequest as error:
        raise InvalidRequest(field, error.message.replace("a grammar", field, 1), error.code) from error


def grammar_field(body: Mapping[str, Any]) -> str | None:
    """The field that asks for a grammar."""
    given = [name for name in _READ if _asks(name, body.get(name))]
    if len(given) > 1:
        raise InvalidRequest(given[1], f"{given[0]} and {given[1]} cannot be given together")
    return given[0] if given else None


def _asks(name: str, value: Any) -> bool:
    if name == "response_format":
        return value is not None and not (isinstance(value, dict) and value.get("type") == "text")
    return value is not None and value != {}


def _response_format(value: Any) -> Grammar:
    kind = _object(value, "response_format").get("type")
    if kind == "json_object":
        return Grammar.json_schema(_ANY_OBJECT)
    if kind != "json_schema":
        raise _wrong("the type of response_format must be text, json_object or json_schema")
    form = _object(value.get("json_schema"), "response_format.json_schema")
    name, strict, description = form.get("name"), form.get("strict"), form.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _wrong("response_format.json_schema.name must be 1 to 64 letters, digits, _ and -")
    if strict is not None and not isinstance(strict, bool):
        raise _wrong("response_format.json_schema.strict must be true or false", "invalid_type")
    if description is not None and not isinstance(description, str):
        raise _wrong("response_format.json_schema.description must be a string", "invalid_type")
    schema = form.get("schema")
    return Grammar.json_schema({} if schema is None else _object(schema, "response_format.json_schema.schema"))


def _structured_outputs(value: Any) -> Grammar:
    members = {k: v for k, v in _object(value, "structured_outputs").items() if v is not None and v is not False}
    for name in _UNSUPPORTED:
        if name in members:
            raise InvalidRequest(None, f"structured_outputs.{name} is not supported", code="unsupported_parameter")
    given = [name for name in _MEMBERS if name in members]
    if len(given) != 1:
        raise _wrong(f"structured_outputs must have one of {', '.join(_MEMBERS)}")
    return _MEMBERS[given[0]](members[given[0]])


def _json(value: Any) -> Grammar:
    """A schema, or its text."""
    if isinstance(value, str):
        if len(value) > MAX_GRAMMAR_LENGTH:
            raise _wrong(f"a schema must have at most {MAX_GRAMMAR_LENGTH} characters")
        try:
            value = parse_object(value.encode())
        except InvalidRequest as error:
            raise _wrong(error.message.replace("the body", "the schema")) from error
    return Grammar.json_schema(_object(value, "a JSON schema"))


def _json_object(value: Any) -> Grammar:
    if value is not True:
        raise _wrong("json_object must be true or false", "invalid_type")
    return Grammar.json_schema(_ANY_OBJECT)


def _regex(value: Any) -> Grammar:
    return Grammar.regex(_string(value, "a regular expression"))


def _choice(value: Any) -> Grammar:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise _wrong("choice must be a list of strings", "invalid_type")
    if not 1 <= len(value) <= MAX_TEXTS:
        raise _wrong(f"choice must have 1 to {MAX_TEXTS} strings")
    return Grammar.choice(value)


def _lark(value: Any) -> Grammar:
    return Grammar.lark(_string(value, "a grammar"))


_MEMBERS: dict[str, Callable[[Any], Grammar]] = {
    "json": _json,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _lark,
}
_READ: dict[str, Callable[[Any], Grammar]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": _json,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _lark,
}


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(f"{what} must be an object", "invalid_type")
    return value


def _string(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise _wrong(f"{what} must be a string", "invalid_type")
    return value


def _wrong(message: str, code: str = "invalid_value") -> InvalidRequest:
    return InvalidRequest(None, message, code)
