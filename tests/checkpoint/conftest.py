"""Small files of both formats, and ways to damage them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """write_gguf(pairs, tensors, data, version=3, n_pairs=..., n_tensors=...) -> a file made of these raw parts."""

    def write(
        pairs: tuple[bytes, ...] = (),
        tensors: tuple[bytes, ...] = (),
        data: bytes = b"",
        version: int = 3,
        n_pairs: int | None = None,
        n_tensors: int | None = None,
        alignment: int = 32,
    ) -> Path:
        n_pairs = len(pairs) if n_pairs is None else n_pairs
        n_tensors = len(tensors) if n_tensors is None else n_tensors
        header = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_pairs) + b"".join(pairs) + b"".join(tensors)
        path = tmp_path / "model.gguf"
        path.write_bytes(header + bytes(-len(header) % alignment) + data)
        return path

    return write


@pytest.fixture
def small_gguf(tmp_path: Path) -> Path:
    """A whole, small llama file as the gguf library writes it."""
    from gguf import GGUFWriter

    path = tmp_path / "small.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(12)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_token_list([f"<{i}>" for i in range(16)])
    writer.add_token_types([1] * 16)
    writer.add_eos_token_id(2)
    writer.add_bool("llama.flag", True)
    generator = np.random.default_rng(0)
    shapes = {
        "token_embd": (16, 8), "output_norm": (8,), "blk.0.attn_norm": (8,), "blk.0.ffn_norm": (8,),
        "blk.0.attn_q": (8, 8), "blk.0.attn_k": (4, 8), "blk.0.attn_v": (4, 8), "blk.0.attn_output": (8, 8),
        "blk.0.ffn_gate": (12, 8), "blk.0.ffn_up": (12, 8), "blk.0.ffn_down": (8, 12),
    }  # fmt: skip
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", generator.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def write_safetensors(tmp_path: Path) -> Callable[..., Path]:
    """write_safetensors(header, data, name=...) -> a file with this header (a dict or raw bytes)."""

    def write(header: dict[str, Any] | bytes, data: bytes = b"", name: str = "model.safetensors") -> Path:
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        path = tmp_path / name
        path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
        return path

    return write
