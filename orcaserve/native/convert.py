"""convert: pack a model's weights once and for all, into a folder that is served by mapping it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from orcaserve.checkpoint.converted import WEIGHTS, copy_description
from orcaserve.core.errors import ConfigError
from orcaserve.model.filled_heads import HEAD_UNIT
from orcaserve.model.loader import ModelFiles
from orcaserve.native import _kernels
from orcaserve.native.exact_inputs import build_weights
from orcaserve.native.packed_model import save_packed
from orcaserve.native.precision import Precision, choose_precision


def convert(source: Path, destination: Path, dtype: str, quantization: str, n_threads: int) -> Precision:
    """Write the model at `source` as the folder `destination`, which must not exist yet; returns how weights are held.

    dtype, quantization: as for serving. Raises ConfigError if the folder exists, ModelError if the model cannot be had.
    """
    if destination.exists():
        raise ConfigError("DST", f"{destination} exists already")
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".convert-") as name:
        folder = Path(name) / "model"
        folder.mkdir()
        with ModelFiles(source, HEAD_UNIT) as files:
            precision = choose_precision(dtype, quantization, files.matrix_kinds)
            weights = build_weights(files, precision, _kernels.Team(n_threads))
            save_packed(folder / WEIGHTS, files.spec, precision, weights)
        copy_description(source, folder)
        _rename(folder, destination)  # only a whole model ever gets the final name
    return precision


def _rename(folder: Path, destination: Path) -> None:
    try:
        os.rename(folder, destination)
    except FileExistsError:
        raise ConfigError("DST", f"{destination} exists already") from None
