"""GGUF files of every family that llama.cpp has, under the names of its library, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from family_cases import TEXT, logits, make
from gguf_files import save_any_gguf

from orcaserve.core.errors import UnsupportedModel
from orcaserve.model.families import FAMILIES
from orcaserve.model.loader import ModelFiles

FACTORS = {"rope__scaling__type": "longrope", "rope__scaling__original_context_length": 1100,
           "rope__dimension_count": 12}  # fmt: skip
HALF = {"rope__dimension_count": 6}
LINEAR = {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0, "rope__freq_base": 5000.0}
# architecture -> case, what of it GGUF cannot say, and its keys
FILES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen3": ("qwen3", {"attention_bias": False}, LINEAR),
    "gemma": ("gemma", {"attention_bias": False}, {}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 12},
               {"attention__sliding_window": 37, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}),
    "gemma3": ("gemma3", {"query_pre_attn_scalar": 12, "num_hidden_layers": 7, "sliding_window_pattern": 6},
               {"attention__sliding_window": 37, "rope__freq_base": 1e6}),
    "phi3": ("phi3, long, partial", {"rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]}}, FACTORS),
    "smollm3": ("smollm3", {"attention_bias": False, "mlp_bias": False}, {"rope__freq_base": 2e6}),
    "granite": ("granite", {"attention_bias": False, "mlp_bias": False},
                {"attention__scale": 0.1, "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0}),
    "olmo2": ("olmo2", {"attention_bias": False}, {}),
    "stablelm": ("stablelm", {}, HALF),
    "gptneox": ("gpt_neox", {}, HALF | {"use_parallel_residual": True}),
    "bloom": ("bloom", {}, {}),
    "falcon": ("falcon", {"rope_parameters": None}, {"tensor_data_layout": "jploski"}),
    "falcon, new": ("falcon, new", {"bias": False}, {"tensor_data_layout": "jploski"}),
    "falcon, new, one norm": ("falcon, new, one norm", {"ffn_hidden_size": None}, {"tensor_data_layout": "jploski"}),
    "llama with experts": ("mixtral", {}, {
        "attention__sliding_window": 37, "expert_count": 5, "expert_used_count": 2, "rope__freq_base": 1e6}),
    "qwen3moe": ("qwen3_moe, shares of the chosen", {"attention_bias": False}, LINEAR | {
        "expert_count": 4, "expert_used_count": 1, "expert_feed_forward_length": 128}),
    "mpt": ("mpt", {}, {"attention__max_alibi_bias": 8.0}),
    "phi2": ("phi", {}, HALF),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_the_same_logits_from_gguf(kind: str, reference: Any, runner: Any, tmp_path: Path) -> None:
    name, other, keys = FILES[kind]
    model = make(name, **other)
    save_any_gguf(model, tmp_path / "model.gguf", **keys)
    text = TEXT[:120]
    expected, got = logits(model, text), runner(reference(tmp_path / "model.gguf"))
    for place, piece in ((0, text[:1]), (1, text[1:2]), (119, text[2:])):
        error = (got.step([(0, piece)])[0] - expected[place]).abs().max() / expected[place].abs().max()
        assert error < 1e-4, f"position {place}: {error:.2e}"


def test_every_architecture_has_its_file() -> None:
    elsewhere = {"llama", "qwen2", "gpt2"}  # in test_families
    assert {kind.partition(",")[0] for kind in FILES} | elsewhere == {a for f in FAMILIES for a in f.architectures}


@pytest.mark.parametrize(
    ("kind", "keys", "named"),
    [
        ("mpt", {"attention__max_alibi_bias": 8.0, "attention__clamp_kqv": 6.0}, "clip_qkv"),
        ("mpt", {}, "alibi"),
        ("phi3", FACTORS | {"rope__scaling__type": "spiral"}, ""),
    ],
)
def test_keys_that_would_change_numbers(kind: str, keys: dict[str, Any], named: str, tmp_path: Path) -> None:
    name, other, _ = FILES[kind]
    save_any_gguf(make(name, **other), tmp_path / "model.gguf", **keys)
    if not named:  # the factors are what counts, not what the kind is called
        with ModelFiles(tmp_path / "model.gguf") as files:
            assert files.spec.rope is not None and files.spec.rope.kind == "longrope"
        return
    with pytest.raises(UnsupportedModel, match=named):
        ModelFiles(tmp_path / "model.gguf")


def test_families_without_gguf_are_refused_with_those_that_have_it(tmp_path: Path) -> None:
    model = make("gptj")
    model.config.model_type = "gptj"
    save_any_gguf(model, tmp_path / "model.gguf")
    with pytest.raises(UnsupportedModel, match=r"'gptj' are not supported in GGUF; .*qwen3.*gemma3"):
        ModelFiles(tmp_path / "model.gguf")
