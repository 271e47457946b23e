"""A converted model's folder, as `orcaserve models convert` writes it: weights, and what describes the model.

model.orca.safetensors   weights as the kernels read them
tokenizer.json, ...      copied from a checkpoint folder
metadata.gguf            or the metadata of a GGUF file, its tensors left out
"""

from __future__ import annotations

import shutil
from pathlib import Path

from orcaserve.checkpoint.gguf import GGUFFile
from orcaserve.checkpoint.pooling import MODULES, POOLING
from orcaserve.core.errors import ModelNotFound

WEIGHTS = "model.orca.safetensors"
METADATA = "metadata.gguf"
# Everything in a checkpoint folder that describes the model and cannot run.
DESCRIPTIONS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                "special_tokens_map.json", "chat_template.jinja", "chat_template.json", MODULES, POOLING)  # fmt: skip


def is_converted(path: Path) -> bool:
    return (path / WEIGHTS).is_file()


def copy_description(source: Path, folder: Path) -> None:
    """Bring what describes the model at `source`, a GGUF file or a checkpoint folder, into `folder`."""
    if source.is_dir() and (source / "config.json").exists():
        for name in DESCRIPTIONS:
            if (source / name).exists():
                (folder / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(source / name, folder / name)
        return
    file = GGUFFile(gguf_of(source))
    (folder / METADATA).write_bytes(file.without_tensors())
    file.close()


def gguf_of(path: Path) -> Path:
    """The GGUF file that `path` is, or the one in the folder `path`. Raises ModelNotFound."""
    if not path.is_dir():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) != 1:
        raise ModelNotFound(f"{path} has no config.json, and {len(files)} GGUF files (one would do)")
    return files[0]
