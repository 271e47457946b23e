"""Random texts of a grammar: what a model of no sense would write, token after token."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

import jsonschema
import numpy as np
from jsonschema.validators import validator_for
from numpy.typing import NDArray

from orcaserve.core import Grammar
from orcaserve.text.compiler import Compiler
from orcaserve.text.vocabulary import Vocabulary

CLOSING = (b'"', b"}", b"]", b",", b":")  # so that strings and lists come to an end


def walk(compiler: Compiler, grammar: Grammar, random: Random, most: int = 500) -> str | None:
    """A text of the grammar; None if it has not ended after so many tokens."""
    vocabulary, matcher, text = compiler.vocabulary, compiler.compile(grammar), b""
    closes = closing(vocabulary)
    for _ in range(most):
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        assert not matcher.is_error(), matcher.get_error()
        allowed = np.flatnonzero(np.unpackbits(mask, count=len(vocabulary.texts), bitorder="little"))
        assert len(allowed), f"there is no way on after {text!r}"
        ends = allowed[closes[allowed]]
        token = int(random.choice(ends if len(ends) and random.random() < 0.4 else allowed))
        if token in vocabulary.eos_ids:
            return text.decode()
        assert vocabulary.texts[token], "a token without a text is none of the grammar's"
        assert matcher.consume_token(token)
        text += vocabulary.texts[token]
    return None


@cache
def closing_ids(texts: tuple[bytes, ...], eos_ids: frozenset[int]) -> NDArray[np.bool_]:
    return np.array([i in eos_ids or text[:1] in CLOSING for i, text in enumerate(texts)])


def closing(vocabulary: Vocabulary) -> NDArray[np.bool_]:
    """Which ids end something."""
    return closing_ids(tuple(vocabulary.texts), vocabulary.eos_ids)


def check(text: str, schema: Any) -> None:
    """The text is JSON without doubt, and validates, formats included."""
    value = json.loads(text, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    kind = validator_for(schema, default=jsonschema.Draft202012Validator)
    kind(schema, format_checker=kind.FORMAT_CHECKER).validate(value)
