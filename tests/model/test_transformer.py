"""The model: a request in any mixed batch gets what it gets alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def models(load: Any, tiny_llama: Any, tiny_gpt2: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    loaded = []
    for model in (tiny_llama(attention_bias=True), tiny_gpt2(tie_word_embeddings=False)):
        folder: Path = tmp_path_factory.mktemp("model")
        model.save_pretrained(folder)
        loaded.append(load(folder))
    return loaded


N_NEW = 4
PROMPTS = st.lists(st.lists(st.integers(0, 130), min_size=1, max_size=40), min_size=1, max_size=7)


@settings(max_examples=15)
@given(PROMPTS, st.integers(0, 1), st.randoms(use_true_random=False))
def test_any_request_in_any_mixed_batch_gets_the_tokens_it_gets_alone(
    models: list[Any], runner: Any, prompts: list[list[int]], which: int, random: Any
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
