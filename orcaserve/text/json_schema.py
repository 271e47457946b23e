"""JSON schemas as the grammar compiler is given them: without what says nothing, and without what it would not keep.

The rule is that every text of the grammar validates against the client's schema. So a keyword that asserts something
and is not supported is refused by name; one that asserts nothing (a title, a vendor's own) is left out; and where the
compiler's own idea of a format is wider than the standard's, a pattern takes its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.text.writable import Writable

UNWRITABLE = "the model's tokens cannot write what the grammar asks for"

# One blank, or a new line with some indentation: room to read by, and no room to go on forever.
WHITESPACE = r" |\n {0,16}"
OPTIONS = {"whitespace_pattern": WHITESPACE, "lenient": False, "coerce_one_of": False}
MAX_DEPTH = 64  # schemas inside of schemas
MAX_REPEAT = 2**13  # of items, of properties, of characters: what is counted costs states

_ONE = ("items", "additionalItems", "additionalProperties")
_SEVERAL = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_PLAIN = frozenset(
    (
        *("type", "const", "enum", "$ref", "required", "pattern", "format", "minimum", "maximum", "exclusiveMinimum"),
        *("exclusiveMaximum", "multipleOf", "$id", "$anchor", "$schema", "id"),
    )
)
_COUNTS = frozenset(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"))
# They assert something, and no grammar is made of them.
REFUSED = frozenset(
    (
        *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames"),
        *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties"),
        *("$dynamicRef", "$recursiveRef", "extends", "disallow", "divisibleBy"),
    )
)

_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_NOT_ZERO = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
DATE = (
    rf"(?:{_NOT_ZERO}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
# Formats whose patterns are ours: no day that there is not, no leap second, letters as RFC 3339 recommends them.
PATTERNS = {"date": DATE, "time": TIME, "date-time": f"{DATE}T{TIME}"}
COMPILED = frozenset(("duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
# The standard's others: validators may know them, so they are not passed over. Names that it does not have are.
UNKNOWN = frozenset(
    (
        *("idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template", "json-pointer"),
        *("relative-json-pointer", "regex"),
    )
)
MAX_HOSTNAME = 253  # characters


TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
EVERYTHING = Writable()
MAX_POINTER = 100  # characters of a client's own words in an error


def prepare(schema: Any, writable: Writable = EVERYTHING) -> dict[str, Any]:
    """The schema for the compiler. Raises InvalidRequest (for the field `grammar`): the keyword at fault, and where."""
    if schema is True:
        return {"x-guidance": OPTIONS}
    if not isinstance(schema, dict):
        raise refused("a JSON schema must be an object")
    prepared = _Preparing(writable).schema(schema, "", 1)
    if prepared is False:
        raise refused(UNWRITABLE)
    return {**prepared, "x-guidance": OPTIONS}


def refused(message: str) -> InvalidRequest:
    return InvalidRequest("grammar", message, code="invalid_grammar")


def pointer(at: str, *names: str | int) -> str:
    """A JSON pointer, to something within what `at` points to."""
    return at + "".join("/" + str(name).replace("~", "~0").replace("/", "~1") for name in names)


def shown(at: str) -> str:
    """A JSON pointer, fit for an error: names are a client's own."""
    plain = "".join(character if character.isprintable() else "\ufffd" for character in at)
    return f"(at {plain if len(plain) <= MAX_POINTER else plain[: MAX_POINTER - 1] + '…'})" if plain else "(at the top)"


