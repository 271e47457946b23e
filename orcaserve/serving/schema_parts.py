"""What schemas of answers are made of. Each takes what the value means, for people."""

from __future__ import annotations

from typing import Any

from orcaserve.serving.fields import Schema


def text(means: str, **more: Any) -> Schema:
    return {"type": "string", **more, "description": means}


def word(means: str, *words: str) -> Schema:
    """One of these texts."""
    return text(means, enum=list(words))


def maybe_text(means: str) -> Schema:
    return {"type": ["string", "null"], "description": means}


def count(means: str) -> Schema:
    return {"type": "integer", "minimum": 0, "description": means}


def number(means: str) -> Schema:
    return {"type": "number", "description": means}


def flag(means: str) -> Schema:
    return {"type": "boolean", "description": means}


def time(means: str) -> Schema:
    return count(f"{means}, in seconds since 1970.")


def maybe_time(means: str) -> Schema:
    return {"type": ["integer", "null"], "description": f"{means}, in seconds since 1970; null: not so far."}


def many(items: Schema, means: str) -> Schema:
    return {"type": "array", "items": items, "description": means}


def ids(means: str) -> Schema:
    return many({"type": "integer", "minimum": 0}, means)


def named(schema: str) -> Schema:
    """One that stands under this name."""
    return {"$ref": f"#/components/schemas/{schema}"}


def null_or(schema: Schema, means: str) -> Schema:
    return {"anyOf": [schema, {"type": "null"}], "description": means}


def record(means: str = "", /, **members: Schema) -> Schema:
    """An object that has all of these members."""
    said = {"description": means} if means else {}
    return {"type": "object", "properties": members, "required": list(members), **said}


def with_optional(schema: Schema, **members: Schema) -> Schema:
    """An object that may have these members as well."""
    return {**schema, "properties": {**schema["properties"], **members}}
