"""GGUF files made of models of transformers. Imported by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

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


# Of kinds that the library reads and cannot write: the places of float16 scales in a block, and what they are times the
# first of them, so that numbers of random bits are about 0 on average.
_SCALES: dict[str, dict[int, float]] = {
    "Q2_K": {80: 1, 82: 1.5},
    "Q3_K": {108: 1},
    "Q4_K": {0: 1, 2: 7.5},
    "Q5_K": {0: 1, 2: 15.5},
    "Q6_K": {208: 1},
    **{kind: {0: 1} for kind in ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS")},
}
WIDTH = 0.1  # of numbers of random bits


def random_blocks(kind: str, n_out: int, n_in: int, seed: int = 0) -> np.ndarray:
    """Rows of blocks of random bits with sane scales, different from block to block."""
    from gguf import GGMLQuantizationType, quants
    from gguf.constants import GGML_QUANT_SIZES

    number = GGMLQuantizationType[kind]
    n_numbers, n_bytes = GGML_QUANT_SIZES[number]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (n_out * n_in // n_numbers, n_bytes), dtype=np.uint8)
    sizes = random.uniform(0.5, 1.5, len(blocks))

    def scale(by: float) -> None:
        for at, times in _SCALES[kind].items():
            blocks[:, at : at + 2] = (sizes * times * by).astype("<f2")[:, None].view(np.uint8)

    scale(1)
    scale(WIDTH / quants.dequantize(blocks, number).std())
    return blocks.reshape(n_out, -1)


def _quantise(weight: np.ndarray, kind: str, seed: int) -> np.ndarray:
    """To `kind`; kinds that cannot be written become random numbers."""
    from gguf import GGMLQuantizationType, quants

    if kind in _SCALES:
        return random_blocks(kind, *weight.shape, seed=seed)
    return quants.quantize(np.ascontiguousarray(weight), GGMLQuantizationType[kind])


def _add_of(writer: Any, value: Any) -> Any:
    kinds = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    return {**kinds, list: writer.add_array}[type(value)]


def save_gguf(
    model: Any,
    path: Path,
    kind: str = "F32",
    extra: dict[str, np.ndarray] | None = None,
    tokenizer: dict[str, Any] | None = None,
    kinds: dict[str, str] | None = None,
    **keys: Any,
) -> dict[str, np.ndarray]:
    """Write a model of transformers as llama.cpp's converter would.

    kind: of the matrices; kinds: of those in whose names some word is.
    tokenizer: its metadata, None: the end of a text is 3 and that is all. keys: of rope.scaling.
    Returns transformers' state dict with the matrices as quantisation to `kind` leaves them.
    """
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    config, architecture = model.config, model.config.model_type
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    for key, value in (tokenizer or {"tokenizer.ggml.eos_token_id": 3}).items():
        _add_of(writer, value)(key, value)
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
        _add_of(writer, value)(f"{architecture}.rope.scaling.{key}", value)
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
        own = next((k for word, k in (kinds or {}).items() if word in name), kind)
        number = GGMLQuantizationType[own if matrix else "F32"]
        quantised = _quantise(weight, number.name, seed=len(stored))
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


_ARCHITECTURES = {
    "gemma3_text": "gemma3", "gpt_neox": "gptneox", "phi": "phi2", "mixtral": "llama", "qwen3_moe": "qwen3moe",
}  # fmt: skip
_PERMUTED = ("llama", "granite", "smollm3")
_FROM_ONE = ("gemma", "gemma2", "gemma3")  # whose norms are stored with the 1 that transformers adds later
_HEAD_BY_HEAD = ("bloom", "falcon", "gptneox")


def _plain_qkv(weight: np.ndarray, n_kv_heads: int, n_heads: int) -> np.ndarray:
    """Rows that are stored K/V head by K/V head, its queries, its key, its value: all queries, all keys, all values."""
    group = n_heads // n_kv_heads + 2
    heads = weight.reshape(n_kv_heads, group, -1, *weight.shape[1:])
    parts = (heads[:, :-2], heads[:, -2:-1], heads[:, -1:])
    return np.concatenate([part.reshape(-1, *weight.shape[1:]) for part in parts])


def _tensors(model: Any, merged: bool) -> Iterator[tuple[str, np.ndarray]]:
    """The state dict, with the experts' gate and up apart, unless they are to be merged."""
    for name, tensor in model.state_dict().items():
        weight = tensor.numpy()
        if name.endswith("experts.gate_up_proj") and not merged:
            for part, half in zip(("gate_proj", "up_proj"), np.split(weight, 2, axis=1), strict=True):
                yield f"{name.removesuffix('gate_up_proj')}{part}.weight", half
        else:
            yield name if weight.ndim < 3 else f"{name}.weight", weight


def save_any_gguf(
    model: Any, path: Path, experts: str = "F32", merged: bool = False, **keys: Any
) -> dict[str, np.ndarray]:
    """Write a model of any family in float32, as llama.cpp's converter does: names and keys are those of its library.

    experts: the kind of the matrices of experts; merged: their gate and up are one tensor. keys: of the architecture,
    dots written as `__`. Returns the experts' matrices as their kind leaves them.
    """
    import gguf

    as_stored: dict[str, np.ndarray] = {}

    config = model.config
    architecture = _ARCHITECTURES.get(config.model_type, config.model_type)
    number = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_kv_heads", None) or getattr(config, "num_key_value_heads", None) or heads
    if architecture == "falcon" and not config.new_decoder_architecture:
        kv_heads = 1 if config.multi_query else heads
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    length = getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", 2048)
    writer.add_context_length(length)
    wide = "ffn_hidden_size" if architecture == "falcon" else "intermediate_size"
    writer.add_feed_forward_length(getattr(config, wide, None) or 4 * config.hidden_size)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(getattr(config, "layer_norm_eps", None) or config.layer_norm_epsilon)
    head_dim = getattr(config, "head_dim", None)
    if head_dim and architecture != "falcon":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    for key, value in keys.items():
        _add_of(writer, value)(f"{architecture}.{key.replace('__', '.')}", value)
    for name, weight in _tensors(model, merged):
        if name in ("lm_head.weight", "embed_out.weight") and config.tie_word_embeddings:
            continue
        if architecture in _FROM_ONE and name.endswith("norm.weight"):
            weight = weight + 1
        elif architecture in _HEAD_BY_HEAD and "query_key_value" in name:
            weight = _plain_qkv(weight, kv_heads, heads)
        elif architecture in _PERMUTED and ("q_proj" in name or "k_proj" in name):
            weight = _interleave(weight, heads if "q_proj" in name else kv_heads)
        name = name.removeprefix("transformer.") if architecture == "bloom" else name
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if name.endswith("experts.gate_up_proj.weight"):  # the library has no such name of transformers
            stored = f"blk.{name.split('.')[2]}.ffn_gate_up_exps.weight"
        assert stored is not None, name
        if weight.ndim == 3 and experts != "F32":
            number = gguf.GGMLQuantizationType[experts]
            rows = _quantise(weight.reshape(-1, weight.shape[-1]), experts, seed=len(as_stored))
            as_stored[name] = gguf.quants.dequantize(rows, number).reshape(weight.shape)
            writer.add_tensor(stored, rows.reshape(*weight.shape[:2], -1), raw_dtype=number)
            continue
        writer.add_tensor(stored, np.ascontiguousarray(weight, np.float32))
    for name, factors in (("short", "short_factor"), ("long", "long_factor")):
        rope = getattr(config, "rope_parameters", None) or {}
        if factors in rope:
            writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[factors], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return as_stored
