"""Whatever keeps to the masks is a text of the grammar; what is none, or too much of one, is refused in our words."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orcaserve.core import Grammar, InvalidRequest
from orcaserve.text.compiler import Compiler, failure_of
from orcaserve.text.tokenizer import Tokenizer
from orcaserve.text.vocabulary import Vocabulary

sys.path.insert(0, str(Path(__file__).parent))
from schemas import HARD, PERSON, RANDOM
from walks import check, walk

KINDS = ["byte_level", "byte_fallback", "default_tokenizer"]


@pytest.fixture(scope="session")
def compilers(byte_level: Tokenizer, byte_fallback: Tokenizer, default_tokenizer: Tokenizer) -> dict[str, Compiler]:
    def compiler(tokenizer: Tokenizer, *eos: int) -> Compiler:
        return Compiler(tokenizer.vocabulary(tokenizer.vocab_size + 5, frozenset(eos)))

    return {
        "byte_level": compiler(byte_level, 0, 2),
        "byte_fallback": compiler(byte_fallback, 2),
        "default_tokenizer": compiler(default_tokenizer, 2),
    }


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("kind", KINDS)
def test_hard_schemas(kind: str, name: str, compilers: dict[str, Compiler]) -> None:
    schema, whole = HARD[name], 0
    for seed in range(12):
        text = walk(compilers[kind], Grammar.json_schema(schema), Random(seed))
        if text is not None:
            check(text, schema)
            whole += 1
    assert whole >= 4, "too few of the texts came to an end to say anything"


@given(RANDOM, st.integers(0, 2**32), st.sampled_from(KINDS))
@settings(max_examples=150)
def test_random_schemas(compilers: dict[str, Compiler], schema: Any, seed: int, kind: str) -> None:
    try:
        text = walk(compilers[kind], Grammar.json_schema(schema), Random(seed), 300)
    except InvalidRequest as error:
        assert "cannot write" in error.message and lacks(compilers[kind], json.dumps(schema, ensure_ascii=False))
        return
    if text is not None:
        check(text, schema)


def lacks(compiler: Compiler, text: str) -> bool:
    """Whether it has a byte that no token has."""
    vocabulary = compiler.vocabulary
    known = {byte for i, own in enumerate(vocabulary.texts) if i not in vocabulary.special_ids for byte in own}
    return not known.issuperset(text.encode())


def test_properties_come_in_their_order(compilers: dict[str, Compiler]) -> None:
    schema = {"type": "object", "properties": {n: {"type": "null"} for n in "zayb"}, "required": list("zayb")}
    texts = [walk(compilers["byte_level"], Grammar.json_schema(schema), Random(seed)) for seed in range(20)]
    whole = [json.loads(text) for text in texts if text is not None]
    assert whole and all(list(value)[:4] == list("zayb") for value in whole)


def test_white_space_comes_to_an_end(compilers: dict[str, Compiler]) -> None:
    """However much a model likes it, there is no run of it that is long, within a Lark grammar either."""
    compiler = compilers["byte_level"]
    vocabulary = compiler.vocabulary
    lark = Grammar.lark(
        'start: "<" %json ' + json.dumps({**PERSON, "x-guidance": {"whitespace_pattern": " *"}}) + ' ">"'
    )
    for grammar in (Grammar.json_schema(PERSON), lark):
        matcher, text = compiler.compile(grammar), b""
        for _ in range(400):
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            allowed = [i for i in range(len(vocabulary.texts)) if mask >> i & 1]
            blank = [i for i in allowed if vocabulary.texts[i] in (b" ", b"\n")]
            token = blank[0] if blank and b'"name' not in text else allowed[0]
            if token in vocabulary.eos_ids:
                break
            matcher.consume_token(token)
            text += vocabulary.texts[token]
        assert b" " in text and not re.search(rb"[ \n\t\r]{18}", text), text


@pytest.mark.parametrize(
    "regex",
    [
        "[0-9]{3}",
        "a+(b|c)*",
        r"(Yes|No)\.",
        r"\w+@\w+\.(com|org)",
        "línea",
        "a/b\\\\c\"'",
        "x\ny",
        "(?i)hello",
        "[^a-z]{1,4}",
        "",
    ],
)
def test_regular_expressions(regex: str, compilers: dict[str, Compiler]) -> None:
    if not regex:
        return
    for kind in KINDS:
        for seed in range(5):
            text = walk(compilers[kind], Grammar.regex(regex), Random(seed), 60)
            assert text is None or re.fullmatch(regex, text), text


TEXTS = [
    "yes",
    "no",
    "maybe so",
    "",
    'say "hi"',
    "back\\slash",
    "new\nline",
    "汉🦙",
    "/",
    "*",
    "(a|b)",
    "<|end|>",
    "%json",
    "yes ",
]
# Not every vocabulary has every byte: no control characters, and planes that nobody writes in begin with missing ones.
WRITABLE = st.characters(max_codepoint=0x1FFFF, exclude_categories=("Cs", "Cc"))


@given(
    st.lists(st.sampled_from(TEXTS) | st.text(WRITABLE, min_size=1, max_size=6), min_size=1, max_size=6),
    st.integers(0, 99),
)
@settings(max_examples=60)
def test_choices_are_taken_to_the_letter(compilers: dict[str, Compiler], texts: list[str], seed: int) -> None:
    for kind in ("byte_level", "default_tokenizer"):
        assert walk(compilers[kind], Grammar.choice(texts), Random(seed)) in texts


ODD = "\U00040000"  # the default model has no token with the byte that this character begins with


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.choice([ODD, "0" + ODD]),
        Grammar.regex("0*" + ODD),
        Grammar.regex(r"0\x{40000}"),
        Grammar.lark(f'start: WORD | "{ODD}"\nWORD: /a+{ODD}/'),
        Grammar.json_schema({"const": ["a", ODD]}),
        Grammar.json_schema({"enum": ["0" + ODD, ODD]}),
        Grammar.json_schema({"type": "string", "pattern": f"^a{ODD}$"}),
        Grammar.json_schema({"type": "object", "required": [ODD]}),
        Grammar.json_schema({"type": "object", "properties": {"a": {"const": ODD}}, "required": ["a"]}),
        Grammar.json_schema({"anyOf": [{"const": ODD}, {"type": "array", "items": {"enum": [ODD]}, "minItems": 1}]}),
    ],
)
def test_what_the_tokens_cannot_write_is_refused(grammar: Grammar, compilers: dict[str, Compiler]) -> None:
    assert "cannot write" in refusal(compilers["default_tokenizer"], grammar)
    walk(compilers["byte_level"], grammar, Random(1), 40)  # it has all bytes


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["yes" + ODD, "yes", "no"]},
        {"anyOf": [{"const": ODD}, {"type": "null"}]},
        {"type": "string", "pattern": f"^(a{ODD}|ab|[{ODD}c])$"},
        {"type": "object", "properties": {"a": {"type": "null"}, "a" + ODD: {}}, "additionalProperties": False},
        {"type": ["object", "null"], "required": [ODD]},
    ],
)
def test_what_is_left_is_written(schema: Any, compilers: dict[str, Compiler]) -> None:
    for seed in range(12):
        text = walk(compilers["default_tokenizer"], Grammar.json_schema(schema), Random(seed))
        assert text is not None
        check(text, schema)


def test_texts_and_patterns_that_are_left(compilers: dict[str, Compiler]) -> None:
    for seed in range(12):
        for grammar in (
            Grammar.choice(["yes" + ODD, "yes", "no"]),
            Grammar.regex(f"yes{ODD}?|no|n{ODD}"),
            Grammar.lark(f'start: "yes{ODD}" | "yes" | WORD\nWORD: /no|n{ODD}/ // {ODD}'),
        ):
            assert walk(compilers["default_tokenizer"], grammar, Random(seed)) in ("yes", "no")


def test_a_way_that_ends_nowhere(compilers: dict[str, Compiler]) -> None:
    """Characters by their numbers are not looked for in Lark's notation, and of a rule's parts each is looked at alone:
    that is found out on the way."""
    compiler = compilers["default_tokenizer"]
    for lark in (r"start: /0\x{40000}/", f'start: "0" WORD\nWORD: /a+{ODD}/'):
        matcher = compiler.compile(Grammar.lark(lark))
        assert matcher.consume_token(compiler.vocabulary.texts.index(b"0"))
        matcher.compute_bitmask()
        assert matcher.is_error() and "cannot write" in failure_of(matcher)


def test_a_grammar_with_json_within(compilers: dict[str, Compiler]) -> None:
    lark = """
        start: "<tool>" call ("," call)~0..1 "</tool>"
        call: %json {"type": "object", "properties": {"f": {"const": "%json {"}}, "required": ["f"],
                     "additionalProperties": false}
        // %json { is a comment here, and "%json {" a text
    """
    for seed in range(5):
        text = walk(compilers["byte_level"], Grammar.lark(lark), Random(seed))
        assert text is not None and re.fullmatch(r"<tool>\{.*\}</tool>", text, re.DOTALL)
        assert '"%json {"' in text


def test_a_special_token_of_a_grammar(byte_level: Tokenizer, compilers: dict[str, Compiler]) -> None:
    matcher = compilers["byte_level"].compile(Grammar.lark('start: <|user|> "a"'))
    assert matcher.consume_token(byte_level.encode("<|user|>", False)[0])


def test_special_tokens_are_no_text(compilers: dict[str, Compiler]) -> None:
    """Not even where their names would fit."""
    compiler = compilers["byte_level"]
    matcher = compiler.compile(Grammar.regex("(.|\n)*"))
    mask = int.from_bytes(matcher.compute_bitmask(), "little")
    for token in compiler.vocabulary.special_ids - compiler.vocabulary.eos_ids:
        assert not mask >> token & 1


def refusal(compiler: Compiler, grammar: Grammar) -> str:
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(grammar)
    assert caught.value.field == "grammar"
    return caught.value.message


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (False, "must be an object"),
        ({"not": {}}, "keyword not is not supported"),
        ({"properties": {"a": {"uniqueItems": True}}}, "keyword uniqueItems is not supported"),
        ({"if": {}, "then": {}}, "keyword if is"),
        ({"type": "wrong"}, "not valid"),
        ({"type": "string", "pattern": "("}, "not valid"),
        ({"type": "string", "pattern": "(?=a)b"}, "not valid"),
        ({"$ref": "#/$defs/none"}, "refers to something that is not there"),
        ({"$ref": "http://example.com/schema"}, "refers to something that is not there"),
        ({"type": "string", "format": "iri"}, "format iri is not supported"),
        ({"type": "object", "minProperties": 2}, "minProperties"),
        ({"type": "string", "maxLength": 10**9}, "maxLength must be an integer from 0"),
        ({"type": "array", "items": 3}, "must be an object, true or false"),
        ({"anyOf": {}}, "anyOf must hold a list"),
        ({"properties": []}, "properties must hold an object"),
        ({"required": "a"}, "required must hold a list"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "nothing fits"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"properties": {"a/b": {"items": {"type": "wrong"}}}}, "type must hold one of array"),
        ({"properties": {"a/b": {"items": {"type": "wrong"}}}}, "(at /properties/a~1b/items/type)"),
        ({"type": []}, "type must hold one of"),
        ({"enum": 3}, "enum must hold a list of one value or more (at /enum)"),
        ({"anyOf": [{"minimum": "a"}]}, "minimum must hold a number (at /anyOf/0/minimum)"),
        ({"multipleOf": 0}, "multipleOf must hold a number greater than 0"),
        ({"pattern": 3}, "pattern must hold a text"),
        ({"$ref": 3}, "$ref must hold a text"),
        ({"properties": {"a": {"type": "string", "pattern": "("}}}, "(at /properties/a/pattern)"),
        ({"patternProperties": {"(": {}}}, "a pattern is not valid"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "(at /properties/a/$ref)"),
        ({"properties": {"a": {"not": {}}}}, "keyword not is not supported (at /properties/a/not)"),
        ({"properties": {"n" * 500: {"not": {}}}}, "nn…)"),
        ({"properties": {"\n\x1b": {"not": {}}}}, "(at /properties/\ufffd\ufffd/not)"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "types that exclude each other"),
        ({"type": "string", "format": "date", "pattern": "x"}, "exclude each other"),
    ],
)
def test_schemas_that_are_refused(schema: Any, says: str, compilers: dict[str, Compiler]) -> None:
    assert says in refusal(compilers["byte_level"], Grammar.json_schema(schema))


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        (Grammar.regex("("), "not valid"),
        (Grammar.regex(r"(a)\1"), "not valid"),
        (Grammar.regex("a(?!b)"), "not valid"),
        (Grammar.lark("start: \n  other"), "not valid in Lark's notation"),
        (Grammar.lark('begin: "a"'), "not valid in Lark's notation"),
        (Grammar.lark('{"grammars": [{"json_schema": {}}]}'), "not valid in Lark's notation"),
        (Grammar.lark('start: %json {"not": {}}'), "keyword not is not supported"),
        (Grammar.lark("start: %json {"), "not valid JSON"),
        (Grammar.lark("\0"), "not valid in Lark's notation"),
    ],
)
def test_grammars_that_are_refused(grammar: Grammar, says: str, compilers: dict[str, Compiler]) -> None:
    assert says in refusal(compilers["byte_level"], grammar)


def test_no_refusal_repeats_what_was_sent(compilers: dict[str, Compiler]) -> None:
    for grammar in (
        Grammar.lark("start: Secret_99 ("),
        Grammar.regex("(Secret_99"),
        Grammar.json_schema({"type": "Secret_99"}),
    ):
        assert "Secret_99" not in refusal(compilers["byte_level"], grammar)


def test_a_vocabulary_survives_its_json(byte_fallback: Tokenizer) -> None:
    vocabulary = byte_fallback.vocabulary(400, frozenset({2, 999}))
    assert len(vocabulary.texts) == 400 and vocabulary.eos_ids == frozenset({2})
    assert Vocabulary.from_json(vocabulary.to_json()) == vocabulary


def test_no_end_no_grammar(byte_level: Tokenizer) -> None:
    with pytest.raises(ValueError, match="no token ends a text"):
        Compiler(byte_level.vocabulary(300, frozenset()))
