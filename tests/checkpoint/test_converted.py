"""What travels with a converted model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orcaserve.checkpoint.checkpoint import open_checkpoint
from orcaserve.checkpoint.converted import METADATA, WEIGHTS, copy_description, is_converted
from orcaserve.checkpoint.gguf import GGUFFile
from orcaserve.core.errors import ModelNotFound, UnsupportedModel


def test_a_folder_gives_its_descriptions_and_no_weights_or_code(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "folder"
    source.mkdir()
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors", "modeling.py", "x.bin"):
        (source / name).write_text(json.dumps(name))
    copy_description(source, folder)
    assert {file.name for file in folder.iterdir()} == {"config.json", "tokenizer.json", "chat_template.jinja"}
    assert (folder / "config.json").read_text() == '"config.json"'


@pytest.mark.parametrize("in_folder", [False, True])
def test_a_gguf_file_gives_its_metadata(in_folder: bool, small_gguf: Path, tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "folder"
    source.mkdir()
    folder.mkdir()
    (source / "m.gguf").write_bytes(small_gguf.read_bytes())
    copy_description(source if in_folder else source / "m.gguf", folder)
    assert [file.name for file in folder.iterdir()] == [METADATA]
    assert list(GGUFFile(folder / METADATA).metadata) == list(GGUFFile(small_gguf).metadata)
    assert (folder / METADATA).stat().st_size < small_gguf.stat().st_size


def test_a_converted_folder_is_no_checkpoint(tmp_path: Path) -> None:
    assert not is_converted(tmp_path)
    with pytest.raises(ModelNotFound, match="0 GGUF files"):
        copy_description(tmp_path, tmp_path)
    (tmp_path / WEIGHTS).touch()
    assert is_converted(tmp_path)
    with pytest.raises(UnsupportedModel, match="was converted"):
        open_checkpoint(tmp_path)
