"""Encoder-decoder families against transformers, on tiny random checkpoints: logits, greedy texts, mixed batches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from orcaserve.model.kv_manager import KVManager
from orcaserve.model.reference.encoder_decoder import load_encoder_decoder
from orcaserve.model.reference.kv_region import KVRegion

sys.path.insert(0, str(Path(__file__).parents[2]))
from encoder_decoders import KINDS, VOCABULARY, save

PAGE = 4
SOURCES = [np.random.default_rng(n).integers(3, VOCABULARY, n).tolist() for n in (9, 1, 40, 8)]


class Running:
    """A model and its K/V: iterations of (request id, tokens), where the first has a source."""

    def __init__(self, folder: Path, n_slots: int = 1024) -> None:
        self.model = load_encoder_decoder(folder)
        self.kv = KVManager(n_slots, PAGE)
        self.region = KVRegion(self.model.spec, self.kv.n_pages, PAGE)

    def step(self, pieces: Sequence[tuple[int, Sequence[int], Sequence[int]]]) -> Tensor:
        """(request id, source or nothing, the decoder's tokens) -> logits [requests, vocabulary]."""
        for request, source, _ in pieces:
            if source:
                self.kv.begin_source(request, len(source))
        layout = self.kv.lay_out([(request, len(source) + len(tokens)) for request, source, tokens in pieces])
        flat = torch.tensor([t for _, source, tokens in pieces for t in (*source, *tokens)])
        return self.model.forward(flat, layout, self.region)

    def greedy(self, request: int, source: Sequence[int], n: int) -> list[int]:
        tokens = [int(self.step([(request, source, [self.model.spec.start])]).argmax())]
        while len(tokens) < n:
            tokens.append(int(self.step([(request, [], tokens[-1:])]).argmax()))
        self.kv.drop(request)
        return tokens


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("model")
    return save(request.param, folder), folder


def differ(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).abs().max() / expected.abs().max())


def test_logits_are_those_of_transformers(made: tuple[Any, Path]) -> None:
    """The decoder's tokens one by one, then some at once, as after a preemption."""
    model, folder = made
    running = Running(folder)
    spec = running.model.spec
    for number, source in enumerate(SOURCES):
        decoded = [spec.start, *SOURCES[2][:30]]
        with torch.no_grad():
            expected = model(
                input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([decoded]), use_cache=False
            ).logits[0]
        steps = [running.step([(number, source, decoded[:1])])]
        steps += [running.step([(number, [], [token])]) for token in decoded[1:]]
        anew = running.step([(100 + number, source, decoded)])
        allowed = [t for t in range(VOCABULARY) if t not in spec.never]
        for place in range(1 if spec.first is not None else 0, len(decoded)):
            assert differ(steps[place][0][allowed], expected[place][allowed]) < 1e-4
        assert differ(anew[0][allowed], expected[-1][allowed]) < 1e-4
        assert all(logits.isfinite().all() for logits in steps)


def test_greedy_texts_are_those_of_transformers(made: tuple[Any, Path]) -> None:
    model, folder = made
    running = Running(folder)
    never = [[token] for token in running.model.spec.never] or None
    for number, source in enumerate(SOURCES):
        with torch.no_grad():
            made_of = model.generate(
                torch.tensor([source]), attention_mask=torch.ones(1, len(source)), max_new_tokens=24, do_sample=False,
                num_beams=1, eos_token_id=None, bad_words_ids=never,
                use_cache=False,  # it takes the cache of a decoder with more layers than the encoder for too short
            )  # fmt: skip
        assert running.greedy(number, source, 24) == made_of[0, 1:].tolist()


def test_a_request_in_any_company_gets_the_logits_it_gets_alone(made: tuple[Any, Path]) -> None:
    """Initiations, increments, and one that starts anew with output, in the same iterations."""
    _, folder = made
    alone = [Running(folder).greedy(n, source, 10) for n, source in enumerate(SOURCES)]
    running = Running(folder)
    start = running.model.spec.start
    texts: dict[int, list[int]] = {}
    for iteration in range(14):
        entries: list[tuple[int, Sequence[int], Sequence[int]]] = []
        for n, source in enumerate(SOURCES):
            if iteration == n:
                entries.append((n, source, [start]))
                texts[n] = []
            elif n == 2 and iteration == 6:  # it was preempted
                running.kv.drop(n)
                entries.append((n, source, [start, *texts[n]]))
            elif n in texts and len(texts[n]) < 10:
                entries.append((n, [], texts[n][-1:]))
        for (n, _, _), logits in zip(entries, running.step(entries) if entries else (), strict=True):
            texts[n].append(int(logits.argmax()))
    assert [texts[n] for n in range(len(SOURCES))] == alone


def test_weights_in_bfloat16_run(tmp_path: Path) -> None:
    save("t5", tmp_path)
    model = load_encoder_decoder(tmp_path, "bfloat16")
    kv = KVManager(64, PAGE)
    kv.begin_source(1, 5)
    region = KVRegion(model.spec, kv.n_pages, PAGE, "bfloat16")
    logits = model.forward(torch.tensor([5, 6, 7, 8, 1, 0]), kv.lay_out([(1, 6)]), region)
    assert logits.shape == (1, VOCABULARY) and logits.isfinite().all()
