"""Exact inputs: the few inputs of an int8 matrix that are largest by far, whose products are computed in float32.

In most Linears of a language model the same handful of channels carries values many times as large as the others, for
every token. In eight bits they would coarsen the scale of their group, and the rounding of their weights, times such a
value, would be the greatest error of all. Which channels these are is found by watching the model at work on texts that
it makes up itself: no data is needed, and the choice is always the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from orcaserve.core import SamplingParams
from orcaserve.model.kv_manager import KVManager
from orcaserve.model.loader import ModelFiles
from orcaserve.model.parameter import Floats, Parameter
from orcaserve.model.part import Part
from orcaserve.model.spec import ModelSpec
from orcaserve.native import _kernels
from orcaserve.native.builder import NativeBuilder, NativePartWeights, NativeWeights, Norm, Table
from orcaserve.native.kv_region import PAGE_SIZE_STEP, KVRegion
from orcaserve.native.model import NativeModel
from orcaserve.native.packing import MOST_EXACT, ExactInputs, Format, PackedMatrix
from orcaserve.native.precision import Precision
from orcaserve.native.sampler import Sampler

N_EXACT = 16  # inputs of a matrix
SHARE = 4.0  # an input is exact only if its mean square is so many times that of all
N_TEXTS, N_TOKENS = 8, 24  # what the model is watched on
_SEED = 20_26


def build_weights(files: ModelFiles, precision: Precision, team: _kernels.Team) -> NativeWeights:
    """A checkpoint's weights for the kernels, with exact inputs where matrices are int8."""
    built = NativeBuilder(precision, team)
    weights = files.load(built)
    choice = choose_exact_inputs(files.spec, weights, built, team)
    return files.load(ExactInputsBuilder(built, choice)) if choice else weights


def build_part(files: ModelFiles, precision: Precision, team: _kernels.Team, part: Part) -> NativePartWeights:
    """The weights of a part. No input of its int8 matrices is exact: which ones matter only a whole model can show."""
    return files.load_part(NativeBuilder(precision, team), part)


class ExactInputsBuilder:
    """A WeightsBuilder over a model that another builder has just made: it adds exact inputs to the matrices.

    choice: which, by the name of a matrix's first parameter.
    """

    def __init__(self, built: NativeBuilder, choice: Mapping[str, Sequence[int]]) -> None:
        self._built, self._choice = built, choice

    def norm(self, weight: Floats, bias: Floats | None) -> Norm:
        return self._built.norm(weight, bias)

    def matrix(self, parts: Sequence[Parameter], biases: Sequence[Floats] | None, gated: bool = False) -> PackedMatrix:
        matrix = self._built.matrices[parts[0].name]
        inputs = self._choice.get(parts[0].name, ())
        if not len(inputs):
            return matrix
        weights = [part.columns(inputs) for part in parts]
        fit = np.all([np.abs(columns).max(axis=0) <= MOST_EXACT for columns in weights], axis=0)
        if not fit.any():
            return matrix
        chosen = [i for i, fits in zip(inputs, fit.tolist(), strict=True) if fits]
        return replace(matrix, exact=ExactInputs.of(matrix, chosen, [w[:, fit] for w in weights]))

    def table(self, rows: Parameter) -> Table:
        return self._built.tables[rows.name]

    def tied(self, table: Parameter) -> tuple[Table, PackedMatrix]:
        return self.table(table), self.matrix([table], None)

    def tied_head(self, rows: Parameter) -> tuple[PackedMatrix, Table | None]:
        return self.matrix([rows], None), self.table(rows)


def choose_exact_inputs(
    spec: ModelSpec, weights: NativeWeights, built: NativeBuilder, team: _kernels.Team
) -> dict[str, list[int]]:
    """By the name of a matrix's first parameter, the inputs that are to be exact; matrices without any are left out."""
    names = {id(matrix): name for name, matrix in built.matrices.items()}
    matrices = [m for layer in weights.layers for m in (layer.qkv, layer.out, layer.up, layer.down)] + [weights.head]
    if all(matrix.format is not Format.INT8 for matrix in matrices):
        return {}
    choice = {}
    for matrix, squares in zip(matrices, _watch(spec, weights, team), strict=True):
        largest = np.argsort(-squares, kind="stable")[:N_EXACT]
        chosen = sorted(int(i) for i in largest if squares[i] > SHARE * squares.mean())
        if matrix.format is Format.INT8 and chosen:
            choice[names[id(matrix)]] = chosen
    return choice


def _watch(spec: ModelSpec, weights: NativeWeights, team: _kernels.Team) -> list[NDArray[np.float64]]:
    """The sums of squares of every input of every Linear, over texts that the model makes up."""
    model, sampler = NativeModel(spec, weights, team), Sampler(team)
    n_tokens = min(N_TOKENS, spec.context_length)
    pages = KVManager(N_TEXTS * -(-n_tokens // PAGE_SIZE_STEP) * PAGE_SIZE_STEP, PAGE_SIZE_STEP)
    kv = KVRegion(spec, pages.n_pages, PAGE_SIZE_STEP, "float32")
    ids = list(range(N_TEXTS))
    first = np.random.default_rng(_SEED).integers(0, spec.vocab_size, N_TEXTS).astype(np.int32)
    texts = [first]
    for text, token in zip(ids, first.tolist(), strict=True):
        sampler.admit(text, [token], SamplingParams(temperature=1.0, top_p=0.95, ignore_eos=True), frozenset(), text)
    for _ in range(n_tokens - 1):
        tokens, failed = sampler.sample(model.forward(texts[-1], pages.lay_out([(i, 1) for i in ids]), kv), ids)
        if failed:
            break  # a model of numbers that are none: what is watched below will not matter
        texts.append(np.asarray(tokens, np.int32))
    for text in ids:
        pages.drop(text)
    flat = np.ascontiguousarray(np.stack(texts, axis=1).reshape(-1))
    sums = model.observe(flat, pages.lay_out([(i, len(texts)) for i in ids]), kv)
    return [np.where(np.isfinite(s), s, 0) for s in sums]
