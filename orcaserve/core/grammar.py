"""Grammar: which texts a request may generate."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from orcaserve.core.errors import InvalidRequest

MAX_GRAMMAR_LENGTH = 2**16  # characters


class GrammarKind(Enum):
    JSON_SCHEMA = "json_schema"  # text: a JSON schema
    REGEX = "regex"  # text: a regular expression that the whole output matches
    LARK = "lark"  # text: a context-free grammar in Lark's notation, as llguidance reads it


@dataclass(frozen=True, slots=True)
class Grammar:
    """The output of a request is a text of this language, then a token that ends it.

    Its size is checked on construction; whether it is a grammar at all shows when it is compiled (orcaserve.text).
    """

    kind: GrammarKind
    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.kind, GrammarKind) or not isinstance(self.text, str):
            raise InvalidRequest("grammar", "grammar must have a kind and a text", code="invalid_type")
        if not 1 <= len(self.text) <= MAX_GRAMMAR_LENGTH:
            raise InvalidRequest("grammar", f"a grammar must have 1 to {MAX_GRAMMAR_LENGTH} characters")

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool) -> Grammar:
        """Texts that are JSON and validate against `schema`; properties come in the schema's order."""
        return cls(GrammarKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False, separators=(",", ":")))

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        return cls(GrammarKind.REGEX, pattern)

    @classmethod
    def lark(cls, grammar: str) -> Grammar:
        return cls(GrammarKind.LARK, grammar)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Grammar:
        """One of some texts, to the letter."""
        if not texts:
            raise InvalidRequest("grammar", "a choice must have at least one text")
        return cls(GrammarKind.LARK, "start: " + " | ".join(map(json.dumps, texts)))
