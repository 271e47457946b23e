"""Grammar: which texts a request may generate."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MAX_GRAMMAR_LENGTH = 2**16  # characters


class GrammarKind(Enum):
    JSON_SCHEMA = "json_schema"  # text: a JSON schema
    REGEX = "regex"  # text: a regular expression that the whole output matches
    LARK = "lark"  # text: a context-free grammar in Lark's notation, as llguidance reads it


@dataclass(frozen=True, slots=True)
class Grammar:
    """The output of a request is a text of this language, then a token that ends it."""

    kind: GrammarKind
    text: str
