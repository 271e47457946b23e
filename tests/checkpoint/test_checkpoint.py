"""open_checkpoint: folders and GGUF files under one face; what contradicts itself or could run code is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from orcaserve.checkpoint.checkpoint import eos_ids, open_checkpoint
from orcaserve.checkpoint.gguf_config import generation_config_of
from orcaserve.core.errors import CheckpointError, ModelNotFound, UnsupportedModel

INDEX = "model.safetensors.index.json"


def write(folder: Path, **files: Any) -> None:
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, config={"model_type": "llama", "eos_token_id": 1})
    save_file({"a": torch.ones(2, 3)}, tmp_path / "model.safetensors")
    return tmp_path


def shards(folder: Path, places: Any) -> None:
    (folder / "model.safetensors").unlink(missing_ok=True)
    save_file({"a": torch.ones(2, 3)}, folder / "m1.safetensors")
    save_file({"b": torch.zeros(4)}, folder / "m2.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))


def test_a_folder(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert checkpoint.format == "safetensors"
    assert checkpoint.config["model_type"] == "llama"
    assert checkpoint.generation_config == {}
    assert checkpoint.tensors["a"].shape == (2, 3)
    assert np.array_equal(checkpoint.read("a"), np.ones((2, 3)))
    checkpoint.close()


def test_shards(folder: Path) -> None:
    shards(folder, {"a": "m1.safetensors", "b": "m2.safetensors"})
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tensors.keys() == {"a", "b"}
    assert np.array_equal(checkpoint.read("b"), np.zeros(4))


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"a": "m1.safetensors", "b": "m3.safetensors"}, "m3.safetensors is missing"),
        ({"a": "m1.safetensors", "b": "m1.safetensors"}, "lacks tensor b"),
        ({"a": "m1.safetensors", "c": "m2.safetensors"}, "holds tensor b"),
        ({"a": "../m1.safetensors"}, "same folder"),
        ({"a": "/etc/passwd"}, "same folder"),
        ({"a": "sub/m1.safetensors"}, "same folder"),
        ({"a": "m1.bin"}, "same folder"),
        ({"a": 1}, "weight_map"),
        ([], "weight_map"),
        (None, "weight_map"),
    ],
)
def test_indices_that_lie(places: Any, message: str, folder: Path) -> None:
    shards(folder, places)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_a_tensor_in_two_shards(folder: Path) -> None:
    shards(folder, {"a": "m1.safetensors", "b": "m2.safetensors"})
    save_file({"a": torch.ones(1), "b": torch.zeros(4)}, folder / "m2.safetensors")
    with pytest.raises(CheckpointError, match=r"tensor a is in m1\.safetensors and in m2"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_refused_and_never_opened(name: str, folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(UnsupportedModel, match=r"pickled.*safetensors"):
        open_checkpoint(folder)


def test_what_is_no_checkpoint(folder: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", Path("/dev/null")):
        with pytest.raises(ModelNotFound):
            open_checkpoint(path)
    with pytest.raises(UnsupportedModel, match="folder"):
        open_checkpoint(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a GGUF"):
        open_checkpoint(folder / "config.json")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="neither"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'{"a":1,"a":2}', b"\xff", b"[" * 99_999, b'{"a": 1' + b"0" * 5000 + b"}"]
)
def test_configs_that_are_no_objects(raw: bytes, folder: Path) -> None:
    (folder / "config.json").write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(folder)


def test_eos_ids_are_the_union_of_all_places(folder: Path) -> None:
    assert eos_ids(open_checkpoint(folder)) == {1}
    write(folder, generation_config={"eos_token_id": [5, 6]})
    assert eos_ids(open_checkpoint(folder)) == {1, 5, 6}
    write(folder, tokenizer_config={"eos_token": "</s>", "added_tokens_decoder": {"9": {"content": "</s>"}}})
    assert eos_ids(open_checkpoint(folder)) == {1, 5, 6, 9}
    write(
        folder,
        tokenizer_config={"eos_token": {"content": "<end>"}},
        tokenizer={"added_tokens": [{"id": 8, "content": "<end>"}]},
    )
    assert eos_ids(open_checkpoint(folder)) == {1, 5, 6, 8}
    write(folder, tokenizer={"model": {"vocab": {"<end>": 7}}})
    assert eos_ids(open_checkpoint(folder)) == {1, 5, 6, 7}
    write(folder, tokenizer={"model": {"vocab": [["<unk>", 0.0], ["<end>", -1.5], ["a", -2.0]]}})
    assert eos_ids(open_checkpoint(folder)) == {1, 5, 6}
    write(folder, tokenizer={"model": {"vocab": [["<unk>", 0.0], ["a", -2.0], ["<end>", -1.5]]}})
    assert eos_ids(open_checkpoint(folder)) == {1, 2, 5, 6}
    write(folder, config={"eos_token_id": None}, generation_config={}, tokenizer_config={})
    assert eos_ids(open_checkpoint(folder)) == frozenset()


def test_all_end_ids_of_a_gguf_file() -> None:
    ids = {"eos": 0, "eot": 2, "eom": 3}
    metadata = {f"tokenizer.ggml.{name}_token_id": i for name, i in ids.items()}
    assert generation_config_of(metadata)["eos_token_id"] == [0, 2, 3]


@pytest.mark.parametrize("value", ["1", 1.0, True, [1, None], {"a": 1}, -1])
def test_eos_ids_of_the_wrong_kind(value: Any, folder: Path) -> None:
    write(folder, config={"eos_token_id": value})
    with pytest.raises(CheckpointError, match="eos_token_id"):
        eos_ids(open_checkpoint(folder))


def test_a_gguf_file_in_transformers_names(small_gguf: Path) -> None:
    for path in (small_gguf, small_gguf.parent):  # the file, or a folder with this file alone
        checkpoint = open_checkpoint(path)
        assert checkpoint.format == "gguf"
        assert checkpoint.config == {
            "model_type": "llama",
            "vocab_size": 16,
            "max_position_embeddings": 64,
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "intermediate_size": 12,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rms_norm_eps": pytest.approx(1e-5),
            "rope_theta": 10_000.0,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
        }
        assert eos_ids(checkpoint) == {2}


def test_the_default_model(default_model: Path) -> None:
    checkpoint = open_checkpoint(default_model)
    assert checkpoint.config["num_key_value_heads"] == 3
    assert checkpoint.config["partial_rotary_factor"] == 1.0
    assert eos_ids(checkpoint) == {2}
    assert len(checkpoint.tensors) == 272


Writer = Callable[..., Path]


def test_split_files_are_refused(small_gguf: Path, tmp_path: Path) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "part.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.add_tensor("a", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match="split"):
        open_checkpoint(tmp_path / "part.gguf")
