"""Tiny random models, saved as the tests need them, and a way to run requests through a loaded one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from orcaserve.model.kv_manager import KVManager
from orcaserve.model.loader import ModelFiles
from orcaserve.model.reference.builder import load_reference
from orcaserve.model.reference.kv_region import KVRegion
from orcaserve.native import kv_region as native_region
from orcaserve.native._kernels import Team
from orcaserve.native.exact_inputs import build_weights
from orcaserve.native.model import NativeModel
from orcaserve.native.precision import choose_precision


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
        with ModelFiles(path) as files:
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


def _randomise(model: Any, seed: int = 0) -> Any:
    """Larger weights than initialisation gives, biases and norms included: so that every one of them matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = "norm" in name or "ln_" in name
            parameter.copy_(1 + 0.2 * noise if is_norm and name.endswith("weight") else 0.15 * noise)
    return model.eval()


@pytest.fixture(scope="session")
def tiny_llama() -> Callable[..., Any]:
    """tiny_llama(**options) -> a random LlamaForCausalLM; kind="qwen2" or "mistral" for its kin."""

    def make(kind: str = "llama", **options: Any) -> Any:
        import transformers

        name = {"llama": "Llama", "qwen2": "Qwen2", "mistral": "Mistral"}[kind]
        config = getattr(transformers, f"{name}Config")(**(LLAMA_OPTIONS | options))
        return _randomise(getattr(transformers, f"{name}ForCausalLM")._from_config(config, attn_implementation="eager"))

    return make


@pytest.fixture(scope="session")
def tiny_gpt2() -> Callable[..., Any]:
    """tiny_gpt2(**options) -> a random GPT2LMHeadModel."""

    def make(**options: Any) -> Any:
        from transformers import GPT2Config, GPT2LMHeadModel

        sizes = {"vocab_size": 131, "n_embd": 96, "n_layer": 2, "n_head": 6, "n_positions": 1200, "eos_token_id": 3}
        config = GPT2Config(**(sizes | {"bos_token_id": 3} | options))
        return _randomise(GPT2LMHeadModel._from_config(config, attn_implementation="eager"))

    return make


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    base, _, ending = name.rpartition(".")
    parts = base.split(".")
    if len(parts) > 2 and parts[1] in ("layers", "h"):
        return f"blk.{parts[2]}.{_GGUF_NAMES['.'.join(parts[3:])]}.{ending}"
    return f"{_GGUF_NAMES[base]}.{ending}"


def _interleave(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to query and key rows of the llama architecture."""
    halves = weight.reshape(n_heads, 2, weight.shape[0] // n_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


@pytest.fixture(scope="session")
def save_gguf() -> Callable[..., dict[str, np.ndarray]]:
    """save_gguf(model, path, kind="F32", extra={}) writes a GGUF file as llama.cpp's converter would.

    Returns transformers' state dict with the matrices as quantisation to `kind` leaves them.
    """

    def save(
        model: Any, path: Path, kind: str = "F32", extra: dict[str, np.ndarray] | None = None, **keys: Any
    ) -> dict[str, np.ndarray]:
        from gguf import GGMLQuantizationType, GGUFWriter, quants

        config, architecture = model.config, model.config.model_type
        writer = GGUFWriter(path, architecture)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_head_count(config.num_attention_heads)
        writer.add_vocab_size(config.vocab_size)
        writer.add_eos_token_id(3)
        if architecture == "gpt2":
            writer.add_layer_norm_eps(config.layer_norm_epsilon)
            writer.add_feed_forward_length(4 * config.n_embd)
        else:
            writer.add_feed_forward_length(config.intermediate_size)
            writer.add_head_count_kv(config.num_key_value_heads)
            writer.add_layer_norm_rms_eps(config.rms_norm_eps)
            writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
            writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        for key, value in keys.items():
            add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
            add(f"{architecture}.rope.scaling.{key}", value)
        for name, factors in (extra or {}).items():
            writer.add_tensor(name, factors.astype(np.float32))
        stored: dict[str, np.ndarray] = {}
        for name, tensor in model.state_dict().items():
            if name == "lm_head.weight" and config.tie_word_embeddings:
                continue
            weight = tensor.numpy()
            matrix = weight.ndim == 2
            if matrix and architecture == "gpt2" and ".h." in name:
                weight = weight.T.copy()
            heads = {"q_proj": config.num_attention_heads, "k_proj": getattr(config, "num_key_value_heads", 0)}
            n_heads = next((n for part, n in heads.items() if part in name and architecture == "llama"), 0)
            if n_heads:
                weight = _interleave(weight, n_heads)
            number = GGMLQuantizationType[kind if matrix else "F32"]
            quantised = quants.quantize(np.ascontiguousarray(weight), number)
            writer.add_tensor(_gguf_name(name), quantised, raw_dtype=number)
            back = quants.dequantize(quantised, number)
            if n_heads:
                back = back.reshape(n_heads, -1, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
            stored[name] = back.T.copy() if matrix and architecture == "gpt2" and ".h." in name else back
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return stored

    return save
