"""Vocabulary: what a model's token ids are, as far as grammars are concerned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids 0 .. len(texts) - 1, which are as many as the model's head has rows.

    texts: the bytes that each id adds to a text; none for ids that stand for nothing.
    special_ids: ids that are no text, whatever they are called. eos_ids: those of them that end a text.
    """

    texts: Sequence[bytes]
    special_ids: frozenset[int]
    eos_ids: frozenset[int]

    def to_json(self) -> str:
        texts = [text.decode("latin-1") for text in self.texts]
        return json.dumps([texts, sorted(self.special_ids), sorted(self.eos_ids)])

    @classmethod
    def from_json(cls, line: str | bytes) -> Vocabulary:
        texts, special_ids, eos_ids = json.loads(line)
        return cls([text.encode("latin-1") for text in texts], frozenset(special_ids), frozenset(eos_ids))
