"""GGUF metadata in the names that transformers' config.json uses, so that a family is read in one way."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.tensor_info import TensorInfo
from orcaserve.core.errors import CheckpointError, UnsupportedModel

# metadata key after "<architecture>." -> config key
_SIZES = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "attention.sliding_window": "sliding_window",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base_swa": "rope_local_base_freq",
}
_FLAGS = {"use_parallel_residual": "use_parallel_residual"}
_GPT2 = {
    "max_position_embeddings": "n_positions",
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "layer_norm_eps": "layer_norm_epsilon",
}
_RENAMED = {"gpt2": _GPT2}  # architectures whose config.json has names of its own
_EOS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")

ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that are settings: they go into the config, and are no parameters of the model."""


class _Values:
    """The metadata of one architecture."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self._metadata, self.architecture = metadata, architecture

    def number(self, key: str) -> int | float | None:
        """One number; a list with one number per layer must hold the same one for all."""
        full = f"{self.architecture}.{key}"
        value = self._metadata.get(full)
        if isinstance(value, np.ndarray) and value.size:
            if (value != value[0]).any():
                raise UnsupportedModel(f"{full} differs from layer to layer, which is not supported")
            value = value[0].item()
        if value is not None and type(value) not in (int, float):
            raise CheckpointError(f"{full} is not a number")
        return value

    def text(self, key: str) -> str | None:
        value = self._metadata.get(f"{self.architecture}.{key}")
        if value is not None and not isinstance(value, str):
            raise CheckpointError(f"{self.architecture}.{key} is not a string")
        return value


def config_of(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo],
    read: Callable[[str], NDArray[np.float32]],
) -> dict[str, Any]:
    """A config as transformers would write it. Raises CheckpointError or UnsupportedModel.

    `read` gives the numbers of a tensor; it is called for ROPE_TENSORS only.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise CheckpointError("general.architecture is missing")
    if metadata.get("split.count", 1) not in (0, 1):
        raise UnsupportedModel("a GGUF file split into several is not supported: merge the parts into one file")
    values = _Values(metadata, architecture)
    config: dict[str, Any] = {"model_type": architecture}
    for key, name in _SIZES.items():
        value = values.number(key)
        if value is not None:
            config[name] = value
    embedding = tensors.get("token_embd.weight")
    if embedding is not None:
        config.setdefault("vocab_size", embedding.shape[0])
    if values.number("attention.value_length") not in (None, config.get("head_dim")):
        raise UnsupportedModel(f"{architecture}: heads whose keys and values differ in size are not supported")
    for key, name in _FLAGS.items():
        flag = metadata.get(f"{architecture}.{key}")
        if flag is not None:
            config[name] = flag
    if config.get("sliding_window") == 0:  # a way to say that there is none
        config["sliding_window"] = None
    config["tie_word_embeddings"] = "output.weight" not in tensors
    config["attention_bias"] = "blk.0.attn_output.bias" in tensors
    config["mlp_bias"] = "blk.0.ffn_down.bias" in tensors
    if architecture in _OF_ITS_OWN:
        config |= _OF_ITS_OWN[architecture](values, config, tensors)
    config |= _rope(values, config, {name: read(name) for name in ROPE_TENSORS if name in tensors})
    renamed = _RENAMED.get(architecture, {})
    return {renamed.get(name, name): value for name, value in config.items()}


def _gemma(values: _Values, config: Mapping[str, Any], tensors: Container[str]) -> dict[str, Any]:
    """Gemma 2 and 3. Files do not say by what scores are scaled: it is by the size of a head, but of the largest model
    of each, which is known by its layers, by the share of a head in the hidden size."""
    hidden, heads, size = (config.get(key) for key in ("hidden_size", "num_attention_heads", "head_dim"))
    largest = config.get("num_hidden_layers") == {"gemma2": 46, "gemma3": 62}[values.architecture]
    own: dict[str, Any] = {}
    if hidden and heads:
        own["query_pre_attn_scalar"] = hidden / heads if largest or not size else size
    if values.architecture == "gemma3":
        own["sliding_window_pattern"] = values.number("attention.sliding_window_pattern")
    return own


def _falcon(values: _Values, config: Mapping[str, Any], tensors: Container[str]) -> dict[str, Any]:
    new = "blk.0.attn_norm_2.weight" in tensors
    heads = config.get("num_key_value_heads", config.get("num_attention_heads"))
    return {
        "new_decoder_architecture": new,
        "multi_query": heads == 1 and not new,
        "num_kv_heads": heads,
        "bias": config["attention_bias"],
        "ffn_hidden_size": config.get("intermediate_size"),
    }


def _llama(values: _Values, config: Mapping[str, Any], tensors: Container[str]) -> dict[str, Any]:
    """Mixtral has no architecture of its own."""
    return {"model_type": "llama with experts"} if config.get("num_local_experts") else {}


