"""The skeleton: a request in any mixed batch gets what it gets alone, however its rows are filled up and cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orcaserve.model import transformer
from orcaserve.model.layers import Linear, can_pack
from orcaserve.model.loader import load_model
from orcaserve.model.transformer import ROWS, Transformer


@pytest.fixture(scope="module")
def models(tiny_llama: Any, tiny_gpt2: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Transformer]:
    loaded = []
    for model in (tiny_llama(attention_bias=True), tiny_gpt2(tie_word_embeddings=False)):
        folder: Path = tmp_path_factory.mktemp("model")
        model.save_pretrained(folder)
        loaded.append(load_model(folder))
    return loaded


N_NEW = 4
PROMPTS = st.lists(st.lists(st.integers(0, 130), min_size=1, max_size=40), min_size=1, max_size=7)


@settings(max_examples=15, deadline=None)
@given(PROMPTS, st.integers(0, 1), st.randoms(use_true_random=False))
def test_any_request_in_any_mixed_batch_gets_the_tokens_it_gets_alone(
    models: list[Transformer], runner: Any, prompts: list[list[int]], which: int, random: Any
) -> None:
    """Requests start in random iterations and join or skip iterations at random; initiations mix with increments."""
    model = models[which]
    run = runner(model)
    expected = [run.greedy(prompt, N_NEW) for prompt in prompts]
    assert run.kv.n_used == 0
    outputs: dict[int, list[int]] = {}
    while any(len(outputs.get(r, ())) < N_NEW for r in range(len(prompts))):
        live = [r for r in range(len(prompts)) if len(outputs.get(r, ())) < N_NEW]
        batch = random.sample(live, random.randint(1, len(live)))
        logits = run.step([(r, outputs[r][-1:] if r in outputs else prompts[r]) for r in batch])
        for r, token in zip(batch, logits.argmax(1).tolist(), strict=True):
            outputs.setdefault(r, []).append(token)
    assert [outputs[r] for r in range(len(prompts))] == expected


def test_logits_are_the_same_to_the_bit_in_any_batch(models: list[Transformer], runner: Any) -> None:
    if not can_pack(torch.empty(1, 1)):
        pytest.skip("bit equality comes with packed weights")  # a tied head has them if its table is stored in 16 bits
    prompts = [[(7 * i + j) % 131 for j in range(1 + 11 * i)] for i in range(30)]  # 4,815 rows: several parts
    for model in models:
        run = runner(model, n_slots=8192)
        together = run.step(list(enumerate(prompts)))
        increments = run.step([(i, [5]) for i in range(30)])
        for i in (0, 1, 2, 17, 29):
            alone = runner(model)
            assert torch.equal(alone.step([(0, prompts[i])])[0], together[i])
            assert torch.equal(alone.step([(0, [5])])[0], increments[i])


@pytest.mark.parametrize("n", [1, 2, 3, 8, 13, 255, 256, 257, 300, 512, 700])
def test_rows_are_filled_up_to_few_numbers(n: int) -> None:
    rows = transformer._rows(n)
    assert n <= rows <= n + 32
    assert all(part in ROWS for part in ([256] * (rows // 256) + [rows % 256] * (rows % 256 > 0)))
    assert transformer._fill(torch.ones(n, 2)).sum() == 2 * n


def test_packed_weights_give_what_plain_ones_give() -> None:
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(70, 33, generator=generator), torch.randn(70, generator=generator)
    packed = Linear(weight.clone(), bias)
    packed.pack()
    for n in (1, 5, 40):
        x = torch.randn(n, 33, generator=generator)
        torch.testing.assert_close(packed(x), Linear(weight, bias)(x), rtol=1e-5, atol=1e-5)
