"""Tiny random models of every family, with the odd options on. Imported by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

VOCABULARY = 131
TEXT = [int(t) for t in np.random.default_rng(0).integers(0, VOCABULARY, 1100)]
PLACES = (0, 1, 100, 1000)

# Six query heads over two K/V heads, or six heads; hidden sizes that differ from heads times size where they may.
_LLAMA: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 2048,
}  # fmt: skip
_GEMMA = _LLAMA | {"hidden_size": 60}
_ONE_SIZE = _LLAMA | {"hidden_size": 72}  # for families without a head_dim of their own
del _ONE_SIZE["head_dim"]
_MHA = {key: value for key, value in _ONE_SIZE.items() if key != "num_key_value_heads"}
_GPT = {"n_embd": 72, "n_layer": 3, "n_head": 6, "n_positions": 1200}
_BIASES = {"attention_bias": True, "mlp_bias": True}
_LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}
_LONG: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 1e4,
    "short_factor": [1.0 + i / 10 for i in range(6)], "long_factor": [2.0 + i for i in range(6)],
}  # fmt: skip
_MPT = {"d_model": 72, "n_heads": 6, "n_layers": 3}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _LLAMA | _BIASES | {"hidden_size": 66}),
    "mistral, window": ("Mistral", _LLAMA | {"sliding_window": 37}),
    "qwen2, windows": (
        "Qwen2",
        _ONE_SIZE | {"use_sliding_window": True, "sliding_window": 37, "max_window_layers": 2},
    ),
    "qwen3": ("Qwen3", _LLAMA | {"attention_bias": True, "rope_parameters": _LINEAR}),
    "qwen3, tied, windows": (
        "Qwen3",
        _LLAMA | {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 20,
                  "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "mixtral": ("Mixtral", _LLAMA | {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 37}),
    "mixtral, all experts": ("Mixtral", _LLAMA | {"num_local_experts": 3, "num_experts_per_tok": 3,
                                                  "tie_word_embeddings": True}),
    "qwen3_moe": ("Qwen3Moe", _LLAMA | {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 80}),
    "qwen3_moe, shares of the chosen": (
        "Qwen3Moe",
        _LLAMA | {"num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 128, "norm_topk_prob": True,
                  "attention_bias": True, "rope_parameters": _LINEAR},
    ),
    "qwen3_moe, dense layers": (
        "Qwen3Moe",
        _LLAMA | {"num_experts": 9, "num_experts_per_tok": 4, "moe_intermediate_size": 96, "decoder_sparse_step": 2,
                  "mlp_only_layers": [3], "tie_word_embeddings": True, "norm_topk_prob": True},
    ),
    "gemma": ("Gemma", _GEMMA | {"attention_bias": True}),
    "gemma, untied": ("Gemma", _GEMMA | {"tie_word_embeddings": False, "hidden_act": "gelu"}),
    "gemma2": ("Gemma2", _GEMMA | {"sliding_window": 37, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 3.0,
                                   "final_logit_softcapping": 5.0}),
    "gemma2, no caps": ("Gemma2", _GEMMA | {"attn_logit_softcapping": None, "final_logit_softcapping": None,
                                            "sliding_window": 500, "attention_bias": True}),
    "gemma3": ("Gemma3", _GEMMA | {"sliding_window": 37, "sliding_window_pattern": 3, "query_pre_attn_scalar": 20}),
    "gemma3, scaled": (
        "Gemma3",
        _GEMMA | {"sliding_window": 90, "final_logit_softcapping": 5.0,
                  "layer_types": ["full_attention", "sliding_attention"] * 2,
                  "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                                      "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0}}},
    ),
    "phi3": ("Phi3", _ONE_SIZE | {"sliding_window": 37, "tie_word_embeddings": True}),
    "phi3, long, partial": (
        "Phi3",
        _ONE_SIZE | {"hidden_size": 96, "original_max_position_embeddings": 1100, "max_position_embeddings": 8192,
                     "rope_parameters": _LONG | {"partial_rotary_factor": 0.75}},
    ),
    "smollm3": ("SmolLM3", _ONE_SIZE | _BIASES | {"num_hidden_layers": 5}),
    "smollm3, windows": (
        "SmolLM3",
        _ONE_SIZE | {"use_sliding_window": True, "sliding_window": 37, "no_rope_layers": [0, 1, 1, 0],
                     "tie_word_embeddings": False},
    ),
    "granite": (
        "Granite",
        _ONE_SIZE | _BIASES | {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22,
                               "attention_multiplier": 0.1},
    ),
    "granite, tied": ("Granite", _ONE_SIZE | {"tie_word_embeddings": True, "attention_multiplier": 0.2}),
    "olmo2": ("Olmo2", _ONE_SIZE | {"attention_bias": True}),
    "olmo2, tied": ("Olmo2", _ONE_SIZE | {"tie_word_embeddings": True, "rope_parameters": _LINEAR}),
    "stablelm": ("StableLm", _ONE_SIZE | {"use_qkv_bias": True, "rope_parameters": {"rope_theta": 1e4,
                                          "rope_type": "default", "partial_rotary_factor": 0.5}}),
    "stablelm, parallel": (
        "StableLm",
        _ONE_SIZE | {"use_parallel_residual": True, "tie_word_embeddings": True,
                     "rope_parameters": _LINEAR | {"partial_rotary_factor": 0.5}},
    ),
    "gpt2": ("GPT2", _GPT),
    "opt": ("OPT", {"hidden_size": 72, "ffn_dim": 100, "num_hidden_layers": 3, "num_attention_heads": 6,
                    "max_position_embeddings": 1200}),
    "opt, untied, no biases": (
        "OPT",
        {"hidden_size": 48, "ffn_dim": 100, "num_hidden_layers": 3, "num_attention_heads": 4, "enable_bias": False,
         "max_position_embeddings": 1200, "tie_word_embeddings": False, "activation_function": "gelu"},
    ),
    "gpt_neox": ("GPTNeoX", _MHA | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                                        "partial_rotary_factor": 0.5}}),
    "gpt_neox, one after the other": (
        "GPTNeoX",
        _MHA | {"use_parallel_residual": False, "attention_bias": False, "tie_word_embeddings": True,
                "hidden_act": "gelu_fast", "rope_parameters": _LINEAR | {"partial_rotary_factor": 0.5}},
    ),
    "gptj": ("GPTJ", _GPT | {"rotary_dim": 8}),
    "gptj, tied": ("GPTJ", _GPT | {"rotary_dim": 12, "tie_word_embeddings": True, "n_inner": 100}),
    "bloom": ("Bloom", {"hidden_size": 72, "n_layer": 3, "n_head": 6}),
    "bloom, untied": ("Bloom", {"hidden_size": 64, "n_layer": 3, "n_head": 4, "tie_word_embeddings": False}),
    "falcon": ("Falcon", _MHA | {"num_hidden_layers": 3, "rope_parameters": _LINEAR}),
    "falcon, new": ("Falcon", _MHA | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon, new, one norm": (
        "Falcon",
        _MHA | {"new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1,
                "tie_word_embeddings": False, "ffn_hidden_size": 100},
    ),
    "falcon, rw": ("Falcon", _MHA | {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}),
    "falcon, side by side, many": ("Falcon", _MHA | {"multi_query": False, "hidden_size": 48}),
    "mpt": ("Mpt", _MPT),
    "mpt, scaled": (
        "Mpt",
        _MPT | {"n_heads": 4, "d_model": 64, "attn_config": {"softmax_scale": 0.2}},
    ),
    "phi": ("Phi", _ONE_SIZE | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                                    "partial_rotary_factor": 0.5}}),
    "phi, norms": ("Phi", _ONE_SIZE | {"qk_layernorm": True, "tie_word_embeddings": True, "hidden_act": "relu",
                                       "rope_parameters": _LINEAR | {"partial_rotary_factor": 0.5}}),
}  # fmt: skip


def randomise(model: Any, seed: int = 0) -> Any:
    """Larger weights than initialisation gives, biases and norms included: so that every one of them matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = "norm" in name or "ln_" in name
            parameter.copy_(1 + 0.2 * noise if is_norm and name.endswith("weight") else 0.15 * noise)
    return model.eval()


def config_of(kind: str) -> Any:
    """transformers' configuration class."""
    import transformers

    return getattr(transformers, kind + {"Gemma3": "TextConfig"}.get(kind, "Config"))


def make(name: str, **other: Any) -> Any:
    """The case's model of transformers."""
    import transformers

    kind, options = CASES[name]
    head = {"GPT2": "LMHeadModel"}.get(kind, "ForCausalLM")
    ids = {"vocab_size": VOCABULARY, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    config = config_of(kind)(**(ids | options | other))
    # The plain way to attend, but for Falcon, where it adds ALiBi twice.
    plain = "sdpa" if kind == "Falcon" else "eager"
    return randomise(getattr(transformers, kind + head)._from_config(config, attn_implementation=plain))


def logits(model: Any, text: list[int] = TEXT) -> Tensor:
    """[tokens, vocabulary], of transformers."""
    with torch.no_grad():
        found: Tensor = model(torch.tensor([text])).logits[0]
    return found
