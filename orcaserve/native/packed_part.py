"""PackedPart: the pieces of a part out of a file of packed weights (packed_model.py), each checked.

A run of whole layers is mapped. Of a shard, whose panels are others, what it has is copied into panels of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.safetensors import SafetensorsFile
from orcaserve.core.errors import CheckpointError
from orcaserve.model.part import Part
from orcaserve.model.spec import ModelSpec
from orcaserve.native.builder import Norm, RowFormat, Table
from orcaserve.native.cutting import cut_inputs, cut_outputs, input_bytes
from orcaserve.native.packing import PANEL, ExactInputs, Format, PackedMatrix, kept_of
from orcaserve.native.tiles import is_sound

SIZES = ("n_out", "n_in", "n_in_padded", "group", "interleaved")  # of a PackedMatrix
TYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2"), "uint8": np.dtype("u1")}


def is_cut_by_inputs(name: str) -> bool:
    """Whether a shard has some inputs of this matrix; of the others it has some outputs."""
    return name.endswith((".out", ".down"))


def inputs_of(name: str, part: Part) -> range:
    """Those that the part has of a matrix that is cut so."""
    dim = part.spec.head_dim
    return _columns(name, part) if name.endswith(".down") else range(part.heads.start * dim, part.heads.stop * dim)


def _columns(name: str, part: Part) -> range:
    return part.expert_columns if ".experts." in name else part.columns


def matrices_of(layer: int, spec: ModelSpec) -> list[str]:
    """The larger ones first."""
    mlp: list[str] = ["up", "down"]
    if spec.has_experts(layer):
        mlp = [f"experts.{e}.{name}" for name in mlp for e in range(spec.n_experts)]
        mlp.append("router")
    return [f"layers.{layer}.{name}" for name in (*mlp, "qkv", "out")]


def _outputs_of(name: str, part: Part) -> list[range]:
    """Those of a matrix that is cut so; with a gate, of each half."""
    if name == "head":
        return [part.vocabulary]
    if name.endswith(".up"):
        return [_columns(name, part)]
    spec, dim = part.spec, part.spec.head_dim
    starts = (0, spec.q_size, spec.q_size + spec.kv_size)
    runs = (part.heads, part.kv_heads, part.kv_heads)
    return [range(at + run.start * dim, at + run.stop * dim) for at, run in zip(starts, runs, strict=True)]


def _norms(spec: ModelSpec) -> list[str]:
    """Of a layer."""
    norms = {
        "attention_norm": spec.pre_norm,
        "mlp_norm": spec.pre_norm and not spec.shared_norm,
        "post_attention_norm": spec.post_norm,
        "post_mlp_norm": spec.post_norm,
        "q_norm": spec.qk_norm is not None,
        "k_norm": spec.qk_norm is not None,
    }
    return [name for name, is_there in norms.items() if is_there]


class PackedPart:
    """Any number of threads may take pieces. They are checked one by one; KeyError and the like if the description is
    wrong, CheckpointError if the file is damaged."""

    def __init__(self, file: SafetensorsFile, description: Mapping[str, Any], part: Part) -> None:
        self._file, self._part = file, part
        self._forms, self._entries = description["forms"], description["arrays"]

    def names(self) -> Iterator[str]:
        """Of the pieces, the larger ones first."""
        part = self._part
        if part.last:
            yield from ("head", "norm")
            if part.spec.tied and not part.first and Format[self._forms["head"]["format"]] is Format.INT8:
                yield "head_table"
        if part.first:
            yield from (name for name in ("embedding", "positions") if name in self._forms)
            if part.spec.embedding_norm:
                yield "embedding_norm"
        for i in part.layers:
            yield from matrices_of(i, part.spec)
        for field in _norms(part.spec):
            yield from (f"layers.{i}.{field}" for i in part.layers)

    def piece(self, name: str) -> PackedMatrix | Norm | Table:
        if name.endswith("norm"):
            return self._take(f"{name}.weight"), self._take_or_none(f"{name}.bias")
        if name == "head_table":
            rows = self._part.vocabulary
            return self._row_format("embedding"), self._take("embedding.rows", [rows])[rows.start : rows.stop]
        if name in ("embedding", "positions"):
            return self._row_format(name), self._take(f"{name}.rows")
        is_whole = self._part.n_shards == 1 or name.endswith(".router")
        return self._whole(name) if is_whole else self._shard(name)

    def _row_format(self, name: str) -> RowFormat:
        return RowFormat[self._forms[name]["rows"]]

    def _whole(self, name: str) -> PackedMatrix:
        matrix = self._matrix(name)
        for kind in ("panels", "exact"):
            self._take_or_none(f"{name}.{kind}")
        return matrix

    def _shard(self, name: str) -> PackedMatrix:
        whole = self._matrix(name)
        if is_cut_by_inputs(name):
            inputs = inputs_of(name, self._part)
            self._take(f"{name}.panels", columns=input_bytes(whole, inputs))
            self._take_or_none(f"{name}.exact")
            cut = cut_inputs(whole, inputs)
        else:
            outputs, n = _outputs_of(name, self._part), 2 if whole.interleaved else 1
            panels = [range(run.start // PANEL * n, -(-run.stop // PANEL) * n) for run in outputs]
            self._take(f"{name}.panels", panels)
            self._take_or_none(f"{name}.exact", panels)
            cut = cut_outputs(whole, outputs)
        self._file.forget(f"{name}.panels")
        return cut

    def _matrix(self, name: str) -> PackedMatrix:
        """The whole matrix, mapped; its panels are yet to be checked."""
        form, exact = self._forms[name], None
        if "exact" in form:
            inputs = np.array(form["exact"], np.int32)
            exact = ExactInputs(inputs, self._array(f"{name}.exact"), kept_of(inputs, form["n_in_padded"]))
        panels, bias = self._array(f"{name}.panels"), self._take_or_none(f"{name}.bias")
        sizes = {size: form[size] for size in SIZES}
        return PackedMatrix(Format[form["format"]], panels=panels, bias=bias, exact=exact, **sizes)

    def _take_or_none(self, name: str, rows: Sequence[range] | None = None) -> NDArray[Any] | None:
        return self._take(name, rows) if name in self._entries else None

    def _take(self, name: str, rows: Sequence[range] | None = None, columns: range | None = None) -> NDArray[Any]:
        """The array, of which these rows (None: all), and of them these bytes, have been checked."""
        array, entry = self._array(name), self._entries[name]
        if not is_sound(array, tuple(entry["tile"]), entry["crc32"], rows, columns):
            raise CheckpointError(f"{self._file.path.name}: tensor {name} is damaged (its checksum differs)")
        return array

    def _array(self, name: str) -> NDArray[Any]:
        entry = self._entries[name]
        if name not in self._file.tensors:
            raise CheckpointError(f"{self._file.path.name} lacks tensor {name}")
        dtype, shape = TYPES[entry["type"]], tuple(map(int, entry["shape"]))
        n_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self._file.mapped(name)[:n_bytes].view(dtype).reshape(shape)
