"""Adapter: what the Linears of a part of the model gain from a low-rank adapter, cut as the part's matrices are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orcaserve.checkpoint.checkpoint import open_checkpoint
from orcaserve.checkpoint.converted import METADATA, is_converted
from orcaserve.checkpoint.gguf import GGUFFile
from orcaserve.checkpoint.json_object import read_object
from orcaserve.checkpoint.lora import LoraFiles, LowRank
from orcaserve.core.errors import CheckpointError, UnsupportedModel
from orcaserve.model.families import Names, family_of
from orcaserve.model.filled_heads import HEAD_UNIT
from orcaserve.model.part import Part
from orcaserve.model.spec import ModelSpec

LINEARS = ("qkv", "out", "up", "down")


@dataclass(frozen=True, slots=True)
class Gain:
    """Of a run of a Linear's outputs, from `first` on: y += scale * b (a x), with a [r, inputs] and b [outputs, r]."""

    first: int
    low_rank: LowRank


AdaptedLayer = Mapping[str, Sequence[Gain]]
"""By the name of the Linear, of LINEARS; a Linear that is left as it is has no gains."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One for each of a part's layers."""

    layers: Sequence[AdaptedLayer]


@dataclass(frozen=True, slots=True)
class _Target:
    """One Linear of the checkpoint: the parts of a stacked one, or all of it.

    n_out, n_in: its sizes. outputs: what the part has of them, a run after the other; inputs: likewise.
    first: where they are in the part's stacked matrix.
    """

    linear: str
    n_out: int
    n_in: int
    outputs: tuple[range, ...]
    inputs: range
    first: int


def names_of(path: Path) -> Names:
    """What transformers calls the modules of the model at `path`. Raises ModelError."""
    kind = _model_type(path)
    names = family_of(kind).safetensors
    if names.interleaved:
        raise UnsupportedModel(f"adapters of {kind!r} models are not supported: their rows lie in another order")
    return names


def load_adapter(files: LoraFiles, names: Names, part: Part, max_rank: int) -> Adapter:
    """Raises CheckpointError if the adapter was made for another model, UnsupportedModel for what cannot be adapted."""
    spec = part.spec
    if files.transposed != names.transposed:
        text = f"fan_in_fan_out is {files.transposed}, and this model's Linears are stored the other way"
        raise CheckpointError(f"adapter_config.json: {text}")
    if files.rank > max_rank:
        raise UnsupportedModel(f"the adapter has rank {files.rank}, --max-lora-rank is {max_rank}")
    if spec.n_experts:
        raise UnsupportedModel("adapters of models with experts are not supported")
    if spec.stored_head_dim is not None:
        raise UnsupportedModel(
            f"adapters of models with heads of {spec.stored_head_dim} dimensions, no multiple of {HEAD_UNIT}, are not "
            "supported by the CPU's kernels; --device reference has them"
        )
    targets = _targets(names, part)
    layers: list[dict[str, list[Gain]]] = [{} for _ in part.layers]
    plain = {module.removeprefix(names.prefix): module for module in files.modules}
    found = set[str]()
    for i in range(spec.n_layers):
        start = names.layer.format(i=i)
        for name, target in targets.items():
            module = plain.get(start + name)
            if module is None:
                continue
            found.add(module)
            _check_shapes(files, module, target)
            if i in part.layers:
                gain = Gain(target.first, _cut(files.read(module), target))
                layers[i - part.layers.start].setdefault(target.linear, []).append(gain)
    for module in files.modules:
        if module not in found:
            known = ", ".join(targets)
            raise UnsupportedModel(f"the adapter changes {module}, which is none of this model's {known} in a layer")
    return Adapter(layers)


def _targets(names: Names, part: Part) -> dict[str, _Target]:
    spec, dim = part.spec, part.spec.head_dim
    q = range(part.heads.start * dim, part.heads.stop * dim)
    kv = range(part.kv_heads.start * dim, part.kv_heads.stop * dim)
    every, hidden = range(spec.hidden_size), spec.hidden_size
    n_wide = 2 if spec.gated else 1
    wide = (spec.intermediate_size,) * n_wide
    targets: dict[str, _Target] = {}
    for linear, parts, sizes, own, n_in, inputs in (
        ("qkv", names.qkv, (spec.q_size, spec.kv_size, spec.kv_size), (q, kv, kv), hidden, every),
        ("out", (names.out,), (hidden,), (every,), spec.q_size, q),
        ("up", names.up, wide, (part.columns,) * n_wide, hidden, every),
        ("down", (names.down,), (hidden,), (every,), spec.intermediate_size, part.columns),
    ):
        if len(parts) == 1:  # one tensor that is all of them
            starts = np.cumsum([0, *sizes]).tolist()
            runs = tuple(range(run.start + s, run.stop + s) for run, s in zip(own, starts, strict=False))
            if linear == "qkv" and names.grouped:
                runs = part.grouped_rows
            targets[parts[0]] = _Target(linear, sum(sizes), n_in, runs, inputs, 0)
            continue
        first = 0
        for name, size, run in zip(parts, sizes, own, strict=True):
            targets[name] = _Target(linear, size, n_in, (run,), inputs, first)
            first += len(run)
    return targets


def _check_shapes(files: LoraFiles, module: str, target: _Target) -> None:
    (_, n_in), (n_out, _) = files.shapes(module)
    if (n_out, n_in) != (target.n_out, target.n_in):
        raise CheckpointError(
            f"the adapter's {module} is for {n_in} inputs and {n_out} outputs, this model's has {target.n_in} and "
            f"{target.n_out}: it was made for another model"
        )


def _cut(whole: LowRank, target: _Target) -> LowRank:
    a = whole.a if len(target.inputs) == target.n_in else whole.a[:, target.inputs.start : target.inputs.stop]
    rows = [whole.b[run.start : run.stop] for run in target.outputs]
    b = rows[0] if len(rows) == 1 else np.concatenate(rows)
    return LowRank(np.ascontiguousarray(a), np.ascontiguousarray(b), whole.scale)


def _model_type(path: Path) -> object:
    if is_converted(path):
        if (path / "config.json").exists():
            return read_object(path / "config.json").get("model_type")
        file = GGUFFile(path / METADATA)
        kind = file.metadata.get("general.architecture")
        file.close()
        return kind
    checkpoint = open_checkpoint(path)
    kind = checkpoint.config.get("model_type")
    checkpoint.close()
    return kind


def n_weights(spec: ModelSpec, rank: int) -> int:
    """Numbers of an adapter of this rank that changes all Linears of all layers."""
    wide = (2 if spec.gated else 1) * (spec.hidden_size + spec.intermediate_size)
    down = spec.hidden_size + spec.intermediate_size
    qkv = 3 * spec.hidden_size + spec.q_size + 2 * spec.kv_size
    return spec.n_layers * rank * (qkv + spec.q_size + spec.hidden_size + wide + down)
