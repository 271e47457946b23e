"""Encoder-decoder families against transformers, on tiny random checkpoints: logits, greedy texts, mixed batches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from orcaserve.model.encoder_decoder.registry import ENCODER_DECODER_FAMILIES
from orcaserve.model.kv_manager import KVManager
from orcaserve.model.reference.encoder_decoder import load_encoder_decoder
from orcaserve.model.reference.kv_region import KVRegion

sys.path.insert(0, str(Path(__file__).parents[2]))
from encoder_decoders import KINDS, PAGE, SOURCES, VOCABULARY, Running, save


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("model")
    return save(request.param, folder), folder


def differ(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).abs().max() / expected.abs().max())


def test_every_type_of_model_is_compared() -> None:
    types = {name for family in ENCODER_DECODER_FAMILIES for name in family.model_types}
    assert {name.lower() for name, _ in KINDS.values()} == types


def test_logits_are_those_of_transformers(made: tuple[Any, Path]) -> None:
    """The decoder's tokens one by one, then some at once, as after a preemption."""
    model, folder = made
    running = Running(folder)
    spec = running.spec
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
    never = [[token] for token in running.spec.never] or None
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
    assert Running(folder).in_company(10) == alone


def test_weights_in_bfloat16_run(tmp_path: Path) -> None:
    save("t5", tmp_path)
    model = load_encoder_decoder(tmp_path, "bfloat16")
    kv = KVManager(64, PAGE)
    kv.begin_source(1, 5)
    region = KVRegion(model.spec, kv.n_pages, PAGE, "bfloat16")
    logits = model.forward(torch.tensor([5, 6, 7, 8, 1, 0]), kv.lay_out([(1, 6)]), region)
    assert logits.shape == (1, VOCABULARY) and logits.isfinite().all()
