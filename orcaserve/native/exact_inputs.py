"""Exact inputs: the few inputs of an int8 matrix that are largest by far, whose products are computed in float32.

In most Linears of a language model the same handful of channels carries values many times as large as the others, for
every token. In eight bits they would coarsen the scale of their group, and the rounding of their weights, times such a
value, would be the greatest error of all. Which channels these are is found by watching the model at work on texts that
it makes up itself: no data is needed, and the choice is always the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from orcaserve.core import SamplingParams
from orcaserve.model.kv_manager import KVManager
from orcaserve.model.layout import Int32s
from orcaserve.model.loader import ModelFiles
from orcaserve.model.parameter import Floats, Parameter
from orcaserve.model.part import Part
from orcaserve.model.spec import ModelSpec
from orcaserve.model.weights import Expert
from orcaserve.native import _kernels
from orcaserve.native.builder import NativeBuilder, NativePartWeights, NativeWeights, Norm, Table
from orcaserve.native.kv_region import PAGE_SIZE_STEP, KVRegion
from orcaserve.native.model import NativeModel, n_observed
from orcaserve.native.packing import MOST_EXACT, ExactInputs, Format, PackedMatrix
from orcaserve.native.precision import Precision
from orcaserve.native.sampler import Sampler

N_EXACT = 16  # inputs of a matrix
SHARE = 4.0  # an input is exact only if its mean square is so many times that of all
N_TEXTS, N_TOKENS = 8, 24  # what the model is watched on
_SEED = 20_26

# Which inputs are exact, of a whole model: [n_observed n_layers + 1, N_EXACT] int32, a row for each layer's matrices,
# in the order of `observed_inputs` in model.py, and for the head, filled up with -1.
Chosen = NDArray[np.int32]


class Others(Protocol):
    """The workers that have the layers before and after, in a ring."""

    def receive(self, n_rows: int, width: int) -> Floats:
        """Of the layers before; for the first ones, of the last."""

    def send(self, rows: Floats) -> None:
        """To the layers after; from the last ones, to the first."""


def build_weights(files: ModelFiles, precision: Precision, team: _kernels.Team) -> NativeWeights:
    """A checkpoint's weights for the kernels, with exact inputs where matrices are int8."""
    built = NativeBuilder(precision, team)
    weights = files.load(built)
    matrices = _matrices(weights, Part.whole(files.spec))
    if all(matrix.format is not Format.INT8 for held_alike in matrices.values() for matrix in held_alike):
        return weights
    chosen = watch(NativeModel(files.spec, weights, team), team)
    return files.load(ExactInputsBuilder(built, _by_name(built, matrices, chosen)))


def build_part(files: ModelFiles, precision: Precision, team: _kernels.Team, part: Part) -> NativePartWeights:
    """The weights of a part, without exact inputs."""
    return PlainPart(files, precision, team, part).weights


class PlainPart:
    """A part of a model without exact inputs, as it is while the model is watched, and then with them.

    weights: without.
    """

    def __init__(self, files: ModelFiles, precision: Precision, team: _kernels.Team, part: Part) -> None:
        self.part = part
        self._built = NativeBuilder(precision, team)
        self.weights = files.load_part(self._built, part)

    def with_exact(self, files: ModelFiles, chosen: Chosen) -> NativePartWeights:
        """Reads the exact inputs' weights alone."""
        names = _by_name(self._built, _matrices(self.weights, self.part), chosen)
        return files.load_part(ExactInputsBuilder(self._built, names), self.part)


class ExactInputsBuilder:
    """A WeightsBuilder over what another builder has made of the same part: it adds exact inputs to the matrices.

    choice: which of the whole matrix, by the name of its first parameter; a shard takes those that it has.
    """

    def __init__(self, built: NativeBuilder, choice: Mapping[str, Sequence[int]]) -> None:
        self._built, self._choice = built, choice

    def norm(self, weight: Floats, bias: Floats | None) -> Norm:
        return self._built.norm(weight, bias)

    def matrix(self, parts: Sequence[Parameter], biases: Sequence[Floats] | None, gated: bool = False) -> PackedMatrix:
        matrix = self._built.matrices[parts[0].name]
        own = parts[0].inputs
        inputs = [i for i in self._choice.get(parts[0].name, ()) if i in own]
        if not inputs:
            return matrix
        weights = [part.columns(inputs) for part in parts]
        fit = np.all([np.abs(columns).max(axis=0) <= MOST_EXACT for columns in weights], axis=0)
        if not fit.any():
            return matrix
        chosen = [i - own.start for i, fits in zip(inputs, fit.tolist(), strict=True) if fits]
        return replace(matrix, exact=ExactInputs.of(matrix, chosen, [w[:, fit] for w in weights]))

    def router(self, rows: Parameter) -> PackedMatrix:
        return self._built.matrices[rows.name]

    def table(self, rows: Parameter) -> Table:
        return self._built.tables[rows.name]

    def tied(self, table: Parameter) -> tuple[Table, PackedMatrix]:
        return self.table(table), self.matrix([table], None)

    def tied_head(self, rows: Parameter) -> tuple[PackedMatrix, Table | None]:
        return self.matrix([rows], None), self.table(rows)