class _Preparing:
    """Of one schema, and those within it. at: where it is, as a JSON pointer."""

    def __init__(self, writable: Writable) -> None:
        self._writable = writable

    def schema(self, schema: Any, at: str, depth: int) -> Any:
        """False if no text that can be written fits it."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise refused(f"each schema within a JSON schema must be an object, true or false {shown(at)}")
        if depth > MAX_DEPTH:
            raise refused(f"the schema is nested deeper than {MAX_DEPTH} levels")
        kept: dict[str, Any] = {}
        for keyword, value in schema.items():
            here = pointer(at, keyword)
            if keyword in REFUSED:
                if (keyword, value) != ("uniqueItems", False):
                    raise refused(f"the schema keyword {keyword} is not supported {shown(here)}")
            elif keyword in _PLAIN:
                _check_plain(keyword, value, here)
                kept[keyword] = value
            elif keyword in _COUNTS:
                kept[keyword] = _count(keyword, value, here)
            elif keyword in _SEVERAL or (keyword == "items" and isinstance(value, list)):
                listed = _checked(keyword, value, list, here)
                kept[keyword] = [self.schema(one, pointer(here, i), depth + 1) for i, one in enumerate(listed)]
            elif keyword in _NAMED:
                named = _checked(keyword, value, dict, here)
                kept[keyword] = {name: self.schema(one, pointer(here, name), depth + 1) for name, one in named.items()}
            elif keyword in _ONE:
                kept[keyword] = self.schema(value, here, depth + 1)
        _check_required(kept, at)
        _replace_format(kept, at)
        return kept if self._take_out(kept) else False

    def _take_out(self, schema: dict[str, Any]) -> bool:
        """What cannot be written. False if nothing is left."""
        if "enum" in schema:
            schema["enum"] = [value for value in schema["enum"] if self._can_write(value)]
            if not schema["enum"]:
                return False
        if "const" in schema and not self._can_write(schema["const"]):
            return False
        for name in {**schema.get("properties", {}), **dict.fromkeys(schema.get("required", ()))}:
            if not self._can_write(name):
                schema["properties"] = {**schema.get("properties", {}), name: False}
        if self._writable.may_lack(schema.get("pattern", "")):
            _add(schema, "pattern", f"^{self._writable.patterns[1]}$")
        return True

    def _can_write(self, value: Any) -> bool:
        return self._writable.can_write(json.dumps(value, ensure_ascii=False))


def _check_plain(keyword: str, value: Any, at: str) -> None:
    """That its value is what the keyword's has to be."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    types = value if isinstance(value, list) else [value]
    if keyword == "type" and not (types and all(one in TYPES for one in types)):
        expected = f"one of {', '.join(TYPES)}, or a list of them"
    elif keyword == "enum" and not (isinstance(value, list) and value):
        expected = "a list of one value or more"
    elif keyword in ("pattern", "$ref", "format") and not isinstance(value, str):
        expected = "a text"
    elif keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") and not number:
        if keyword.startswith("exclusive") and isinstance(value, bool):  # as in an old draft
            return
        expected = "a number"
    elif keyword == "multipleOf" and not (number and value > 0):
        expected = "a number greater than 0"
    elif keyword == "required" and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        expected = "a list of names"
    else:
        return
    raise refused(f"the JSON schema is not valid: the schema keyword {keyword} must hold {expected} {shown(at)}")


def _checked(keyword: str, value: Any, kind: type, at: str) -> Any:
    if not isinstance(value, kind):
        expected = "a list" if kind is list else "an object"
        raise refused(f"the JSON schema is not valid: the schema keyword {keyword} must hold {expected} {shown(at)}")
    return value


def _count(keyword: str, value: Any, at: str) -> int:
    """A float that is whole is an integer in JSON schema."""
    whole = isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer()
    if not whole or not 0 <= value <= MAX_REPEAT:
        raise refused(f"the schema keyword {keyword} must be an integer from 0 to {MAX_REPEAT} {shown(at)}")
    return int(value)


def _check_required(schema: Mapping[str, Any], at: str) -> None:
    """Names of properties that a schema does not list may be written twice, so they cannot be counted."""
    if schema.get("minProperties", 0) > max(1, len(set(schema.get("required", [])))):
        raise refused(
            "the schema keyword minProperties is supported up to 1, and up to the number of required ones "
            + shown(pointer(at, "minProperties"))
        )


def _replace_format(schema: dict[str, Any], at: str) -> None:
    name = schema.pop("format", None)
    if name in UNKNOWN:
        raise refused(f"the schema format {name} is not supported {shown(pointer(at, 'format'))}")
    if name in PATTERNS:
        _add(schema, "pattern", f"^(?:{PATTERNS[name]})$")
    elif name in COMPILED:
        schema["format"] = name
        if name == "hostname":
            _add(schema, "maxLength", MAX_HOSTNAME, min)


def _add(schema: dict[str, Any], keyword: str, value: Any, merge: Callable[[Any, Any], Any] | None = None) -> None:
    """One more assertion of a kind that the schema may have already."""
    if keyword not in schema:
        schema[keyword] = value
    elif merge is not None:
        schema[keyword] = merge(schema[keyword], value)
    else:
        schema["allOf"] = [*schema.get("allOf", ()), {keyword: value}]


def schemas_within(schema: Any, at: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A prepared schema and those within it, each with its JSON pointer."""
    if not isinstance(schema, dict):
        return
    yield at, schema
    for keyword, value in schema.items():
        here = pointer(at, keyword)
        if keyword in _NAMED:
            for name, one in value.items():
                yield from schemas_within(one, pointer(here, name))
        elif isinstance(value, list) and (keyword in _SEVERAL or keyword == "items"):
            for i, one in enumerate(value):
                yield from schemas_within(one, pointer(here, i))
        elif keyword in _ONE:
            yield from schemas_within(value, here)
