"""The loader fails rather than guesses; every parameter is set exactly once."""

from __future__ import annotations

import contextlib
import json
import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from orcaserve.core.errors import CheckpointError, ModelError, ModelNotFound, UnsupportedModel
from orcaserve.model.reference.builder import load_reference

Change = Callable[[dict[str, Any], dict[str, Tensor]], None]
Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def whole(tiny_llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("whole")
    tiny_llama(num_hidden_layers=1).save_pretrained(folder)
    return folder


@pytest.fixture
def changed(whole: Path, tmp_path: Path) -> Callable[[Change], Path]:
    """changed(f) -> a copy of the checkpoint after f(config, tensors)."""

    def change(f: Change) -> Path:
        config, tensors = json.loads((whole / "config.json").read_text()), load_file(whole / "model.safetensors")
        f(config, tensors)
        (tmp_path / "config.json").write_text(json.dumps(config))
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        return tmp_path

    return change


def refused(folder: Path, *words: str, error: type[ModelError] = CheckpointError) -> None:
    with pytest.raises(error) as caught:
        load_reference(folder)
    for word in words:
        assert word in str(caught.value)


def test_missing_short_and_unknown_tensors(changed: Any) -> None:
    refused(changed(lambda c, t: t.pop(Q)), "self_attn.q_proj.weight", "[96, 96]", "missing")
    refused(changed(lambda c, t: t.update({Q: t[Q][:-1].clone()})), Q, "[95, 96]", "[96, 96]")
    refused(changed(lambda c, t: t.update({Q: t[Q].reshape(-1)})), Q, "[9216]")
    refused(changed(lambda c, t: t.update({"model.layers.0.extra.weight": torch.ones(2)})), "extra")
    refused(changed(lambda c, t: t.update({"model.layers.1.input_layernorm.weight": torch.ones(96)})), "layers.1.")
    refused(changed(lambda c, t: t.update({Q.replace("weight", "bias"): torch.ones(96)})), "q_proj.bias")
    refused(changed(lambda c, t: t.update({Q.removeprefix("model."): t[Q].clone()})), Q, "same parameter")


def test_sizes_that_disagree_with_the_config(changed: Any) -> None:
    for key, value in [
        ("hidden_size", 192), ("intermediate_size", 161), ("num_hidden_layers", 2), ("vocab_size", 130),
        ("num_key_value_heads", 3), ("head_dim", 8), ("attention_bias", True), ("num_key_value_heads", 4),
        ("num_hidden_layers", 10**6), ("hidden_size", 0), ("hidden_size", -96), ("hidden_size", 96.0),
        ("hidden_size", "96"), ("hidden_size", None), ("vocab_size", True), ("rms_norm_eps", float("nan")),
        ("tie_word_embeddings", 1), ("rope_parameters", 3), ("hidden_act", 5), ("num_attention_heads", 10**9),
    ]:  # fmt: skip
        refused(changed(lambda c, t, k=key, v=value: c.update({k: v})))


def test_unsupported_kinds_are_named(changed: Any, tmp_path: Path) -> None:
    for change, words in [
        ({"model_type": "mamba"}, ("mamba", "llama", "gpt2")),
        ({"model_type": None}, ("llama",)),
        ({"model_type": ["llama"]}, ("llama",)),
        ({"hidden_act": "mish"}, ("mish", "silu")),
        ({"rope_parameters": {"rope_type": "spiral"}}, ("spiral", "yarn")),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, ("quantization_config", "bitsandbytes", "awq")),
        ({"quantization_config": ["gptq"]}, ("quantization_config", "gptq")),
        ({"num_local_experts": 8}, ("num_local_experts",)),
    ]:
        refused(changed(lambda c, t, change=change: c.update(change)), *words, error=UnsupportedModel)
    with pytest.raises(ModelNotFound):
        load_reference(tmp_path / "nowhere")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(bad: float, changed: Any) -> None:
    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors[Q][3, 3] = bad

    refused(changed(change), Q, "finite")


def test_harmless_buffers_are_ignored(changed: Any, tiny_gpt2: Any, tmp_path: Path) -> None:
    load_reference(changed(lambda c, t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})))
    model = tiny_gpt2()
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    # As the first GPT-2 files have it: no prefix, and the causal mask as a buffer.
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    tensors |= {"h.0.attn.bias": torch.ones(1, 1, 4, 4), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    save_file(tensors, tmp_path / "model.safetensors")
    load_reference(tmp_path)


def logits(folder: Path, run: Any) -> Tensor:
    return run(folder).step([(0, [1, 2, 3])])


def test_b50_tied_heads(changed: Any, run: Any, caplog: pytest.LogCaptureFixture) -> None:
    """(a) tied, no head: shared. (b) tied, with a head: ignored, a warning if it differs. (c) untied, no head: refused.
    (d) not said: untied for Llama."""

    def tie(config: dict[str, Any], tensors: dict[str, Tensor], head: str) -> None:
        config["tie_word_embeddings"] = True
        if head == "none":
            del tensors["lm_head.weight"]
        elif head == "equal":
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    with caplog.at_level(logging.WARNING):
        shared = logits(changed(lambda c, t: tie(c, t, "none")), run)
        assert torch.equal(logits(changed(lambda c, t: tie(c, t, "equal")), run), shared)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert torch.equal(logits(changed(lambda c, t: tie(c, t, "different")), run), shared)
    assert "lm_head.weight differs" in caplog.text
    refused(changed(lambda c, t: t.pop("lm_head.weight")), "lm_head.weight", "missing")
    untied = logits(changed(lambda c, t: c.pop("tie_word_embeddings", None)), run)
    assert not torch.allclose(untied, shared)


def test_b50_gpt2_is_tied_unless_it_says_otherwise(tiny_gpt2: Any, run: Any, tmp_path: Path) -> None:
    model = tiny_gpt2()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("tie_word_embeddings", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with torch.no_grad():
        expected = model(torch.tensor([[1, 2, 3]])).logits[0, -1:]
    torch.testing.assert_close(logits(tmp_path, run), expected, rtol=1e-4, atol=1e-4)


def test_eos_ids_within_the_vocabulary_reach_the_spec(whole: Path, changed: Any) -> None:
    assert load_reference(whole).spec.eos_ids == {3}
    assert load_reference(changed(lambda c, t: c.update(eos_token_id=[5, 131]))).spec.eos_ids >= {5}


JSON_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(), st.text(max_size=5), st.just([]), st.just({})
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_config_value_loads_or_is_refused(data: st.DataObject, whole: Path, changed: Any) -> None:
    config = json.loads((whole / "config.json").read_text())
    key = data.draw(st.sampled_from([*config, "sliding_window", "partial_rotary_factor", "rope_scaling"]))
    folder = changed(lambda c, t: c.update({key: data.draw(JSON_VALUES)}))
    with contextlib.suppress(ModelError):
        load_reference(folder)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 1500), word=st.sampled_from([0, 1, 7, 2**31, 2**63, 2**64 - 1]), width=st.sampled_from("BIQ"))
def test_any_damage_to_a_gguf_header_is_refused_or_harmless(
    at: int, word: int, width: str, tiny_llama: Any, save_gguf: Any, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    if not path.exists():
        save_gguf(tiny_llama(num_hidden_layers=1), path, "Q8_0")
    raw = bytearray(path.read_bytes())
    size = struct.calcsize(width)
    struct.pack_into("<" + width, raw, at, word % 2 ** (8 * size))
    (tmp_path / "damaged.gguf").write_bytes(raw)
    with contextlib.suppress(ModelError):
        load_reference(tmp_path / "damaged.gguf")