def _qwen3moe(values: _Values, config: Mapping[str, Any], tensors: Container[str]) -> dict[str, Any]:
    """Files do not say that the weights of the experts chosen sum to 1: readers take it so."""
    return {"norm_topk_prob": True}


def _mpt(values: _Values, config: Mapping[str, Any], tensors: Container[str]) -> dict[str, Any]:
    clamp, most = values.number("attention.clamp_kqv"), values.number("attention.max_alibi_bias")
    options = {"clip_qkv": clamp or None, "alibi": bool(most), "alibi_bias_max": most, "qk_ln": _Q_NORM in tensors}
    return {"attn_config": options, "no_bias": not config["attention_bias"]}


def _phi3(values: _Values, config: Mapping[str, Any], tensors: Container[str]) -> dict[str, Any]:
    return {"original_max_position_embeddings": values.number("rope.scaling.original_context_length")}


def _stablelm(values: _Values, config: Mapping[str, Any], tensors: Container[str]) -> dict[str, Any]:
    parallel = "blk.0.ffn_norm.weight" not in tensors
    return {
        "qk_layernorm": _Q_NORM in tensors,
        "use_parallel_residual": parallel,
        "use_qkv_bias": "blk.0.attn_q.bias" in tensors,
    }


_Q_NORM = "blk.0.attn_q_norm.weight"
# What files of an architecture say in tensors, or in keys of its own.
_OF_ITS_OWN: dict[str, Callable[[_Values, Mapping[str, Any], Container[str]], dict[str, Any]]] = {
    "gemma2": _gemma,
    "gemma3": _gemma,
    "falcon": _falcon,
    "llama": _llama,
    "mpt": _mpt,
    "phi3": _phi3,
    "qwen3moe": _qwen3moe,
    "stablelm": _stablelm,
}


def generation_config_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What generation_config.json would say: the ids that end a text."""
    eos = [metadata[key] for key in _EOS if type(metadata.get(key)) is int]
    return {"eos_token_id": eos}


def _rope(values: _Values, config: Mapping[str, Any], factors: Mapping[str, NDArray[np.float32]]) -> dict[str, Any]:
    """rope_theta, rope_scaling and partial_rotary_factor, as far as the file sets them."""
    rope: dict[str, Any] = {}
    theta = values.number("rope.freq_base")
    if theta is not None:
        rope["rope_theta"] = theta
    rotary, heads, hidden = (
        values.number("rope.dimension_count"),
        config.get("num_attention_heads"),
        config.get("hidden_size"),
    )
    if rotary and heads and hidden:
        rope["partial_rotary_factor"] = rotary / (config.get("head_dim") or hidden / heads)
    scaling = _scaling(values, config, factors)
    if scaling:
        rope["rope_scaling"] = scaling
    return rope


def _scaling(values: _Values, config: Mapping[str, Any], factors: Mapping[str, NDArray[np.float32]]) -> dict[str, Any]:
    kind = values.text("rope.scaling.type") or "none"
    factor = values.number("rope.scaling.factor") or values.number("rope.scale_linear")
    original = values.number("rope.scaling.original_context_length")
    attention = values.number("rope.scaling.attn_factor") or values.number("rope.scaling.yarn_attn_factor")
    if values.number("rope.scaling.yarn_log_multiplier") or values.number("rope.scaling.yarn_ext_factor"):
        raise UnsupportedModel("yarn with a log multiplier or an extrapolation factor of its own is not supported")
    if "rope_freqs.weight" in factors:
        # The converter has already worked llama3's scaling (or another) out into one divisor per frequency.
        return {"rope_type": "divisors", "divisors": factors["rope_freqs.weight"].tolist(), "factor": factor or 1.0}
    if "rope_factors_long.weight" in factors and "rope_factors_short.weight" in factors:
        scaling: dict[str, Any] = {
            "rope_type": "longrope",
            "long_factor": factors["rope_factors_long.weight"].tolist(),
            "short_factor": factors["rope_factors_short.weight"].tolist(),
        }
        if attention is not None:
            scaling["attention_factor"] = attention
    elif kind == "yarn":
        scaling = {"rope_type": "yarn", "factor": factor}
        for key in ("beta_fast", "beta_slow"):
            beta = values.number(f"rope.scaling.yarn_{key}")
            if beta is not None:
                scaling[key] = beta
        if attention is not None:
            scaling["attention_multiplier"] = attention
    elif kind == "linear" or (kind == "none" and values.number("rope.scale_linear")):
        return {"rope_type": "linear", "factor": factor or 1.0}
    elif kind == "none":
        return {}
    else:
        raise UnsupportedModel(
            f"rope scaling of kind {kind} is not supported in GGUF; none, linear, yarn, longrope are"
        )
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    return scaling
