"""A model's packed weights in one file, and back by mapping: nothing is packed again.

The file is a safetensors file of bytes. Its metadata holds a JSON text (the model's sizes, how its weights are held,
for every array its shape, its type and checksums of its tiles) and a checksum of that text. So a damaged file is
refused by the name of what is damaged, before anything of it is run, and whoever takes a part reads that part alone.
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
from orcaserve.core.errors import CheckpointError, ConfigError, UnsupportedModel
from orcaserve.model.part import Part
from orcaserve.model.spec import ModelSpec, RopeSpec
from orcaserve.model.weights import Expert, Layer, PartWeights, Weights
from orcaserve.native.builder import NativePartWeights, NativeWeights, Norm, RowFormat, Table
from orcaserve.native.cutting import INPUT_UNITS, can_cut, input_bytes
from orcaserve.native.packed_part import SIZES, PackedPart, inputs_of, is_cut_by_inputs, matrices_of
from orcaserve.native.packing import MOST_GROUP, Format, PackedMatrix
from orcaserve.native.precision import Precision
from orcaserve.native.tiles import checksums, tile_of

VERSION = 4  # of the file: the forms of csrc/model.h and the names below


def save_packed(path: Path, spec: ModelSpec, precision: Precision, weights: NativeWeights) -> None:
    arrays: dict[str, NDArray[Any]] = {}
    forms: dict[str, Any] = {}
    widths: dict[str, int] = {}  # of the tiles of arrays that shards cut across the rows
    for name, piece in _pieces(weights):
        if isinstance(piece, PackedMatrix):
            forms[name] = {"format": piece.format.name, **{size: getattr(piece, size) for size in SIZES}}
            arrays |= _present({f"{name}.panels": piece.panels, f"{name}.bias": piece.bias})
            if is_cut_by_inputs(name):
                widths[f"{name}.panels"] = len(input_bytes(piece, range(min(MOST_GROUP, piece.n_in))))
            if piece.exact is not None:
                forms[name]["exact"] = piece.exact.inputs.tolist()
                arrays[f"{name}.exact"] = piece.exact.weights
        elif isinstance(piece[0], RowFormat):
            forms[name] = {"rows": piece[0].name}
            arrays[f"{name}.rows"] = piece[1]
        else:
            arrays |= _present({f"{name}.weight": piece[0], f"{name}.bias": piece[1]})
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps({
        "version": VERSION,
        "spec": {**asdict(spec), "eos_ids": sorted(spec.eos_ids)},
        "precision": asdict(precision),
        "forms": forms,
        "arrays": {name: _entry(array, widths.get(name)) for name, array in arrays.items()},
    })  # fmt: skip
    flat = {name: array.reshape(-1).view(np.uint8) for name, array in arrays.items()}
    write_bytes(path, flat, {"orcaserve": text, "crc32": str(zlib.crc32(text.encode()))})


def load_packed(path: Path, n_threads: int) -> tuple[ModelSpec, Precision, NativeWeights]:
    """The whole model. The file stays mapped as long as the weights live. Raises as PackedFile does."""
    file = PackedFile(path)
    loaded = file.load_part(Part.whole(file.spec), n_threads)
    assert loaded.embedding is not None and loaded.norm is not None and loaded.head is not None
    weights = Weights(
        loaded.embedding, loaded.positions, loaded.layers, loaded.norm, loaded.head, loaded.embedding_norm
    )
    return file.spec, file.precision, weights


class PackedFile:
    """An open file; nothing of its weights is read before it is asked for.

    spec: the model's sizes. precision: how its weights are held.
    Raises ModelNotFound, CheckpointError if it is damaged, UnsupportedModel if another version wrote it.
    """

    def __init__(self, path: Path) -> None:
        self._file = file = SafetensorsFile(path)
        text = file.metadata.get("orcaserve")
        if not isinstance(text, str) or file.metadata.get("crc32") != str(zlib.crc32(text.encode())):
            raise CheckpointError(f"{path.name}: the description of the weights is damaged")
        self._description = description = parse_object(text.encode(), path.name)
        if description.get("version") != VERSION:
            raise UnsupportedModel(
                f"{path.name} has form {description.get('version')}, this version of orcaserve reads {VERSION}: "
                "convert the model again"
            )
        try:
            self.spec, self.precision = _spec(description["spec"]), Precision(**description["precision"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._contradiction(error) from error

    def check_settings(self, dtype: str, quantization: str) -> None:
        """Raises ConfigError if other weights are asked for."""
        precision = self.precision
        integers = precision.held if precision.held.startswith("int") else "none"
        for name, asked, has in (("--quantization", quantization, integers), ("--dtype", dtype, precision.dtype)):
            if asked not in ("auto", has):
                raise ConfigError(name, f"this model was converted with {has}, convert it again for {asked}")

    def check_part(self, part: Part) -> None:
        """Raises ConfigError if the part cannot be cut out of the panels."""
        for name in (name for i in part.layers for name in matrices_of(i, part.spec) if is_cut_by_inputs(name)):
            try:
                form, inputs = self._description["forms"][name], inputs_of(name, part)
                format = Format[form["format"]]
                cuttable = can_cut(format, form["n_in"], inputs)
            except (KeyError, TypeError) as error:
                raise self._contradiction(error) from error
            if not cuttable:
                raise ConfigError(
                    "--tensor-parallel-size",
                    f"{name} of this converted model cannot be cut to inputs {inputs.start} to {inputs.stop - 1}, "
                    f"for its {format.name.lower()} numbers belong together by {INPUT_UNITS[format]}: take another "
                    "size, or the files that the model was made from",
                )

    def load_part(self, part: Part, n_threads: int) -> NativePartWeights:
        """Reads, and checks, what the part has. The file stays mapped as long as the weights live.

        Raises CheckpointError if that is damaged, ConfigError as `check_part` does.
        """
        self.check_part(part)
        try:
            packed = PackedPart(self._file, self._description, part)
            names = list(packed.names())
            with ThreadPoolExecutor(n_threads) as pool:
                pieces: dict[str, Any] = dict(zip(names, pool.map(packed.piece, names), strict=True))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise self._contradiction(error) from error
        layers = [_layer(pieces, f"layers.{i}.", part.spec.n_experts if part.spec.has_experts(i) else 0)
                  for i in part.layers]  # fmt: skip
        ends = ("embedding", "positions", "embedding_norm", "norm", "head", "head_table")
        return PartWeights(layers=layers, **{name: pieces.get(name) for name in ends})

    def _contradiction(self, error: Exception) -> CheckpointError:
        return CheckpointError(f"{self._file.path.name} does not describe its weights as it should: {error}")


def _layer(pieces: Mapping[str, Any], start: str, n_experts: int) -> Layer[PackedMatrix, Norm]:
    own = {field.name: pieces.get(start + field.name) for field in fields(Layer) if field.name != "experts"}
    experts = [Expert(pieces[f"{start}experts.{e}.up"], pieces[f"{start}experts.{e}.down"]) for e in range(n_experts)]
    return Layer(**own, experts=experts)


def _spec(raw: Mapping[str, Any]) -> ModelSpec:
    options = _with_tuples(raw) | {"eos_ids": frozenset(raw["eos_ids"])}
    ropes = {name: options.get(name) and RopeSpec(**_with_tuples(options[name])) for name in ("rope", "local_rope")}
    return ModelSpec(**options | ropes)


def _with_tuples(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}


def _entry(array: NDArray[Any], width: int | None) -> dict[str, Any]:
    tile = tile_of(array, width)
    return {"shape": array.shape, "type": array.dtype.name, "tile": tile, "crc32": checksums(array, tile)}


def _pieces(weights: NativeWeights) -> Iterator[tuple[str, PackedMatrix | Norm | Table]]:
    yield "head", weights.head
    yield "embedding", weights.embedding
    if weights.positions is not None:
        yield "positions", weights.positions
    if weights.embedding_norm is not None:
        yield "embedding_norm", weights.embedding_norm
    yield "norm", weights.norm
    for i, layer in enumerate(weights.layers):
        for field in fields(layer):
            if field.name != "experts" and (piece := getattr(layer, field.name)) is not None:
                yield f"layers.{i}.{field.name}", piece
        for e, expert in enumerate(layer.experts):
            yield f"layers.{i}.experts.{e}.up", expert.up
            yield f"layers.{i}.experts.{e}.down", expert.down


def _present(arrays: Mapping[str, NDArray[Any] | None]) -> dict[str, NDArray[Any]]:
    return {name: array for name, array in arrays.items() if array is not None}
