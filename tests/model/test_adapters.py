"""Low-rank adapters: the logits are those of merged weights, and nobody is changed by what runs beside him."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from orcaserve import native
from orcaserve.checkpoint.lora import LoraFiles
from orcaserve.model.adapter import load_adapter, names_of
from orcaserve.model.part import Part

sys.path.insert(0, str(Path(__file__).parents[1]))
from lora_files import ALL, linears, merge, write_adapter

PROMPT = [5, 99, 31, 7, 64, 130, 2, 88, 17]


@pytest.fixture(scope="module")
def base(odd_model: Path) -> Path:
    return odd_model


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    shapes = linears(base)
    return {
        1: write_adapter(folder / "one", shapes, 1),
        2: write_adapter(folder / "two", shapes, 2, rank=19, ranks={"k_proj": 3, "down_proj": 40}, use_rslora=True),
        3: write_adapter(
            folder / "three", linears(base, ("q_proj", "up_proj")), 3, alpha=4, alpha_pattern={"up_proj": 9}
        ),
    }


SCALES: dict[int, float | Mapping[str, float]] = {
    1: 2.0,
    2: {name: 8 / np.sqrt({"k_proj": 3, "down_proj": 40}.get(name, 19)) for name in ALL},
    3: {"q_proj": 1.0, "up_proj": 9 / 4},
}


def add_all(model: Any, base: Path, adapters: Mapping[int, Path]) -> None:
    for number, path in adapters.items():
        with LoraFiles(path) as files:
            made = model.make_adapter(load_adapter(files, names_of(base), Part.whole(model.spec), 64))
            model.add_adapter(number, made)


class Rig:
    """A Runner whose requests have adapters."""

    def __init__(self, runner: Any, base: Path, adapters: Mapping[int, Path]) -> None:
        add_all(runner.model.model, base, adapters)
        self.runner = runner

    def step(self, pieces: Sequence[tuple[int, Sequence[int], int]]) -> Tensor:
        """pieces: request, tokens, adapter."""
        runner = self.runner
        layout = runner.kv.lay_out([(request, len(tokens)) for request, tokens, _ in pieces])
        layout = replace(layout, adapters=[adapter for _, _, adapter in pieces])
        return runner.model.forward([t for _, tokens, _ in pieces for t in tokens], layout, runner.region)

    def logits(self, tokens: Sequence[int], adapter: int) -> Tensor:
        """After every token."""
        rows = [self.step([(0, [token], adapter)]) for token in tokens]
        self.runner.kv.drop(0)
        return torch.cat(rows)


@pytest.fixture(scope="module")
def rig(run: Callable[..., Any], base: Path, adapters: dict[int, Path]) -> Rig:
    return Rig(run(base), base, adapters)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_logits_are_those_of_merged_weights(
    rig: Rig, base: Path, adapters: dict[int, Path], number: int, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    merged = merge(base, adapters[number], tmp_path / "merged", SCALES[number])
    oracle = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        expected = oracle(torch.tensor([PROMPT])).logits[0]
    own = rig.logits(PROMPT, number)
    assert float((own - expected).abs().max() / expected.abs().max()) < 1e-4
    whole = rig.step([(9, PROMPT, number)])
    rig.runner.kv.drop(9)
    assert float((whole[0] - expected[-1]).abs().max() / expected.abs().max()) < 1e-4
    without = rig.logits(PROMPT, 0)
    assert float((without - expected).abs().max() / expected.abs().max()) > 1e-2, "the adapter changes something"


FORMS: dict[str, dict[str, str]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
}


@pytest.fixture(params=native.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = native.isa()
    native.set_isa(request.param)
    yield request.param
    native.set_isa(before)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("threads", [1, 2])
def test_company_changes_no_bit(
    isa: str,
    form: str,
    threads: int,
    base: Path,
    adapters: dict[int, Path],
    native_model: Any,
    runner: Any,
) -> None:
    """Long prompts beside short ones, blocks and tiles of one adapter and of several, in any order."""
    texts = [(20, 1), (1, 2), (600, 1), (33, 0), (90, 3), (1, 1), (700, 2), (5, 2), (1, 0)]
    prompts = [[(i * 37 + j * 11) % 251 for j in range(n)] for i, (n, _) in enumerate(texts)]

    def rig() -> Rig:
        return Rig(runner(native_model(base, threads=threads, **FORMS[form])), base, adapters)

    together = rig()
    pieces = [(i, prompts[i], adapter) for i, (_, adapter) in enumerate(texts)]
    first = together.step(pieces)
    second = together.step([(i, [i + 1], adapter) for i, (_, adapter) in reversed(list(enumerate(texts)))])
    alone = rig()
    for i, (_, adapter) in enumerate(texts):
        own = alone.step([(i, prompts[i], adapter)])
        assert torch.equal(own[0], first[i]), i
        own = alone.step([(i, [i + 1], adapter)])
        assert torch.equal(own[0], second[len(texts) - 1 - i]), i
        alone.runner.kv.drop(i)


@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("number", [1, 2])
def test_integers_are_as_near_with_an_adapter_as_without(
    form: str, number: int, base: Path, adapters: dict[int, Path], native_model: Any, runner: Any
) -> None:
    """Adapters are held in 8 bits beside such matrices, and cost no more than the matrices' own rounding."""
    exact, rounded = (Rig(runner(native_model(base, **FORMS[name])), base, adapters) for name in ("float32", form))

    def off(adapter: int) -> float:
        true = exact.logits(PROMPT, adapter)
        return float((rounded.logits(PROMPT, adapter) - true).norm() / true.norm())

    assert off(number) < 2 * off(0)


def test_without_adapters_not_a_bit_is_changed(
    native_model: Any, runner: Any, base: Path, adapters: dict[int, Path]
) -> None:
    rig = Rig(runner(native_model(base)), base, adapters)
    with_numbers = rig.step([(0, PROMPT, 0)])
    plain = runner(native_model(base)).step([(0, PROMPT)])
    assert torch.equal(with_numbers, plain)


def test_an_adapter_that_is_gone_is_not_run(
    native_model: Any, runner: Any, base: Path, adapters: dict[int, Path]
) -> None:
    rig = Rig(runner(native_model(base)), base, adapters)
    rig.runner.model.model.remove_adapter(2)
    rig.runner.model.model.remove_adapter(2)
    with pytest.raises(KeyError):
        rig.step([(0, PROMPT, 2)])
