"""How a model is pooled, by its sentence-transformers files; what is not served is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orcaserve.checkpoint.converted import copy_description
from orcaserve.checkpoint.pooling import read_pooling
from orcaserve.core import CheckpointError, Pooling, UnsupportedModel

NAMES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def write(folder: Path, config: Any = None, modules: Any = None) -> Path:
    for name, value in (("1_Pooling/config.json", config), ("modules.json", modules)):
        if value is not None:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return folder


def flags(*on: str) -> dict[str, Any]:
    return {
        "word_embedding_dimension": 8,
        **{f"pooling_mode_{name}": name in on for name in NAMES},
        "include_prompt": True,
    }


def modules(*kinds: str) -> list[dict[str, Any]]:
    return [
        {"idx": i, "name": str(i), "path": "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]


def test_without_files_the_last_token(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) is Pooling.LAST
    (tmp_path / "model.gguf").write_bytes(b"")
    assert read_pooling(tmp_path / "model.gguf") is Pooling.LAST
    assert read_pooling(write(tmp_path, modules=modules("Transformer", "Pooling", "Normalize"))) is Pooling.LAST


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        (flags("mean_tokens"), Pooling.MEAN),
        (flags("lasttoken"), Pooling.LAST),
        ({"pooling_mode": "mean"}, Pooling.MEAN),
        ({"pooling_mode": "lasttoken", "embedding_dimension": 8}, Pooling.LAST),
    ],
)
def test_what_is_served(tmp_path: Path, config: Any, pooling: Pooling) -> None:
    assert read_pooling(write(tmp_path, config, modules("Transformer", "Pooling"))) is pooling


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (flags("cls_token"), "cls_token pooling"),
        (flags("mean_tokens", "max_tokens"), "mean_tokens and max_tokens pooling"),
        (flags(), "no pooling"),
        ({"pooling_mode": "weightedmean"}, "weightedmean pooling"),
    ],
)
def test_what_is_not_served_is_named(tmp_path: Path, config: Any, words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        read_pooling(write(tmp_path, config))


def test_what_else_is_made_of_a_vector_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="a Dense module"):
        read_pooling(write(tmp_path, flags("mean_tokens"), modules("Transformer", "Pooling", "Dense", "Normalize")))


@pytest.mark.parametrize(
    ("config", "modules"),
    [("{", None), ("[]", None), (None, "{}"), (None, "[5]"), (None, "["), ("\xff", None), ('{"a":1,"a":2}', None)],
)
def test_damaged_files(tmp_path: Path, config: str | None, modules: str | None) -> None:
    with pytest.raises(CheckpointError):
        read_pooling(write(tmp_path, config, modules))


def test_a_converted_model_has_them_too(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "converted"
    source.mkdir()
    folder.mkdir()
    (source / "config.json").write_text("{}")
    write(source, flags("mean_tokens"), modules("Transformer", "Pooling"))
    copy_description(source, folder)
    assert read_pooling(folder) is Pooling.MEAN
