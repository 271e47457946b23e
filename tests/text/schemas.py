"""JSON schemas: hard ones by hand, and random ones."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}

HARD: dict[str, Any] = {
    "nothing": {},
    "any object": {"type": "object"},
    "person": PERSON,
    "nested": {
        "type": "object",
        "properties": {
            "a": {
                "type": "object",
                "properties": {
                    "b": {
                        "type": "object",
                        "properties": {"c": {"type": "array", "items": {"enum": [1, "two", None, 3.5]}, "maxItems": 4}},
                        "required": ["c"],
                        "additionalProperties": False,
                    }
                },
                "required": ["b"],
                "additionalProperties": False,
            }
        },
        "required": ["a"],
        "additionalProperties": False,
    },
    "enum": {"enum": ["red", "blüe", "", 'quo"te', "back\\slash", "tab\t", 0, -1.5, True, None, [1], {"a": 1}]},
    "const": {"const": {"kind": "x", "list": [1, 2, {"y": None}]}},
    "types": {"type": ["string", "integer", "null"], "maxLength": 3},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{3}(-[a-z]+)?$"},
    "pattern within": {"type": "string", "pattern": "ab+c", "maxLength": 20},
    "pattern of alternatives": {"type": "string", "pattern": "^cat|dog$", "maxLength": 12},
    "pattern of classes": {"type": "string", "pattern": r"^\d{1,3}\s\w+\.$", "maxLength": 14},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "hostname": {"type": "string", "format": "hostname"},
    "uri": {"type": "string", "format": "uri", "maxLength": 40},
    "duration": {"type": "string", "format": "duration"},
    "date with a pattern": {"type": "string", "format": "date", "pattern": "^20"},
    "a format of the client's own": {"type": "string", "format": "colour", "maxLength": 5},
    "ref": {
        "$defs": {"point": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}], "items": False,
                            "minItems": 2}},
        "type": "object",
        "properties": {"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}},
        "required": ["from", "to"],
        "additionalProperties": False,
    },
    "definitions": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"n": {"type": "integer", "minimum": -5, "exclusiveMaximum": 5}},
        "type": "array",
        "items": {"$ref": "#/definitions/n"},
        "maxItems": 5,
    },
    "recursion": {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
                },
                "required": ["value"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    },
    "anyOf": {
        "anyOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}},
             "required": ["kind", "x"], "additionalProperties": False},
            {"type": "object", "properties": {"kind": {"const": "b"}, "y": {"type": "string", "maxLength": 4}},
             "required": ["kind", "y"], "additionalProperties": False},
            {"type": "null"},
        ]
    },
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 4}]},
    "allOf": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 9}, "b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
    "minItems": {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 6},
    "prefixItems": {"type": "array", "prefixItems": [{"const": 1}, {"type": "string", "maxLength": 3}],
                    "items": {"type": "null"}, "maxItems": 5},
    "additionalProperties": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"],
                             "additionalProperties": {"type": "boolean"}},
    "a map": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 3},
    "patternProperties": {"type": "object", "patternProperties": {"^x_": {"type": "integer"}, "^y_": {"type": "null"}},
                          "additionalProperties": False},
    "unicode": {
        "type": "object",
        "properties": {"naïve": {"enum": ["汉字", "🦙", "é"]}, "ключ": {"type": "string", "maxLength": 3}},
        "required": ["naïve", "ключ"],
        "additionalProperties": False,
    },
    "names like keywords": {
        "type": "object",
        "properties": {"not": {"type": "integer"}, "format": {"type": "boolean"}, "x-guidance": {"type": "null"}},
        "required": ["not", "format", "x-guidance"],
        "additionalProperties": False,
    },
    "optional": {
        "type": "object",
        "properties": {name: {"type": "integer", "minimum": 0, "maximum": 9} for name in "abcdef"},
        "additionalProperties": False,
    },
    "numbers": {"type": "array", "items": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2.25}, "maxItems": 4},
    "multiples": {"type": "array", "items": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 200},
                  "maxItems": 4},
    "described": {
        "title": "Answer", "description": "…", "type": "object", "x-order": 3, "deprecated": False,
        "properties": {"a": {"type": "integer", "default": 1, "examples": [1], "title": "A", "nullable": True}},
    },
}  # fmt: skip

# Not every vocabulary has the bytes of such characters.
_ODD = st.text(st.sampled_from("a\x04\x7f\U00040000\U00080000\U0010ffff"), min_size=1, max_size=3)
_SIMPLE = st.one_of(
    st.just({"type": "null"}),
    st.just({"type": "boolean"}),
    st.builds(lambda low, span: {"type": "integer", "minimum": low, "maximum": low + span},
              st.integers(-1000, 1000), st.integers(0, 500)),
    st.builds(lambda low, span: {"type": "number", "minimum": low, "maximum": low + span},
              st.sampled_from([-3.5, -1, 0, 0.25, 10]), st.sampled_from([0.5, 1, 12.75, 1000])),
    st.builds(lambda low, span: {"type": "string", "minLength": low, "maxLength": low + span},
              st.integers(0, 3), st.integers(0, 6)),
    st.builds(lambda pattern: {"type": "string", "pattern": pattern},
              st.sampled_from(["^a+$", "^[a-c]{2,4}$", "^(foo|bar)(,(foo|bar)){0,2}$", "^[^x]{1,3}$", "^é?汉$"])),
    st.builds(lambda format: {"type": "string", "format": format},
              st.sampled_from(["date", "time", "date-time", "uuid", "ipv4"])),
    st.builds(lambda values: {"enum": values},
              st.lists(st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=4), min_size=1, max_size=4)),
    st.builds(lambda values: {"enum": values}, st.lists(_ODD, min_size=1, max_size=3)),
    st.builds(lambda text: {"type": "string", "pattern": f"^a?{text}?$"}, st.sampled_from(["\U00040000", "é"])),
)  # fmt: skip


def _object(names: list[str], inner: list[Any], required: list[bool], more: Any) -> dict[str, Any]:
    properties = dict(zip(names, inner, strict=False))
    needed = [name for name, yes in zip(properties, required, strict=False) if yes]
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": more}


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(lambda items, low, span: {"type": "array", "items": items, "minItems": low, "maxItems": low + span},
                  inner, st.integers(0, 2), st.integers(0, 2)),
        st.builds(_object, st.lists(st.text("ab\"\\é ", min_size=1, max_size=4), unique=True, max_size=4),
                  st.lists(inner, min_size=4, max_size=4), st.lists(st.booleans(), min_size=4, max_size=4),
                  st.just(False) | inner),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda first, rest: {"type": "array", "prefixItems": first, "items": rest,
                                       "minItems": len(first), "maxItems": len(first) + 1},
                  st.lists(inner, min_size=1, max_size=2), inner),
    )  # fmt: skip


RANDOM = st.recursive(_SIMPLE, _larger, max_leaves=8)
