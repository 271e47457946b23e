"""The native model's results of a request: the same to the bit alone and in any batch, whole and in pieces."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orcaserve import native

FORMS = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "int8, float32 K/V": {"quantization": "int8", "kv": "float32"},
}


@pytest.fixture(scope="module", params=FORMS)
def models(
    request: pytest.FixtureRequest,
    native_model: Any,
    tiny_llama: Any,
    tiny_gpt2: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[Any]:
    loaded = []
    for model in (tiny_llama(attention_bias=True), tiny_gpt2(tie_word_embeddings=False)):
        folder: Path = tmp_path_factory.mktemp("model")
        model.save_pretrained(folder)
        loaded.append(native_model(folder, **FORMS[request.param]))
    return loaded


def prompt(i: int) -> list[int]:
    return [(7 * i + j * j) % 131 for j in range(1 + 11 * i)]


@pytest.mark.parametrize("isa", native.available_isas())
def test_thirty_requests_together_and_alone(isa: str, models: list[Any], runner: Any) -> None:
    chosen = native.isa()
    native.set_isa(isa)
    try:
        for model in models:
            run = runner(model, n_slots=8192)
            together = run.step([(i, prompt(i)) for i in range(30)])
            increments = run.step([(i, [5]) for i in range(30)])
            assert together.isfinite().all()
            for i in (0, 1, 2, 17, 29):
                alone = runner(model)
                assert torch.equal(alone.step([(0, prompt(i))])[0], together[i])
                assert torch.equal(alone.step([(0, [5])])[0], increments[i])
    finally:
        native.set_isa(chosen)


@settings(max_examples=10)
@given(cuts=st.sets(st.integers(1, 99), max_size=4))
def test_a_prompt_whole_and_in_pieces(models: list[Any], runner: Any, cuts: set[int]) -> None:
    """What a request computes that was stopped and rebuilt is what it computed before."""
    text = prompt(9)
    for model in models:
        whole = runner(model).step([(0, text)])
        pieces, run = [0, *sorted(cuts), len(text)], runner(model)
        for begin, end in itertools.pairwise(pieces):
            last = run.step([(0, text[begin:end])])
        assert torch.equal(last, whole)


def test_one_thread_and_two(native_model: Any, runner: Any, tiny_llama: Any, tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path)
    for form in FORMS.values():
        one, two = (runner(native_model(tmp_path, threads=n, **form)) for n in (1, 2))
        batch = [(i, prompt(i)) for i in range(12)]
        assert torch.equal(one.step(batch), two.step(batch))


@pytest.mark.parametrize(("form", "most"), [("bfloat16", 0.02), ("int8", 0.1), ("int4", 0.6)])
def test_coarser_forms_are_close_to_float32(
    form: str, most: float, native_model: Any, runner: Any, tiny_llama: Any, tmp_path: Path
) -> None:
    """Random weights have no structure that rounding could spare: real models do better (benchmarks/accuracy)."""
    tiny_llama().save_pretrained(tmp_path)
    batch = [(i, prompt(i)) for i in range(12)]
    exact = runner(native_model(tmp_path)).step(batch)
    got = runner(native_model(tmp_path, **FORMS[form])).step(batch)
    error = float((got - exact).norm() / exact.norm())
    assert 0 < error < most
