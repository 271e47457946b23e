"""Compiler: from a Grammar to something that says, token after token, what may come next. The only place of llguidance.

A grammar comes from a client. What compiling it and following it may cost is bounded by LIMITS: numbers of states,
items and symbols, not seconds, so that a grammar which compiles on one machine does so on all. Texts of errors are
ours: those of the library hold pieces of the grammar.
"""

from __future__ import annotations

import json
import re
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

from orcaserve.core.grammar import Grammar, GrammarKind
from orcaserve.text.json_schema import prepare, refused
from orcaserve.text.vocabulary import Vocabulary

LIMITS = LLParserLimits(
    max_items_in_row=1000,
    initial_lexer_fuel=500_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_lexer_states=10_000,
    max_grammar_size=50_000,
    verbose_errors=False,
)
# Texts of tokens are what decides, not how the tokenizer would have cut them: so the library never has to tokenize.
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'
# Parts of a Lark grammar that may hold anything, and the mark that a JSON schema follows.
_PART = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?![/*])(?:[^/\\\n]|\\.)+/|//[^\n]*|#[^\n]*|%json\s*(?=\{)')
_LINE = re.compile(r"\b(?:line |at )?(\d+)\(\d+\)")
_JSON = json.JSONDecoder()

TOO_COMPLEX = "the grammar is too complex"
UNWRITABLE = "the model's tokens cannot write what the grammar asks for"


class Compiler:
    """Compiles grammars over one vocabulary. From any thread, several at a time.

    Raises ValueError for a vocabulary without a token that ends a text.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.eos_ids:
            raise ValueError("no token ends a text")
        self.vocabulary = vocabulary
        self.eos_id = min(vocabulary.eos_ids)
        self._tokenizer = LLTokenizer(_Wrapper(vocabulary, self.eos_id))  # type: ignore[arg-type]

    def compile(self, grammar: Grammar) -> LLMatcher:
        """At the beginning of its texts. Raises InvalidRequest, for the field `grammar`."""
        matcher = LLMatcher(self._tokenizer, _as_lark(grammar), log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise refused(_explain(grammar.kind, matcher.get_error()))
        matcher.compute_bitmask()  # what the first step finds out stays known to all copies
        if matcher.is_error():
            raise refused(failure_of(matcher))
        return matcher


def failure_of(matcher: LLMatcher) -> str:
    """Of a matcher that was begun and cannot go on: why, fit to show to a client."""
    return UNWRITABLE if matcher.get_error().startswith("NoExtension") else TOO_COMPLEX


class _Wrapper:
    """A vocabulary as the library wants it."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary, eos_id: int) -> None:
        self.tokens = list(vocabulary.texts)
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.eos_token_id = eos_id
        self.bos_token_id = None

    def __call__(self, text: bytes | str) -> list[int]:
        raise NotImplementedError("nothing is forced, so nothing has to be tokenized")


def _as_lark(grammar: Grammar) -> str:
    """In the notation of the library. Raises InvalidRequest."""
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        try:
            schema = json.loads(grammar.text)
        except (ValueError, RecursionError) as error:
            raise refused("the JSON schema is not valid JSON") from error
        return f"start: %json {_dumped(prepare(schema))}{_OPTIONS}"
    if grammar.kind is GrammarKind.REGEX:
        return f"start: /{regex_to_lark(grammar.text, '')}/{_OPTIONS}"
    if grammar.text.lstrip()[:1] in ("{", "["):  # another notation of the library's, which has no such limits
        raise refused(_explain(GrammarKind.LARK, ""))
    return _with_prepared_schemas(grammar.text) + _OPTIONS


def _with_prepared_schemas(lark: str) -> str:
    """What holds for JSON schemas holds for those within a Lark grammar, after `%json`."""
    parts, at = [], 0
    while match := _PART.search(lark, at):
        parts.append(lark[at : match.end()])
        at = match.end()
        if match[0].startswith("%json"):
            try:
                schema, at = _JSON.raw_decode(lark, at)
            except (ValueError, RecursionError) as error:
                raise refused("a JSON schema in the grammar is not valid JSON") from error
            parts.append(_dumped(prepare(schema)))
    return "".join(parts) + lark[at:]


def _dumped(schema: Any) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _explain(kind: GrammarKind, error: str) -> str:
    """The library's error in words of ours."""
    error = error.partition("\n")[0]  # pieces of the grammar follow
    if "Unsatisfiable schema" in error:
        return "nothing fits the schema"
    if any(word in error for word in ("too complex", "limit", "fuel", "too large", "too many")):
        return TOO_COMPLEX
    if kind is GrammarKind.REGEX:
        return "the regular expression is not valid, or looks around or back, which is not supported"
    if "oneOf constraints" in error:
        return "the schema keyword oneOf is supported where its schemas plainly exclude each other, and not here"
    if kind is GrammarKind.JSON_SCHEMA:
        return "the JSON schema is not valid, refers to something that is not there, or cannot be made a grammar of"
    line = _LINE.search(error)
    return "the grammar is not valid in Lark's notation" + (f": line {line[1]}" if line else "")
