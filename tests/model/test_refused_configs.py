"""Options that a family's config.json may hold and that would change numbers: read, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from family_cases import make

from orcaserve.core.errors import CheckpointError, ModelError, UnsupportedModel
from orcaserve.model.loader import ModelFiles

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma", {"hidden_activation": "gelu"}, "hidden_activation"),
    ("gemma2", {"layer_types": ["chunked_attention"] * 4}, "layer_types: 'chunked_attention'.*full_attention"),
    ("gemma3", {"model_type": "gemma3"}, "'gemma3' are not supported; .*gemma3_text"),
    ("gemma3", {"hidden_activation": "mish"}, "activation 'mish' is not supported; silu"),
    ("phi3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "phi3: rope kind 'linear'.*longrope"),
    ("qwen3", {"rope_parameters": {"rope_type": "axial"}}, "rope kind 'axial' is not supported; default"),
    ("stablelm", {"qk_layernorm": True}, "qk_layernorm"),
    ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before"),
    ("opt", {"word_embed_proj_dim": 36}, "word_embed_proj_dim"),
    ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine"),
    ("opt", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
    ("bloom", {"slow_but_exact": True}, "slow_but_exact"),
    ("falcon", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn"),
    ("falcon, new", {"num_ln_in_parallel_attn": 3}, "num_ln_in_parallel_attn"),
    ("falcon, new", {"parallel_attn": False}, "parallel_attn"),
    ("mpt", {"no_bias": False}, "no_bias"),
    ("mpt", {"expansion_ratio": 3}, "expansion_ratio"),
    ("mpt", {"logit_scale": 0.5}, "logit_scale"),
    ("mpt", {"norm_type": "rmsnorm"}, "norm_type"),
    ("mpt", {"attn_config": {"clip_qkv": 6.0}}, "attn_config: clip_qkv"),
    ("mpt", {"attn_config": {"qk_ln": True}}, "attn_config: qk_ln"),
    ("mpt", {"attn_config": {"prefix_lm": True}}, "attn_config: prefix_lm"),
    ("gemma3", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
    ("mpt", {"attn_config": {"alibi_bias_max": 6}}, "attn_config: alibi_bias_max"),
    ("mpt", {"attn_config": {"alibi": False}}, "attn_config: alibi"),
    ("mpt", {"attn_config": {"attn_type": "multiquery_attention"}}, "attn_config: attn_type"),
]

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("gemma2", {"sliding_window": 0}, "sliding_window must be an integer from 1"),
    ("gemma2", {"layer_types": ["full_attention"]}, "layer_types must be a list of 4"),
    ("gemma2", {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping must be a number"),
    ("gemma3", {"rope_parameters": {"full_attention": 3}}, "rope_parameters: full_attention must be an object"),
    ("gemma3", {"head_dim": 7}, "an even number of dimensions, a head has 7"),
    ("qwen2, windows", {"max_window_layers": -1}, "max_window_layers must be an integer from 0"),
    ("mixtral", {"num_experts_per_tok": 6}, "num_experts_per_tok must be an integer from 1 to 5"),
    ("mixtral", {"num_local_experts": 0}, "num_local_experts must be an integer from 1"),
    ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step must be an integer from 1"),
    ("qwen3_moe", {"mlp_only_layers": [4]}, "mlp_only_layers must be a list of integers from 0 to 3"),
    ("qwen3_moe", {"mlp_only_layers": 1}, "mlp_only_layers must be a list of integers from 0 to 3"),
    ("smollm3", {"no_rope_layers": [1, 2, 0, 1, 1]}, "no_rope_layers must hold 0 and 1"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers must be a list of 5"),
    ("granite", {"logits_scaling": 0}, "logits_scaling must be a number"),
    ("gptj", {"rotary_dim": 13}, "rotary_dim must be even and at most 12"),
    ("gptj", {"rotary_dim": 14}, "rotary_dim must be even and at most 12"),
    ("phi", {"num_attention_heads": 7}, "hidden_size 72 is not a multiple of the 7 attention heads"),
    (
        "phi3, long, partial",
        {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0]}},
        "short_factor must be a list of 8 numbers",
    ),
]


@pytest.fixture(scope="module")
def config_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """config_of(case) -> a folder with the model, made once, whose config may be written anew."""
    folders: dict[str, tuple[Path, str]] = {}

    def folder(name: str) -> tuple[Path, dict[str, Any]]:
        if name not in folders:
            path = tmp_path_factory.mktemp("refused")
            make(name).save_pretrained(path)
            folders[name] = (path, (path / "config.json").read_text())
        path, text = folders[name]
        return path, json.loads(text)

    return folder


@pytest.mark.parametrize(
    ("name", "change", "words", "error"),
    [*((*row, UnsupportedModel) for row in REFUSED), *((*row, CheckpointError) for row in WRONG)],
)
def test_what_is_wrong_is_named(
    name: str, change: dict[str, Any], words: str, error: type[ModelError], config_of: Any
) -> None:
    path, config = config_of(name)
    (path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(error, match=words):
        ModelFiles(path)


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("gemma3, scaled", {"rope_theta": 1e6, "rope_local_base_freq": 3000.0,
                            "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
        ("gpt_neox", {"rotary_pct": 0.5, "rotary_emb_base": 10000}),
        ("phi", {"partial_rotary_factor": 0.5, "rope_theta": 10000.0}),
        ("qwen3", {"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    ],
)  # fmt: skip
def test_rope_as_older_files_write_it(name: str, old: dict[str, Any], config_of: Any) -> None:
    path, config = config_of(name)
    (path / "config.json").write_text(json.dumps(config))
    with ModelFiles(path) as files:
        new = files.spec
    del config["rope_parameters"]
    (path / "config.json").write_text(json.dumps(config | old))
    with ModelFiles(path) as files:
        assert files.spec == new


def test_the_first_name_of_longrope(config_of: Any) -> None:
    path, config = config_of("phi3, long, partial")
    rope = config.pop("rope_parameters")
    rope["type"] = "su"
    del rope["rope_type"]
    share = rope.pop("partial_rotary_factor")
    (path / "config.json").write_text(json.dumps(config | {"rope_scaling": rope, "partial_rotary_factor": share}))
    with ModelFiles(path) as files:
        assert files.spec.rope is not None and files.spec.rope.kind == "longrope" and files.spec.rope.dim == 12
