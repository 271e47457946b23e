"""What is left of a schema: all that asserts something, or a refusal that names it."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

import pytest

from orcaserve.core import InvalidRequest
from orcaserve.text.json_schema import DATE, MAX_DEPTH, OPTIONS, PATTERNS, REFUSED, TIME, UNKNOWN, prepare


def prepared(schema: Any) -> dict[str, Any]:
    result = prepare(schema)
    assert result.pop("x-guidance") == OPTIONS
    return result


def refusal(schema: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        prepare(schema)
    assert (caught.value.field, caught.value.code) == ("grammar", "invalid_grammar")
    return caught.value.message


def test_what_asserts_something_stays_as_it_is() -> None:
    schema = {
        "type": ["object", "null"],
        "properties": {"a": {"type": "string", "minLength": 1, "pattern": "^a"}, "b": True},
        "required": ["a"],
        "additionalProperties": {"anyOf": [{"const": 1}, {"enum": [2, "x"]}, {"$ref": "#/$defs/c"}]},
        "$defs": {
            "c": {"allOf": [{"type": "array", "items": {"multipleOf": 2}, "prefixItems": [False], "maxItems": 3}]}
        },
    }
    assert prepared(schema) == schema
    assert list(prepared(schema)["properties"]) == ["a", "b"], "their order is the text's"
    assert prepared(True) == prepared({}) == {}


def test_what_asserts_nothing_is_left_out() -> None:
    noise = {
        "title": "T",
        "description": "D",
        "default": 1,
        "examples": [1],
        "deprecated": True,
        "x-order": 1,
        "$comment": "",
    }
    schema = {"type": "array", "items": {"type": "null"}}
    assert prepared({**schema, **noise, "items": {"type": "null", **noise}}) == schema
    assert prepared({"x-guidance": {"lenient": True}, "uniqueItems": False}) == {}


@pytest.mark.parametrize("keyword", sorted(REFUSED))
def test_what_is_not_supported_is_named_wherever_it_stands(keyword: str) -> None:
    bad = {keyword: {}}
    places: dict[str, Any] = {
        "": bad,
        "/items": {"items": bad},
        "/properties/a": {"properties": {"a": bad}},
        "/anyOf/1": {"anyOf": [{}, bad]},
        "/$defs/a": {"$defs": {"a": bad}},
        "/items/0": {"items": [bad]},
        "/additionalProperties": {"additionalProperties": bad},
        "/patternProperties/a": {"patternProperties": {"a": bad}},
        "/prefixItems/0": {"prefixItems": [bad]},
    }
    for at, schema in places.items():
        assert f"the schema keyword {keyword} is not supported (at {at}/{keyword})" == refusal(schema)


@pytest.mark.parametrize("keyword", sorted(REFUSED))
def test_names_of_properties_are_no_keywords(keyword: str) -> None:
    schema = {"properties": {keyword: {"type": "null"}}, "required": [keyword], "const": {keyword: 1}}
    assert prepared(schema) == schema


@pytest.mark.parametrize("value", [-1, 1.5, "1", None, True, 2**13 + 1, 1e300, float("inf")])
def test_counts(value: Any) -> None:
    assert "must be an integer from 0 to 8192" in refusal({"minLength": value})


def test_counts_may_be_written_as_floats() -> None:
    assert prepared({"maxItems": 3.0}) == {"maxItems": 3} and type(prepared({"maxItems": 3.0})["maxItems"]) is int


def test_depth() -> None:
    def nested(depth: int) -> Any:
        return {"items": nested(depth - 1)} if depth > 1 else {}

    prepare(nested(MAX_DEPTH))
    assert "nested deeper than 64 levels" in refusal(nested(MAX_DEPTH + 1))


def test_formats() -> None:
    assert prepared({"format": "uuid"}) == {"format": "uuid"}
    assert prepared({"format": "colour", "minLength": 1}) == {"minLength": 1}
    assert prepared({"format": "hostname"}) == {"format": "hostname", "maxLength": 253}
    assert prepared({"format": "hostname", "maxLength": 9}) == {"format": "hostname", "maxLength": 9}
    assert prepared({"format": "date"}) == {"pattern": f"^(?:{PATTERNS['date']})$"}
    both = prepared({"format": "date", "pattern": "^2", "allOf": [{"maxLength": 20}]})
    assert both == {"pattern": "^2", "allOf": [{"maxLength": 20}, {"pattern": f"^(?:{PATTERNS['date']})$"}]}
    for name in UNKNOWN:
        assert refusal({"items": {"format": name}}) == f"the schema format {name} is not supported (at /items/format)"


def test_every_day_there_is_and_no_other() -> None:
    for year in (1, 4, 99, 100, 400, 1900, 1999, 2000, 2023, 2024, 2100, 9999):
        for month in range(14):
            for day in range(33):
                text = f"{year:04}-{month:02}-{day:02}"
                try:
                    datetime.date.fromisoformat(text)
                    real = True
                except ValueError:
                    real = False
                assert bool(re.fullmatch(DATE, text)) == real, text
    assert not re.fullmatch(DATE, "0000-01-01") and not re.fullmatch(DATE, "0000-02-29")


@pytest.mark.parametrize("text", ["00:00:00Z", "23:59:59.123456+23:59", "12:30:45-00:30"])
def test_times(text: str) -> None:
    assert re.fullmatch(TIME, text)
    datetime.time.fromisoformat(text)


@pytest.mark.parametrize(
    "text", ["24:00:00Z", "23:59:60Z", "12:30:45", "12:30Z", "1:00:00Z", "00:00:00.Z", "00:00:00z"]
)
def test_no_times(text: str) -> None:
    assert not re.fullmatch(TIME, text)


@pytest.mark.parametrize("schema", [None, 1, "x", [], False])
def test_no_schemas(schema: Any) -> None:
    assert "must be an object" in refusal(schema)
    json.dumps(schema)
