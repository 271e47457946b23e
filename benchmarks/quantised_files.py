"""A model of Llama's kind as checkpoints of the quantised formats, rounded to nearest, and the weights these stand for.

Nothing of orcaserve is used: files are written by the formats' definitions, and read back by them or by GGUF's library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray
from round_to_nearest import SUPER_BLOCK, Floats, Ints, Rounded, k_blocks, round_groups
from safetensors.numpy import save_file

Tensors = dict[str, NDArray[Any]]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight numbers lies in which place of a word
INSTEAD = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}  # where inputs are no multiple of 256: as llama.cpp does
EMBEDDING_KIND = "Q8_0"  # in GGUF files


@dataclass(frozen=True, slots=True)
class Plain:
    """config: of config.json. tensors: float32, under transformers' names."""

    config: dict[str, Any]
    tensors: Tensors

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        save_file(self.tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    def linears(self) -> list[str]:
        """The modules that are quantised."""
        return [name.removesuffix(".weight") for name in self.tensors if name.endswith("_proj.weight")]


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint at `path`, the model that it stands for, and the bits of a weight, with all that belongs to it."""

    path: Path
    plain: Plain
    bits: float


Writer = Callable[[Plain, Path], Written]


def gptq(group_size: int, symmetric: bool) -> Writer:
    """Symmetric in the older form, whose zeros are stored less 1, and the others in the newer one, which can say 0."""

    def parts(rounded: Rounded) -> Tensors:
        return {
            "qweight": pack(rounded.numbers, 4).T,
            "qzeros": pack(rounded.zeros.T - symmetric, 4),
            "scales": rounded.scales.T.astype(np.float16),
            "g_idx": (np.arange(rounded.numbers.shape[1]) // group_size).astype(np.int32),
        }

    settings = {"quant_method": "gptq", "bits": 4, "group_size": group_size, "sym": symmetric, "desc_act": False,
                "checkpoint_format": "gptq" if symmetric else "gptq_v2"}  # fmt: skip
    return _folder(settings, lambda weights: round_groups(weights, 4, group_size, symmetric), parts)


def awq(group_size: int) -> Writer:
    def parts(rounded: Rounded) -> Tensors:
        return {
            "qweight": pack(rounded.numbers.T, 4, AWQ_ORDER),
            "qzeros": pack(rounded.zeros.T, 4, AWQ_ORDER),
            "scales": rounded.scales.T.astype(np.float16),
        }

    settings = {"quant_method": "awq", "bits": 4, "group_size": group_size, "version": "gemm", "zero_point": True}
    return _folder(settings, lambda weights: round_groups(weights, 4, group_size, False), parts)


def compressed(bits: int, group_size: int | None, symmetric: bool, packed: bool) -> Writer:
    """compressed-tensors. group_size: None = one scale for all inputs of an output."""
    half = 1 << (bits - 1)

    def parts(rounded: Rounded) -> Tensors:
        made: Tensors = {"weight_scale": rounded.scales.astype(np.float16)}
        if packed:
            made |= {"weight_packed": pack(rounded.numbers, bits), "weight_shape": np.array(rounded.numbers.shape)}
            if not symmetric:
                made["weight_zero_point"] = pack(rounded.zeros.T, bits).T
        else:
            made["weight"] = (rounded.numbers - half).astype(np.int8)
        return made

    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False, "group_size": group_size,
               "strategy": "channel" if group_size is None else "group"}  # fmt: skip
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None if packed else inputs}
    settings = {"quant_method": "compressed-tensors", "format": "pack-quantized" if packed else "int-quantized",
                "config_groups": {"group_0": group}, "ignore": ["lm_head"]}  # fmt: skip
    return _folder(settings, lambda w: round_groups(w, bits, group_size or w.shape[1], symmetric), parts)


def in_gguf(kind: str) -> Writer:
    """Matrices of `kind`, or of the one that is INSTEAD; the embedding is EMBEDDING_KIND."""

    def write(plain: Plain, folder: Path) -> Written:
        folder.mkdir(parents=True)
        writer = _header(folder / "model.gguf", plain.config)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, plain.config["num_hidden_layers"])
        stood_for: Tensors = {}
        n_bytes = n_weights = 0
        for name, tensor in plain.tensors.items():
            heads = _heads(plain.config, name)
            stored = names.get_name(name, try_suffixes=(".weight",))
            own = "F32"
            if tensor.ndim == 2:
                own = kind if "_proj" in name else EMBEDDING_KIND
                own = INSTEAD[own] if own in INSTEAD and tensor.shape[1] % SUPER_BLOCK else own
            number, weights = GGMLQuantizationType[own], interleaved(tensor, heads) if heads else tensor
            rows = k_blocks(weights, own) if own in INSTEAD else quants.quantize(np.ascontiguousarray(weights), number)
            writer.add_tensor(stored, rows, raw_dtype=number)
            back = quants.dequantize(rows, number)
            stood_for[name] = in_halves(back, heads) if heads else back
            if "_proj" in name:
                n_bytes, n_weights = n_bytes + rows.nbytes, n_weights + tensor.size
        _write(writer)
        return Written(folder / "model.gguf", Plain(plain.config, stood_for), n_bytes * 8 / n_weights)

    return write


def read_gguf(path: Path) -> Plain:
    """A model of the architecture llama in one file, its weights as GGUF's library turns them to float32."""
    reader = gguf.GGUFReader(path)

    def value(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = {
        "model_type": "llama", "hidden_act": "silu", "hidden_size": value("embedding_length"),
        "num_hidden_layers": value("block_count"), "intermediate_size": value("feed_forward_length"),
        "num_attention_heads": value("attention.head_count"), "num_key_value_heads": value("attention.head_count_kv"),
        "max_position_embeddings": value("context_length"), "rope_theta": value("rope.freq_base"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "vocab_size": int(tensors["token_embd.weight"].shape[-1]),
    }  # fmt: skip
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    plain: Tensors = {}
    for name in _llama_names(config):
        tensor = tensors.pop(names.get_name(name, try_suffixes=(".weight",)))
        weights = quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        heads = _heads(config, name)
        plain[name] = in_halves(weights, heads) if heads else weights
    if tensors:
        raise ValueError(f"{path.name} holds tensors that a model of Llama's kind has not: {', '.join(tensors)}")
    return Plain(config, plain)


def pack(numbers: Ints, bits: int, order: Sequence[int] | None = None) -> NDArray[np.int32]:
    """Numbers from 0 on along the last dimension into words, filled up with zeros."""
    per = 32 // bits
    filled = np.pad(numbers, [*[(0, 0)] * (numbers.ndim - 1), (0, -numbers.shape[-1] % per)])
    words = filled.reshape(*filled.shape[:-1], -1, per).astype(np.uint32)
    packed = np.zeros(words.shape[:-1], np.uint32)
    for place, number in enumerate(order or range(per)):
        packed |= words[..., number] << np.uint32(bits * place)
    return packed.view(np.int32)


def interleaved(weights: Floats, n_heads: int) -> Floats:
    """Rows of a head as GGUF has them: what positions turn together side by side."""
    halves = weights.reshape(n_heads, 2, -1, weights.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weights.shape)


def in_halves(weights: Floats, n_heads: int) -> Floats:
    """The other way round."""
    pairs = weights.reshape(n_heads, -1, 2, weights.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weights.shape)


def _folder(
    settings: dict[str, Any], rounding: Callable[[Floats], Rounded], parts: Callable[[Rounded], Tensors]
) -> Writer:
    def write(plain: Plain, folder: Path) -> Written:
        tensors, stood_for = dict(plain.tensors), dict(plain.tensors)
        n_bytes = n_weights = 0
        for linear in plain.linears():
            rounded = rounding(tensors.pop(f"{linear}.weight"))
            stood_for[f"{linear}.weight"] = rounded.weights()
            for name, part in parts(rounded).items():
                tensors[f"{linear}.{name}"] = np.ascontiguousarray(part)
                n_bytes += part.nbytes
            n_weights += rounded.numbers.size
        path = Plain({**plain.config, "quantization_config": settings}, tensors).save(folder)
        return Written(path, Plain(plain.config, stood_for), n_bytes * 8 / n_weights)

    return write


def _heads(config: dict[str, Any], name: str) -> int:
    """Of a matrix whose rows positions turn; 0 of others."""
    if ".q_proj." in name:
        return int(config["num_attention_heads"])
    return int(config["num_key_value_heads"]) if ".k_proj." in name else 0


def _llama_names(config: dict[str, Any]) -> list[str]:
    ends = ["model.embed_tokens", "model.norm", *([] if config["tie_word_embeddings"] else ["lm_head"])]
    own = ["input_layernorm", "post_attention_layernorm", *(f"self_attn.{x}_proj" for x in "qkvo"),
           *(f"mlp.{x}_proj" for x in ("gate", "up", "down"))]  # fmt: skip
    layers = range(config["num_hidden_layers"])
    return [f"{name}.weight" for name in [*ends, *(f"model.layers.{i}.{name}" for i in layers for name in own)]]


def _header(path: Path, config: dict[str, Any]) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    return writer


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
