"""SAMP: temperatures near nothing, numbers that are none, ids in biases and stops."""

from __future__ import annotations

import json
from typing import Any

import pytest
from case_server import CHAT, COMPLETIONS, SECRET, Server, refused

PATHS = (COMPLETIONS, CHAT)
NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
COUNTS = ("top_k", "min_tokens", "max_tokens", "seed", "n")


@pytest.mark.parametrize("temperature", [1e-4, 1e-5, 1e-6, 1e-7, 1e-38, 5e-324, 0, -0.0])
def test_b18_a_temperature_near_nothing_is_greedy(both_forms: Server, temperature: float) -> None:
    greedy, _ = both_forms.both(temperature=0, max_tokens=7)
    for seed in (1, 2, 3):
        assert both_forms.both(temperature=temperature, seed=seed, max_tokens=7)[0] == greedy


def test_b18_temperatures_that_are_some(both_forms: Server) -> None:
    for temperature in (1e-3, 2):
        fields = {"temperature": temperature, "seed": 1, "max_tokens": 7}
        assert both_forms.both(**fields) == both_forms.both(**fields)
    texts = {both_forms.both(temperature=2, seed=seed, max_tokens=7)[0] for seed in range(6)}
    assert len(texts) > 1


@pytest.mark.parametrize("temperature", [2.01, -1, -1e-9, 1e308])
def test_b18_temperatures_outside(both_forms: Server, temperature: float) -> None:
    for path in PATHS:
        refused(both_forms.ask(path, temperature=temperature), "temperature")


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "nan", "inf"])
@pytest.mark.parametrize("path", PATHS)
def test_b20_what_is_no_number_is_no_json(gpt2: Server, path: str, word: str) -> None:
    for name in (*NUMBERS, *COUNTS):
        raw = json.dumps(gpt2.body(path, **{name: "@"})).replace('"@"', word).encode()
        refused(gpt2.send(raw, path), None)
    bias = json.dumps(gpt2.body(path, logit_bias={"5": "@"})).replace('"@"', word).encode()
    refused(gpt2.send(bias, path), None)


@pytest.mark.parametrize("value", ["0.5", SECRET, True, [], {}, [0.5]])
def test_b20_other_types_are_no_numbers(gpt2: Server, value: Any) -> None:
    for path in PATHS:
        for name in (*NUMBERS, *COUNTS):
            refused(gpt2.ask(path, **{name: value}), name)
        refused(gpt2.ask(path, logit_bias={"5": value}), "logit_bias")
    refused(gpt2.ask(prompt=[value]) if value not in ("0.5", SECRET, []) else gpt2.ask(prompt=[5, value]), "prompt")


@pytest.mark.parametrize(
    "bias",
    [{"V": 5}, {"-1": 5}, {"abc": 1}, {SECRET: 1}, {"1": 101}, {"1": -101}, {"1": 1e308}, {"1.0": 1}, {" 1": 1},
     {"1": "5"}, {"": 1}, {str(2**64): 1}, {"9" * 5000: 1}, {"1": 1, "01": 2}, [], "x", 5,
     {str(i): 0 for i in range(1025)}],
)  # fmt: skip
def test_b22_biases_are_refused(server: Server, bias: Any) -> None:
    if isinstance(bias, dict) and "V" in bias:
        bias = {str(server.recited.vocab_size): 5}
    for path in PATHS:
        refused(server.ask(path, logit_bias=bias), "logit_bias")


@pytest.mark.parametrize("ids", [["V"], [-1], [2**31], [2**64], ["5"], [True], [1.0], "12", 5, [[1]], [SECRET]])
def test_b22_stop_ids_are_refused(server: Server, ids: Any) -> None:
    bad = [server.recited.vocab_size] if ids == ["V"] else ids
    for path in PATHS:
        refused(server.ask(path, stop_token_ids=bad), "stop_token_ids")


def test_b22_biases_of_300_and_of_all_tokens(gpt2: Server) -> None:
    """All of this vocabulary are fewer than the limit of 1,024 entries."""
    v = gpt2.recited.vocab_size
    assert gpt2.both(logit_bias={str(i): 5 for i in range(300, v)} | {str(i): 5 for i in range(300)})[0]
    assert gpt2.both(logit_bias={str(i): -1.5 for i in range(v)}, max_tokens=8) == (gpt2.known, "length")


def test_b22_minus_100_removes_and_100_selects(server: Server) -> None:
    recited, prompt = server.recited, server.prompt
    logits = recited.logits(prompt)
    best, second = logits.topk(2).indices.tolist()
    without = recited.continuation(prompt, [second])
    assert recited.continuation(prompt, [best]) == server.both(max_tokens=1)[0] != without
    assert server.both(max_tokens=1, logit_bias={str(best): -100})[0] == without
    worst = int(logits.argmin())
    for temperature in (0, 2):
        fields = {"logit_bias": {str(worst): 100}, "temperature": temperature, "seed": 3, "max_tokens": 3}
        [choice] = server.answer(skip_special_tokens=False, **fields)["choices"]
        whole = recited.tokenizer.decode([*prompt, *[worst] * 3], clean_up_tokenization_spaces=False)
        assert whole.endswith(choice["text"]) and choice["finish_reason"] == "length"
