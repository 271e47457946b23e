"""Tiny random models, saved as the tests need them, and a way to run requests through a loaded one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from orcaserve.model.filled_heads import HEAD_UNIT
from orcaserve.model.kv_manager import KVManager
from orcaserve.model.loader import ModelFiles
from orcaserve.model.reference.builder import load_reference
from orcaserve.model.reference.kv_region import KVRegion
from orcaserve.native import kv_region as native_region
from orcaserve.native._kernels import Team
from orcaserve.native.exact_inputs import build_weights
from orcaserve.native.model import NativeModel
from orcaserve.native.precision import choose_precision

sys.path.insert(0, str(Path(__file__).parents[1]))
import gguf_files
from family_cases import randomise


class Reference:
    """The PyTorch model, as `Runner` takes it."""

    page_size = 4

    def __init__(self, path: Path, dtype: str = "float32") -> None:
        self.model = load_reference(path, dtype)
        self.spec = self.model.spec

    def region(self, n_pages: int) -> Any:
        return KVRegion(self.spec, n_pages, self.page_size)

    def forward(self, tokens: Sequence[int], layout: Any, kv: Any) -> Tensor:
        return self.model.forward(torch.tensor(tokens), layout, kv)


class Native:
    """The CPU's own model, as `Runner` takes it."""

    page_size = 16

    def __init__(
        self, path: Path, dtype: str = "float32", quantization: str = "none", kv: str = "auto", threads: int = 2
    ) -> None:
        team = Team(threads)
        with ModelFiles(path, HEAD_UNIT) as files:
            self.precision = choose_precision(dtype, quantization, files.matrix_kinds).with_kv(kv)
            self.model = NativeModel(files.spec, build_weights(files, self.precision, team), team)
        self.spec = self.model.spec

    def region(self, n_pages: int) -> Any:
        return native_region.KVRegion(self.spec, n_pages, self.page_size, self.precision.kv)

    def forward(self, tokens: Sequence[int], layout: Any, kv: Any) -> Tensor:
        return torch.from_numpy(self.model.forward(np.array(tokens, np.int32), layout, kv).copy())


@pytest.fixture(scope="session")
def native_model() -> type[Native]:
    return Native


LOADERS: dict[str, Callable[..., Any]] = {"reference": Reference, "native": Native}


@pytest.fixture(scope="session")
def reference() -> type[Reference]:
    return Reference


@pytest.fixture(scope="session", params=LOADERS)
def load(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """load(path) -> a model in float32, in every way there is to run one."""
    return LOADERS[request.param]


class Runner:
    """One model and its K/V: iterations of (request id, new tokens); contexts follow from what came before."""

    def __init__(self, model: Any, n_slots: int = 4096) -> None:
        self.model = model
        self.kv = KVManager(n_slots, model.page_size)
        self.region = model.region(self.kv.n_pages)

    def step(self, pieces: Sequence[tuple[int, Sequence[int]]]) -> Tensor:
        """Logits [requests, vocabulary]."""
        layout = self.kv.lay_out([(request, len(tokens)) for request, tokens in pieces])
        return self.model.forward([t for _, tokens in pieces for t in tokens], layout, self.region)

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Logits after every token of a text [tokens, vocabulary], one iteration per token."""
        rows = [self.step([(0, [token])]) for token in tokens]
        self.kv.drop(0)
        return torch.cat(rows)

    def greedy(self, tokens: Sequence[int], n: int, request: int = 0) -> list[int]:
        """The n best next tokens of a text on its own."""
        out: list[int] = []
        new = list(tokens)
        for _ in range(n):
            new = [int(self.step([(request, new)]).argmax())]
            out += new
        self.kv.drop(request)
        return out


@pytest.fixture(scope="session")
def runner() -> type[Runner]:
    return Runner


@pytest.fixture(scope="session")
def run(load: Callable[..., Any]) -> Callable[..., Runner]:
    """run(path) -> a Runner of the model there, in float32, in every way there is to run one."""
    return lambda path, n_slots=4096: Runner(load(path), n_slots)


LLAMA_OPTIONS: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "eos_token_id": 3,
}


@pytest.fixture(scope="session")
def tiny_llama() -> Callable[..., Any]:
    """tiny_llama(**options) -> a random LlamaForCausalLM; kind="qwen2" or "mistral" for its kin."""

    def make(kind: str = "llama", **options: Any) -> Any:
        import transformers

        name = {"llama": "Llama", "qwen2": "Qwen2", "mistral": "Mistral"}[kind]
        config = getattr(transformers, f"{name}Config")(**(LLAMA_OPTIONS | options))
        return randomise(getattr(transformers, f"{name}ForCausalLM")._from_config(config, attn_implementation="eager"))

    return make


@pytest.fixture(scope="session")
def tiny_gpt2() -> Callable[..., Any]:
    """tiny_gpt2(**options) -> a random GPT2LMHeadModel."""

    def make(**options: Any) -> Any:
        from transformers import GPT2Config, GPT2LMHeadModel

        sizes = {"vocab_size": 131, "n_embd": 96, "n_layer": 2, "n_head": 6, "n_positions": 1200, "eos_token_id": 3}
        config = GPT2Config(**(sizes | {"bos_token_id": 3} | options))
        return randomise(GPT2LMHeadModel._from_config(config, attn_implementation="eager"))

    return make


@pytest.fixture(scope="session")
def save_gguf() -> Callable[..., dict[str, np.ndarray]]:
    return gguf_files.save_gguf
