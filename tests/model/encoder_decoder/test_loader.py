"""The loader of encoder-decoder models fails rather than guesses; every parameter is set exactly once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from orcaserve.core.errors import CheckpointError, ModelError, UnsupportedModel
from orcaserve.model.encoder_decoder.registry import is_encoder_decoder
from orcaserve.model.reference.encoder_decoder import EncoderDecoder, load_encoder_decoder

sys.path.insert(0, str(Path(__file__).parents[2]))
from encoder_decoders import VOCABULARY, save

Change = Callable[[dict[str, Any], dict[str, Tensor]], None]
T5_Q = "decoder.block.2.layer.1.EncDecAttention.q.weight"
BART_Q = "model.decoder.layers.1.encoder_attn.q_proj"


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wholes")
    for kind in ("t5", "t5 v1.1", "bart", "marian"):
        save(kind, folder / kind)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture
def changed(wholes: dict[str, Path], tmp_path: Path) -> Callable[[str, Change], Path]:
    """changed(kind, f) -> a copy of the checkpoint after f(config, tensors). The generation's settings are the
    config's."""

    def change(kind: str, f: Change) -> Path:
        whole = wholes[kind]
        config = json.loads((whole / "generation_config.json").read_text()) | json.loads(
            (whole / "config.json").read_text()
        )
        tensors = load_file(whole / "model.safetensors")
        f(config, tensors)
        (tmp_path / "config.json").write_text(json.dumps(config))
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        return tmp_path

    return change


def refused(folder: Path, *words: str, error: type[ModelError] = CheckpointError) -> None:
    with pytest.raises(error) as caught:
        load_encoder_decoder(folder)
    for word in words:
        assert word in str(caught.value)


def test_missing_short_and_unknown_tensors(changed: Any) -> None:
    refused(changed("t5", lambda c, t: t.pop(T5_Q)), T5_Q, "[40, 48]", "missing")
    refused(changed("t5", lambda c, t: t.update({T5_Q: t[T5_Q][:-1].clone()})), T5_Q, "[39, 48]", "[40, 48]")
    refused(
        changed("t5", lambda c, t: t.update({"encoder.block.2.layer.0.layer_norm.weight": torch.ones(48)})), "block.2"
    )
    refused(changed("t5", lambda c, t: t.pop("shared.weight")), "shared.weight", "missing")
    bias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    refused(changed("t5", lambda c, t: t.pop(bias)), bias, "[12, 4]")
    refused(changed("bart", lambda c, t: t.pop(f"{BART_Q}.bias")), "encoder_attn.q_proj.bias", "[48]")
    table = "model.encoder.embed_positions.weight"
    refused(changed("bart", lambda c, t: t.update({table: t[table][2:].clone()})), "[160, 48]", "[162, 48]")
    refused(changed("bart", lambda c, t: t.update(final_logits_bias=torch.ones(VOCABULARY))), "final_logits_bias")


def test_config_values_that_make_no_sense_are_named(changed: Any) -> None:
    refused(changed("t5", lambda c, t: c.pop("decoder_start_token_id")), "decoder_start_token_id is missing")
    refused(changed("t5", lambda c, t: c.update(decoder_start_token_id=VOCABULARY)), "decoder_start_token_id", "96")
    refused(changed("bart", lambda c, t: c.update(forced_bos_token_id="x")), "forced_bos_token_id must be a token id")
    refused(
        changed("bart", lambda c, t: c.update(decoder_attention_heads=7)), "d_model 48", "decoder_attention_heads 7"
    )
    refused(changed("t5", lambda c, t: c.update(relative_attention_num_buckets=6)), "relative_attention_num_buckets")
    refused(changed("t5", lambda c, t: c.update(feed_forward_proj="wide-relu")), "feed_forward_proj", "wide-relu",
            error=UnsupportedModel)  # fmt: skip
    refused(
        changed("bart", lambda c, t: c.update(activation_function="mish")), "activation 'mish'", error=UnsupportedModel
    )
    apart = {"share_encoder_decoder_embeddings": False}
    refused(changed("marian", lambda c, t: c.update(apart)), "share_encoder_decoder_embeddings", error=UnsupportedModel)
    refused(
        changed("t5", lambda c, t: c.update(model_type="led")), "'led'", "t5, mt5, bart, marian", error=UnsupportedModel
    )


def test_one_embedding_under_many_names(changed: Any) -> None:
    """Or under another than the usual one; but two that differ are none."""

    def copies(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = tensors["model.shared.weight"].clone()

    def moved(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors.pop("model.shared.weight")

    def differing(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.shared.weight"] + 1

    for change in (copies, moved):
        assert load_encoder_decoder(changed("bart", change)).weights.embedding.weight.shape == (VOCABULARY, 48)
    refused(changed("bart", differing), "lm_head.weight differs from shared.weight", error=UnsupportedModel)


def test_t5_tells_by_old_and_by_new_keys_whether_its_head_is_scaled(changed: Any) -> None:
    """Old: tie_word_embeddings alone. New: a key of its own, and tied to whatever is there."""

    def read(kind: str, **values: Any) -> tuple[float, bool]:
        def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
            config.pop("scale_decoder_outputs", None)
            config.update(values)

        model: EncoderDecoder = load_encoder_decoder(changed(kind, change))
        return model.spec.output_scale, model.weights.head.weight is model.weights.embedding.weight

    scaled = 48**-0.5
    assert read("t5") == (scaled, True)
    assert read("t5", tie_word_embeddings=True) == (scaled, True)
    assert read("t5 v1.1", tie_word_embeddings=False) == (1.0, False)
    assert read("t5 v1.1", tie_word_embeddings=True, scale_decoder_outputs=False) == (1.0, False)
    assert read("t5", tie_word_embeddings=True, scale_decoder_outputs=False) == (1.0, True)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight .* missing"):
        read("t5", tie_word_embeddings=False)


def test_harmless_tensors_are_ignored(changed: Any) -> None:
    old = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    load_encoder_decoder(changed("t5", lambda c, t: t.update({old: torch.ones(12, 4)})))
    table = "model.decoder.embed_positions.weight"
    load_encoder_decoder(changed("marian", lambda c, t: t.update({table: torch.ones(160, 48)})))
    load_encoder_decoder(changed("bart", lambda c, t: t.pop("final_logits_bias")))


def test_what_is_an_encoder_decoder(wholes: dict[str, Path], tmp_path: Path, changed: Any) -> None:
    assert all(map(is_encoder_decoder, wholes.values()))
    assert not is_encoder_decoder(tmp_path) and not is_encoder_decoder(tmp_path / "nothing.gguf")
    folder = changed("t5", lambda c, t: c.update(model_type="llama", is_encoder_decoder=False))
    assert not is_encoder_decoder(folder)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data(), kind=st.sampled_from(["t5", "bart", "marian"]))
def test_any_config_value_loads_or_is_refused(data: st.DataObject, kind: str, wholes: Any, changed: Any) -> None:
    config = json.loads((wholes[kind] / "config.json").read_text())
    key = data.draw(st.sampled_from(sorted(config)))
    values = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=2)
    )
    value = data.draw(values)
    try:
        load_encoder_decoder(changed(kind, lambda c, t: c.update({key: value})))
    except ModelError as error:
        assert str(error)
