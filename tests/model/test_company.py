"""What `--deterministic` promises, at the kernels: a request's logits are the same to the bit in any company.

A *history* is a run of iterations: which requests take part, in what order, and how many tokens of each. Whatever it
is, after each of its pieces a text has the logits that it has alone, whole, on one thread, in a region of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_cases import make
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from orcaserve import native
from orcaserve.native._kernels import Team
from orcaserve.native.model import NativeModel

FORMS: dict[str, dict[str, str]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "float32, bfloat16 K/V": {"kv": "bfloat16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "int8, float32 K/V": {"quantization": "int8", "kv": "float32"},
}
# On both sides of every border that some kernel has: strips of 16 keys, steps of 64 and 128, parts and blocks of 512.
ENDS = (1, 2, 15, 16, 17, 40, 64, 65, 127, 128, 129, 300, 511, 512, 513, 700, 1024, 1025, 1100)
TEXTS = [[(i * 37 + j * j + 7 * j) % 131 for j in range(ENDS[-1])] for i in range(3)]

Pieces = list[tuple[int, int]]  # of an iteration: request, and where its piece ends


@dataclass(frozen=True)
class History:
    """texts: of each request, which of TEXTS it is. threads: of the team. order: seed of the pages' order."""

    texts: list[int]
    iterations: list[Pieces]
    threads: int
    order: int


@st.composite
def histories(draw: st.DrawFn) -> History:
    texts = draw(st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=6))
    to_come = {
        request: sorted(draw(st.sets(st.sampled_from(ENDS), min_size=1, max_size=5))) for request in range(len(texts))
    }
    iterations = []
    while to_come:
        chosen = draw(st.lists(st.sampled_from(sorted(to_come)), min_size=1, unique=True))
        iterations.append([(request, to_come[request].pop(0)) for request in chosen])
        to_come = {request: ends for request, ends in to_come.items() if ends}
    return History(texts, iterations, draw(st.sampled_from([1, 2, 3])), draw(st.integers(0, 99)))


@pytest.fixture(autouse=True, scope="module", params=native.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = native.isa()
    native.set_isa(request.param)
    yield request.param
    native.set_isa(before)


class Subject:
    """One model in one form, with teams of several sizes, and what its texts give alone."""

    def __init__(self, model: Any, runner: Callable[..., Any]) -> None:
        self._with, self._runner = {}, runner
        for n in (1, 2, 3):
            self._with[n] = copy(model)
            self._with[n].model = NativeModel(model.spec, model.model.weights, Team(n))
        self._alone: dict[tuple[int, int], Tensor] = {}

    def alone(self, text: int, end: int) -> Tensor:
        if (text, end) not in self._alone:
            self._alone[text, end] = self.runner(1, 2048).step([(0, TEXTS[text][:end])])[0]
        return self._alone[text, end]

    def runner(self, threads: int, n_slots: int) -> Any:
        return self._runner(self._with[threads], n_slots)


@pytest.fixture(scope="module")
def subjects(
    isa: str, native_model: Any, runner: Any, tiny_llama: Any, tiny_gpt2: Any, tmp_path_factory: pytest.TempPathFactory
) -> list[Subject]:
    """Two families and a mixture of experts in every form. Made anew for each set: int8 chooses its exact inputs by
    running."""
    folders: list[Path] = []
    for model in (
        tiny_llama(attention_bias=True),
        tiny_gpt2(tie_word_embeddings=False),
        make("qwen3_moe, dense layers"),
    ):
        folders.append(tmp_path_factory.mktemp("model"))
        model.save_pretrained(folders[-1])
    return [Subject(native_model(folder, **form), runner) for folder in folders for form in FORMS.values()]


def fill_with_rubbish(region: Any) -> None:
    """What another request may have left there: numbers that are none."""
    for name in ("keys", "values", "key_scales", "value_scales"):
        memory = getattr(region, name)
        if memory is not None:
            memory.view(np.uint8)[...] = 0xFF  # in float32 and bfloat16 this is no number


@settings(max_examples=60)
@given(history=histories(), number=st.integers(0, 3 * len(FORMS) - 1))
def test_logits_do_not_depend_on_the_company(subjects: list[Subject], history: History, number: int) -> None:
    subject = subjects[number]
    run = subject.runner(history.threads, 1120 * len(history.texts))
    fill_with_rubbish(run.region)
    random.Random(history.order).shuffle(run.kv._free)
    done = [0] * len(history.texts)
    for pieces in history.iterations:
        step = [(request, TEXTS[history.texts[request]][done[request] : end]) for request, end in pieces]
        logits = run.step(step)
        for row, (request, end) in enumerate(pieces):
            assert torch.equal(logits[row], subject.alone(history.texts[request], end)), (number, request, end)
            done[request] = end


@pytest.mark.parametrize("number", range(3 * len(FORMS)))
def test_sixty_four_increments_beside_a_long_initiation(subjects: list[Subject], number: int) -> None:
    """More rows than any tile has, in all places; and the work of attention is shared out in another way."""
    subject = subjects[number]
    run = subject.runner(2, 64 * 48 + 1120)
    short = [(request, TEXTS[request % 3][: (15, 16, 17, 40)[request % 4]]) for request in range(64)]
    for (request, tokens), row in zip(short, run.step(short), strict=True):
        assert torch.equal(row, subject.alone(request % 3, len(tokens)))
    grown = [(request, [TEXTS[request % 3][len(tokens)]]) for request, tokens in short if len(tokens) in (15, 16)]
    company = [*grown[:16], (99, TEXTS[0][:1100]), *grown[16:]]
    for (request, tokens), row in zip(company, run.step(company), strict=True):
        end = 1100 if request == 99 else (16, 17)[request % 4]
        assert torch.equal(row, subject.alone(request % 3, end)), (request, len(tokens))
