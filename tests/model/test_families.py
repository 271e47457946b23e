"""Every family and option against transformers, on tiny random checkpoints: safetensors single and sharded, GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

TEXT = [int(t) for t in np.random.default_rng(0).integers(0, 131, 1100)]
PLACES = (0, 1, 100, 1000)


def assert_same_logits(run: Any, folder: Path, model: Any, text: list[int] = TEXT) -> None:
    """Positions of PLACES: the first tokens one by one, then the rest in pieces of uneven length."""
    with torch.no_grad():
        expected = model(torch.tensor([text])).logits[0]
    runner = run(folder)
    at = 0
    for place in PLACES:
        if place >= len(text):
            break
        got = runner.step([(0, text[at : place + 1])])[0]
        error = (got - expected[place]).abs().max() / expected[place].abs().max()
        assert error < 1e-4, f"position {place}: {error:.2e}"
        at = place + 1


ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    "yarn": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 256,
        "beta_fast": 16, "beta_slow": 2,
    },
    "yarn mscale": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 256,
        "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False,
    },
    "llama3": {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "longrope": {
        "rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 1100,
        "short_factor": [1.0 + i / 10 for i in range(8)], "long_factor": [2.0 + i for i in range(8)],
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ROPES)
def test_llama_with_every_rope_scaling(kind: str, tiny_llama: Any, run: Any, tmp_path: Path) -> None:
    model = tiny_llama(rope_parameters=dict(ROPES[kind]))
    model.save_pretrained(tmp_path)
    assert_same_logits(run, tmp_path, model)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_texts_longer_than_the_model_was_trained_for(kind: str, tiny_llama: Any, run: Any, tmp_path: Path) -> None:
    """One initiation takes the frequencies of its own length, whatever else is in the batch."""
    short = {"dynamic": {"max_position_embeddings": 512}, "longrope": {}}[kind]
    scaling = dict(ROPES[kind]) | ({"original_max_position_embeddings": 512} if kind == "longrope" else {})
    model = tiny_llama(rope_parameters=scaling, **short)
    model.save_pretrained(tmp_path)
    loaded = run(tmp_path)
    assert loaded.model.spec.context_length >= 1024
    with torch.no_grad():
        # In this order: transformers' dynamic frequencies remember the longest text they have seen.
        expected = torch.cat([model(torch.tensor([TEXT[:n]])).logits[0, -1:] for n in (100, 600, 1000)])
    got = loaded.step([(1, TEXT[:100]), (3, TEXT[:1000]), (2, TEXT[:600])])[[0, 2, 1]]
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("biases", [True, False])
def test_llama_tied_or_not_with_biases_or_not(
    tied: bool, biases: bool, tiny_llama: Any, run: Any, tmp_path: Path
) -> None:
    model = tiny_llama(tie_word_embeddings=tied, attention_bias=biases, mlp_bias=biases, head_dim=32)
    model.save_pretrained(tmp_path)
    assert_same_logits(run, tmp_path, model)


@pytest.mark.parametrize("act", ["gelu", "relu", "gelu_pytorch_tanh"])
def test_llama_activations(act: str, tiny_llama: Any, run: Any, tmp_path: Path) -> None:
    model = tiny_llama(hidden_act=act)
    model.save_pretrained(tmp_path)
    assert_same_logits(run, tmp_path, model, TEXT[:20])


@pytest.mark.parametrize("kind", ["qwen2", "mistral"])
def test_kin_of_llama(kind: str, tiny_llama: Any, run: Any, tmp_path: Path) -> None:
    model = tiny_llama(kind, sliding_window=None)
    model.save_pretrained(tmp_path)
    assert_same_logits(run, tmp_path, model)


@pytest.mark.parametrize(
    "options", [{}, {"n_inner": 100, "activation_function": "gelu"}, {"scale_attn_weights": False}]
)
@pytest.mark.parametrize("tied", [True, False])
def test_gpt2(options: dict[str, Any], tied: bool, tiny_gpt2: Any, run: Any, tmp_path: Path) -> None:
    model = tiny_gpt2(tie_word_embeddings=tied, **options)
    model.save_pretrained(tmp_path)
    assert_same_logits(run, tmp_path, model)


def test_shards(tiny_llama: Any, run: Any, tmp_path: Path) -> None:
    model = tiny_llama()
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert_same_logits(run, tmp_path, model, TEXT[:110])


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_b53_gguf_of_every_kind(
    kind: str, family: str, tiny_llama: Any, tiny_gpt2: Any, save_gguf: Any, run: Any, tmp_path: Path
) -> None:
    """Six heads over two K/V heads: interleaving with the wrong number of heads would show."""
    model = tiny_gpt2() if family == "gpt2" else tiny_llama(family, tie_word_embeddings=False)
    stored = save_gguf(model, tmp_path / "model.gguf", kind)
    model.load_state_dict({name: torch.from_numpy(weight) for name, weight in stored.items()}, strict=False)
    assert_same_logits(run, tmp_path / "model.gguf", model, TEXT[:110])


def test_gguf_rope_factors(tiny_llama: Any, save_gguf: Any, run: Any, tmp_path: Path) -> None:
    """llama3's scaling comes as divisors of the frequencies, worked out by the converter."""
    model = tiny_llama(rope_parameters=dict(ROPES["llama3"]))
    frequencies = model.model.rotary_emb.inv_freq.numpy()
    divisors = 1 / (5e5 ** (np.arange(0, 16, 2) / 16)) / frequencies
    save_gguf(model, tmp_path / "model.gguf", extra={"rope_freqs.weight": divisors})
    assert_same_logits(run, tmp_path / "model.gguf", model)


def test_gguf_yarn(tiny_llama: Any, save_gguf: Any, run: Any, tmp_path: Path) -> None:
    options = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 256}
    model = tiny_llama(rope_parameters=options)
    save_gguf(model, tmp_path / "model.gguf", type="yarn", factor=8.0, original_context_length=256)
    assert_same_logits(run, tmp_path / "model.gguf", model)


def test_gguf_linear(tiny_llama: Any, save_gguf: Any, run: Any, tmp_path: Path) -> None:
    model = tiny_llama(rope_parameters=dict(ROPES["linear"]))
    save_gguf(model, tmp_path / "model.gguf", type="linear", factor=4.0)
    assert_same_logits(run, tmp_path / "model.gguf", model)