def watch(model: NativeModel, team: _kernels.Team, others: Others | None = None) -> Chosen:
    """Have a model without exact inputs make up texts, and see which inputs of its int8 matrices are to be exact.

    model: of a run of whole layers; those of others go on in `others`, and have -1 in the result.
    """
    assert (others is None) == model.part.is_whole and model.part.n_shards == 1
    matrices, squares = _matrices(model.weights, model.part), _observe(model, team, others)
    first = model.part.layers.start * n_observed(model.spec)
    chosen = none_chosen(model.spec)
    for row, held_alike in matrices.items():
        if any(matrix.format is Format.INT8 for matrix in held_alike):
            sums = squares[-1 if row == len(chosen) - 1 else row - first]
            largest = np.argsort(-sums, kind="stable")[:N_EXACT]
            inputs = sorted(int(i) for i in largest if sums[i] > SHARE * sums.mean())
            chosen[row, : len(inputs)] = inputs
    return chosen


def none_chosen(spec: ModelSpec) -> Chosen:
    return np.full((n_observed(spec) * spec.n_layers + 1, N_EXACT), -1, np.int32)


def _observe(model: NativeModel, team: _kernels.Team, others: Others | None) -> list[NDArray[np.float64]]:
    """The sums of squares of every input of every Linear, over the texts."""
    spec, part = model.spec, model.part
    n_tokens = min(N_TOKENS, spec.context_length)
    pages = KVManager(N_TEXTS * -(-n_tokens // PAGE_SIZE_STEP) * PAGE_SIZE_STEP, PAGE_SIZE_STEP)
    kv = KVRegion(part.own_spec, pages.n_pages, PAGE_SIZE_STEP, "float32")
    ids = list(range(N_TEXTS))
    sampler = Sampler(team)
    texts = [np.random.default_rng(_SEED).integers(0, spec.vocab_size, N_TEXTS).astype(np.int32)]
    settings = SamplingParams(temperature=1.0, top_p=0.95, ignore_eos=True)
    for text, token in zip(ids, texts[0].tolist(), strict=True):
        sampler.admit(text, [token], settings, frozenset(), text)

    def inputs(tokens: Int32s) -> Int32s | Floats:
        if part.first:
            return tokens
        assert others is not None
        return others.receive(len(tokens), spec.hidden_size)

    for _ in range(n_tokens - 1):
        out = model.forward(inputs(texts[-1]), pages.lay_out([(i, 1) for i in ids]), kv)
        if part.last:
            tokens, _ = sampler.sample(out, ids)  # 0 where the model's numbers are none
            out = np.array(tokens, np.float32)[:, None]
        if others is not None:
            others.send(out)
            out = others.receive(N_TEXTS, 1) if part.first else out
        texts.append(out[:, 0].astype(np.int32) if part.first else texts[0])  # of others only their number matters
    for text in ids:
        pages.drop(text)
    flat = np.ascontiguousarray(np.stack(texts, axis=1).reshape(-1))
    sums, out = model.observe(inputs(flat), pages.lay_out([(i, len(texts)) for i in ids]), kv)
    if others is not None and not part.last:
        others.send(out)
    return [np.where(np.isfinite(s), s, 0) for s in sums]


Matrices = Mapping[int, Sequence[PackedMatrix]]
"""By their rows in Chosen: one in each, but for those of all experts that read the same."""


def _matrices(weights: NativeWeights | NativePartWeights, part: Part) -> Matrices:
    matrices: dict[int, Sequence[PackedMatrix]] = {}
    n = n_observed(part.spec)
    for i, layer in zip(part.layers, weights.layers, strict=True):
        mlps = layer.experts if layer.up is None or layer.down is None else [Expert(layer.up, layer.down)]
        ups, downs = [mlp.up for mlp in mlps], [[mlp.down] for mlp in mlps]
        matrices |= enumerate(([layer.qkv], [layer.out], ups, *downs), n * i)
    return matrices if weights.head is None else matrices | {n * part.spec.n_layers: [weights.head]}


def _by_name(built: NativeBuilder, matrices: Matrices, chosen: Chosen) -> dict[str, list[int]]:
    """By the name of a matrix's first parameter, its exact inputs."""
    names = {id(matrix): name for name, matrix in built.matrices.items()}
    return {
        names[id(matrix)]: [int(i) for i in chosen[row] if i >= 0]
        for row, held_alike in matrices.items()
        for matrix in held_alike
        if matrix.format is Format.INT8
    }
