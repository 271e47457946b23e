"""Weights as PyTorch tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

TEXT = [(7 * i) % 131 for i in range(50)]


def test_bfloat16_is_close(tiny_llama: Any, reference: Any, runner: Any, tmp_path: Path) -> None:
    model = tiny_llama()
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = model(torch.tensor([TEXT])).logits[0, -1]
    loaded = reference(tmp_path, dtype="bfloat16")
    assert loaded.model.dtype is torch.bfloat16
    got = runner(loaded).step([(0, TEXT)])[0]
    assert got.dtype is torch.float32
    assert (got - expected).abs().max() < 0.05 * expected.abs().max()


def test_a_tied_head_is_the_embedding_itself(tiny_llama: Any, reference: Any, tmp_path: Path) -> None:
    tiny_llama(tie_word_embeddings=True).save_pretrained(tmp_path)
    weights = reference(tmp_path).model.weights
    assert weights.head.weight is weights.embedding.weight
