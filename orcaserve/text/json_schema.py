"""JSON schemas as the grammar compiler is given them: without what says nothing, and without what it would not keep.

The rule is that every text of the grammar validates against the client's schema. So a keyword that asserts something
and is not supported is refused by name; one that asserts nothing (a title, a vendor's own) is left out; and where the
compiler's own idea of a format is wider than the standard's, a pattern takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orcaserve.core.errors import InvalidRequest

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


def prepare(schema: Any) -> dict[str, Any]:
    """The schema for the compiler. Raises InvalidRequest (for the field `grammar`) with the keyword at fault."""
    if schema is True:
        return {"x-guidance": OPTIONS}
    if not isinstance(schema, dict):
        raise refused("a JSON schema must be an object")
    return {**_schema(schema, 1), "x-guidance": OPTIONS}


def refused(message: str) -> InvalidRequest:
    return InvalidRequest("grammar", message, code="invalid_grammar")


def _schema(schema: Any, depth: int) -> Any:
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise refused("each schema within a JSON schema must be an object, true or false")
    if depth > MAX_DEPTH:
        raise refused(f"the schema is nested deeper than {MAX_DEPTH} levels")
    kept: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in REFUSED:
            if (keyword, value) != ("uniqueItems", False):
                raise refused(f"the schema keyword {keyword} is not supported")
        elif keyword in _PLAIN:
            kept[keyword] = value
        elif keyword in _COUNTS:
            kept[keyword] = _count(keyword, value)
        elif keyword in _SEVERAL or (keyword == "items" and isinstance(value, list)):
            kept[keyword] = [_schema(one, depth + 1) for one in _checked(keyword, value, list)]
        elif keyword in _NAMED:
            named = _checked(keyword, value, dict)
            kept[keyword] = {name: _schema(one, depth + 1) for name, one in named.items()}
        elif keyword in _ONE:
            kept[keyword] = _schema(value, depth + 1)
    _check_required(kept)
    _replace_format(kept)
    return kept


def _checked(keyword: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise refused(f"the schema keyword {keyword} must hold {'a list' if kind is list else 'an object'}")
    return value


def _count(keyword: str, value: Any) -> int:
    """A float that is whole is an integer in JSON schema."""
    whole = isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer()
    if not whole or not 0 <= value <= MAX_REPEAT:
        raise refused(f"the schema keyword {keyword} must be an integer from 0 to {MAX_REPEAT}")
    return int(value)


def _check_required(schema: Mapping[str, Any]) -> None:
    """Names of properties that a schema does not list may be written twice, so they cannot be counted."""
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise refused("the schema keyword required must hold a list of names")
    if schema.get("minProperties", 0) > max(1, len(set(required))):
        raise refused("the schema keyword minProperties is supported up to 1, and up to the number of required ones")


def _replace_format(schema: dict[str, Any]) -> None:
    name = schema.pop("format", None)
    if name in UNKNOWN:
        raise refused(f"the schema format {name} is not supported")
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
