"""Compiler: from a Grammar to something that says, token after token, what may come next. The only place of llguidance.

A grammar comes from a client. What compiling it and following it may cost is bounded by LIMITS: numbers of states,
items and symbols, not seconds, so that a grammar which compiles on one machine does so on all. Texts of errors are
ours: those of the library hold pieces of the grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

from orcaserve.core.grammar import Grammar, GrammarKind
from orcaserve.text.json_schema import UNWRITABLE, pointer, prepare, refused, schemas_within, shown
from orcaserve.text.vocabulary import Vocabulary
from orcaserve.text.writable import Writable

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
_FLAGS = re.compile("[a-z]*")
_LINE = re.compile(r"\b(?:line |at )?(\d+)\(\d+\)")
_JSON = json.JSONDecoder()

ONE_OF = "the schema keyword oneOf is supported where its schemas plainly exclude each other, and not here"
_UNSATISFIABLE = {  # in the library's words: in ours
    "greater than": "a least value is greater than the greatest",
    "Regex is empty": "pattern, format and length exclude each other",
    "required property": "a required property can have no value",
    "incompatible types": "types that exclude each other are asked for at once",
}
TOO_COMPLEX = "the grammar is too complex"


class Compiler:
    """Compiles grammars over one vocabulary. From any thread, several at a time.

    Raises ValueError for a vocabulary without a token that ends a text.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.eos_ids:
            raise ValueError("no token ends a text")
        self.vocabulary = vocabulary
        self.eos_id = min(vocabulary.eos_ids)
        self._writable = Writable.of(vocabulary)
        self._tokenizer = LLTokenizer(_Wrapper(vocabulary, self.eos_id))  # type: ignore[arg-type]

    def compile(self, grammar: Grammar) -> LLMatcher:
        """At the beginning of its texts. Raises InvalidRequest, for the field `grammar`."""
        matcher = LLMatcher(self._tokenizer, _as_lark(grammar, self._writable), log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise refused(self._explain(grammar, matcher.get_error()))
        matcher.compute_bitmask()  # what the first step finds out stays known to all copies
        if matcher.is_error():
            raise refused(failure_of(matcher))
        return matcher

    def _explain(self, grammar: Grammar, error: str) -> str:
        """The library's error in words of ours."""
        if grammar.kind is not GrammarKind.JSON_SCHEMA:
            return _explain(grammar.kind, error)
        schema = json.loads(grammar.text)
        if "Unsatisfiable schema" in error and not self._writable.can_write(_dumped(schema)):
            return UNWRITABLE
        return _explain_schema(prepare(schema, self._writable), error)


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


def _as_lark(grammar: Grammar, writable: Writable) -> str:
    """In the notation of the library. Raises InvalidRequest."""
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        try:
            schema = json.loads(grammar.text)
        except (ValueError, RecursionError) as error:
            raise refused("the JSON schema is not valid JSON") from error
        return f"start: %json {_dumped(prepare(schema, writable))}{_OPTIONS}"
    if grammar.kind is GrammarKind.REGEX:
        pattern = f"/{regex_to_lark(grammar.text, '')}/"
        if writable.may_lack(grammar.text):
            return f"start: TEXT\nTEXT: {pattern} & /{writable.patterns[0]}/{_OPTIONS}"
        return f"start: {pattern}{_OPTIONS}"
    if grammar.text.lstrip()[:1] in ("{", "["):  # another notation of the library's, which has no such limits
        raise refused(_explain(GrammarKind.LARK, ""))
    return _prepared_lark(grammar.text, writable) + _OPTIONS


def _prepared_lark(lark: str, writable: Writable) -> str:
    """JSON schemas within it, after `%json`, are prepared as any; what it has of literals and patterns that cannot be
    written becomes terminals that lack it."""
    parts, at = [], 0
    terminals: list[str] = []
    name = "UNWRITABLE"
    while name in lark:
        name += "_"
    while match := _PART.search(lark, at):
        parts.append(lark[at : match.start()])
        part, at = match[0], match.end()
        if part.startswith("%json"):
            try:
                schema, at = _JSON.raw_decode(lark, at)
            except (ValueError, RecursionError) as error:
                raise refused("a JSON schema in the grammar is not valid JSON") from error
            part += _dumped(prepare(schema, writable))
        elif part[0] == '"' and not _can_write_literal(part, writable):
            at = _FLAGS.match(lark, at).end()  # type: ignore[union-attr]
            part = f"{name}{len(terminals)}"
            terminals.append("/a/ & /b/")  # nothing
        elif part[0] == "/" and part[:2] != "//" and not writable.can_write(part):
            flags = _FLAGS.match(lark, at)[0]  # type: ignore[index]
            at += len(flags)
            terminals.append(f"{part}{flags} & /{writable.patterns[0]}/")
            part = f"{name}{len(terminals) - 1}"
        parts.append(part)
    parts.append(lark[at:])
    return "".join(parts) + "".join(f"\n{name}{i}: {terminal}" for i, terminal in enumerate(terminals))


def _can_write_literal(literal: str, writable: Writable) -> bool:
    try:
        return writable.can_write(json.loads(literal))
    except ValueError:  # the library will say so
        return True


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
        return ONE_OF
    if kind is GrammarKind.JSON_SCHEMA or "failed to compile JSON schema" in error:
        return "the JSON schema is not valid, or no grammar can be made of it"
    line = _LINE.search(error)
    return "the grammar is not valid in Lark's notation" + (f": line {line[1]}" if line else "")


def _explain_schema(schema: Mapping[str, Any], error: str) -> str:
    """What is wrong with a prepared schema, and where if that can be told."""
    within = list(schemas_within(schema))
    if "Unsatisfiable schema" in error:
        why = next((words for theirs, words in _UNSATISFIABLE.items() if theirs in error), None)
        return "nothing fits the schema" + (f": {why}" if why else "")
    if "oneOf constraints" in error:
        places = [pointer(at, "oneOf") for at, one in within if "oneOf" in one]
        return f"{ONE_OF} {shown(places[0])}" if len(places) == 1 else ONE_OF
    for at, one in within:
        if "$ref" in one and not _is_there(schema, one["$ref"]):
            where = shown(pointer(at, "$ref"))
            return f"the schema keyword $ref refers to something that is not there, or not in the schema {where}"
        patterns = [(pointer(at, "pattern"), one["pattern"])] if "pattern" in one else []
        patterns += [(pointer(at, "patternProperties", name), name) for name in one.get("patternProperties", ())]
        for where, pattern in patterns:
            if LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(pattern), None, limits=LIMITS):
                return f"a pattern is not valid, or looks around or back, which is not supported {shown(where)}"
    return _explain(GrammarKind.JSON_SCHEMA, error)


def _is_there(schema: Any, reference: str) -> bool:
    if not reference.startswith("#"):
        return any(one.get(name) == reference for _, one in schemas_within(schema) for name in ("$id", "id"))
    if reference[1:2] not in ("", "/"):
        return any(one.get("$anchor") == reference[1:] for _, one in schemas_within(schema))
    for name in reference.split("/")[1:]:
        name = unquote(name).replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and name.isascii() and name.isdigit() and int(name) < len(schema):
            schema = schema[int(name)]
        elif isinstance(schema, dict) and name in schema:
            schema = schema[name]
        else:
            return False
    return True
