"""A model's packed weights in one file, and back by mapping: nothing is copied, nothing is packed again.

The file is a safetensors file of bytes. Its metadata holds a JSON text (the model's sizes, how its weights are held,
for every array its shape, its type and a checksum) and a checksum of that text. So a damaged file is refused by the
name of what is damaged, before anything of it is run.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.json_object import parse_object
from orcaserve.checkpoint.safetensors import SafetensorsFile, write_bytes
from orcaserve.core.errors import CheckpointError, UnsupportedModel
from orcaserve.model.spec import ModelSpec, RopeSpec
from orcaserve.model.weights import Layer, Weights
from orcaserve.native.builder import NativeWeights, Norm, RowFormat, Table
from orcaserve.native.packing import ExactInputs, Format, PackedMatrix, kept_of
from orcaserve.native.precision import Precision

VERSION = 3  # of the file: the forms of csrc/model.h and the names below
_TYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2"), "uint8": np.dtype("u1")}
_SIZES = ("n_out", "n_in", "n_in_padded", "group", "interleaved")  # of a PackedMatrix


def save_packed(path: Path, spec: ModelSpec, precision: Precision, weights: NativeWeights) -> None:
    arrays: dict[str, NDArray[Any]] = {}
    forms: dict[str, Any] = {}
    for name, piece in _pieces(weights):
        if isinstance(piece, PackedMatrix):
            forms[name] = {"format": piece.format.name, **{size: getattr(piece, size) for size in _SIZES}}
            arrays |= _present({f"{name}.panels": piece.panels, f"{name}.bias": piece.bias})
            if piece.exact is not None:
                forms[name]["exact"] = piece.exact.inputs.tolist()
                arrays[f"{name}.exact"] = piece.exact.weights
        elif isinstance(piece[0], RowFormat):
            forms[name] = {"rows": piece[0].name}
            arrays[f"{name}.rows"] = piece[1]
        else:
            arrays |= _present({f"{name}.weight": piece[0], f"{name}.bias": piece[1]})
    flat = {name: np.ascontiguousarray(array).reshape(-1).view(np.uint8) for name, array in arrays.items()}
    text = json.dumps({
        "version": VERSION,
        "spec": {**asdict(spec), "eos_ids": sorted(spec.eos_ids)},
        "precision": asdict(precision),
        "forms": forms,
        "arrays": {
            name: {"shape": array.shape, "type": array.dtype.name, "crc32": zlib.crc32(flat[name].data)}
            for name, array in arrays.items()
        },
    })  # fmt: skip
    write_bytes(path, flat, {"orcaserve": text, "crc32": str(zlib.crc32(text.encode()))})


def load_packed(path: Path, n_threads: int) -> tuple[ModelSpec, Precision, NativeWeights]:
    """The file stays mapped as long as the weights live.

    Raises CheckpointError if it is damaged, UnsupportedModel if another version wrote it.
    """
    file = SafetensorsFile(path)
    text = file.metadata.get("orcaserve")
    if not isinstance(text, str) or file.metadata.get("crc32") != str(zlib.crc32(text.encode())):
        raise CheckpointError(f"{path.name}: the description of the weights is damaged")
    description = parse_object(text.encode(), path.name)
    if description.get("version") != VERSION:
        raise UnsupportedModel(
            f"{path.name} has form {description.get('version')}, this version of orcaserve reads {VERSION}: "
            "convert the model again"
        )
    try:
        return _read(_Arrays(file, description["arrays"], n_threads), description)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path.name} does not describe its weights as it should: {error}") from error


class _Arrays:
    """The arrays of a file, all of them checked."""

    def __init__(self, file: SafetensorsFile, entries: Mapping[str, Any], n_threads: int) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}
        sums: dict[str, int] = {}
        for name, entry in entries.items():
            if name not in file.tensors:
                raise CheckpointError(f"{file.path.name} lacks tensor {name}")
            dtype, shape = _TYPES[entry["type"]], tuple(map(int, entry["shape"]))
            n_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            self._arrays[name] = file.mapped(name)[:n_bytes].view(dtype).reshape(shape)
            sums[name] = entry["crc32"]
        largest_first = sorted(self._arrays, key=lambda name: -self._arrays[name].nbytes)
        with ThreadPoolExecutor(n_threads) as pool:
            actual = pool.map(
                lambda name: zlib.crc32(self._arrays[name].reshape(-1).view(np.uint8).data), largest_first
            )
            damaged = [name for name, crc in zip(largest_first, actual, strict=True) if crc != sums[name]]
        if damaged:
            raise CheckpointError(f"{file.path.name}: tensor {damaged[0]} is damaged (its checksum differs)")

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def get(self, name: str) -> NDArray[Any] | None:
        return self._arrays.get(name)


def _read(arrays: _Arrays, description: Mapping[str, Any]) -> tuple[ModelSpec, Precision, NativeWeights]:
    forms = description["forms"]

    def norm(name: str) -> Norm:
        return arrays[f"{name}.weight"], arrays.get(f"{name}.bias")

    def matrix(name: str) -> PackedMatrix:
        form = forms[name]
        sizes = {size: form[size] for size in _SIZES}
        panels, bias = arrays[f"{name}.panels"], arrays.get(f"{name}.bias")
        exact = None
        if "exact" in form:
            inputs = np.array(form["exact"], np.int32)
            exact = ExactInputs(inputs, arrays[f"{name}.exact"], kept_of(inputs, sizes["n_in_padded"]))
        return PackedMatrix(Format[form["format"]], panels=panels, bias=bias, exact=exact, **sizes)

    def table(name: str) -> Table:
        return RowFormat[forms[name]["rows"]], arrays[f"{name}.rows"]

    raw = description["spec"]
    rope = raw["rope"] and {key: tuple(v) if isinstance(v, list) else v for key, v in raw["rope"].items()}
    spec = ModelSpec(**{**raw, "eos_ids": frozenset(raw["eos_ids"]), "rope": rope and RopeSpec(**rope)})
    layers = [
        Layer(
            attention_norm=norm(f"layers.{i}.attention_norm"),
            qkv=matrix(f"layers.{i}.qkv"),
            out=matrix(f"layers.{i}.out"),
            mlp_norm=norm(f"layers.{i}.mlp_norm"),
            up=matrix(f"layers.{i}.up"),
            down=matrix(f"layers.{i}.down"),
        )
        for i in range(spec.n_layers)
    ]
    positions = table("positions") if "positions" in forms else None
    weights = Weights(table("embedding"), positions, layers, norm("norm"), matrix("head"))
    return spec, Precision(**description["precision"]), weights


def _pieces(weights: NativeWeights) -> Iterator[tuple[str, PackedMatrix | Norm | Table]]:
    yield "head", weights.head
    yield "embedding", weights.embedding
    if weights.positions is not None:
        yield "positions", weights.positions
    yield "norm", weights.norm
    for i, layer in enumerate(weights.layers):
        for field in fields(layer):
            yield f"layers.{i}.{field.name}", getattr(layer, field.name)


def _present(arrays: Mapping[str, NDArray[Any] | None]) -> dict[str, NDArray[Any]]:
    return {name: array for name, array in arrays.items() if array is not None}
