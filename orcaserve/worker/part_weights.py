"""The weights of a worker's part: loaded as far as one worker can alone, and finished when all have met."""

from __future__ import annotations

from typing import Protocol

from orcaserve.checkpoint.converted import WEIGHTS, is_converted
from orcaserve.config import ModelConfig
from orcaserve.data_plane.protocol import DataPlane, Place
from orcaserve.model.filled_heads import HEAD_UNIT
from orcaserve.model.loader import ModelFiles
from orcaserve.model.part import Part
from orcaserve.native import _kernels
from orcaserve.native.builder import NativePartWeights
from orcaserve.native.exact_inputs import PlainPart, build_part
from orcaserve.native.huge_pages import begin_anew
from orcaserve.native.model import NativeModel
from orcaserve.native.packed_model import PackedFile
from orcaserve.native.precision import Precision, choose_precision
from orcaserve.worker.plan import Plan
from orcaserve.worker.watching import choose_together, runs_of_layers


class Loading(Protocol):
    """A part's weights on their way. precision: how they are held."""

    @property
    def precision(self) -> Precision: ...

    def finish(self, plane: DataPlane) -> NativePartWeights:
        """Once; all workers at the same time. Raises ModelError."""


def begin_loading(model: ModelConfig, plan: Plan, place: Place, team: _kernels.Team, n_threads: int) -> Loading:
    """Reads what this worker needs of the model, and nothing else. Raises ModelError, or ConfigError."""
    if is_converted(model.path):
        return _Converted(model, plan.part(place), n_threads)
    with ModelFiles(model.path, HEAD_UNIT) as files:
        spec = files.spec
        precision = choose_precision(model.dtype, model.quantization, files.matrix_kinds)
        widths = (spec.hidden_size, spec.q_size, *spec.mlp_sizes)
        if precision.may_hold_int8(files.matrix_kinds, widths):
            return _Watched(model, plan, place, team, files, precision)
        return _Plain(precision, build_part(files, precision, team, plan.part(place)))


class _Plain:
    """Nothing is missing."""

    def __init__(self, precision: Precision, weights: NativePartWeights) -> None:
        self.precision, self._weights = precision, weights

    def finish(self, plane: DataPlane) -> NativePartWeights:
        return self._weights


class _Converted(_Plain):
    """The exact inputs are in the file."""

    def __init__(self, model: ModelConfig, part: Part, n_threads: int) -> None:
        file = PackedFile(model.path / WEIGHTS)
        super().__init__(file.precision, file.load_part(part, n_threads))


class _Watched:
    """Exact inputs are still to be chosen. Until then this worker has the run of layers that it watches: with one shard
    a stage its own ones; else its part is loaded when the run is no longer needed."""

    def __init__(
        self, model: ModelConfig, plan: Plan, place: Place, team: _kernels.Team, files: ModelFiles, precision: Precision
    ) -> None:
        self.precision = precision
        self._path, self._part, self._place, self._team = model.path, plan.part(place), place, team
        self._runs = runs_of_layers(plan.stages, place.n_shards)
        run = self._runs[place.rank]
        self._run = PlainPart(files, precision, team, Part(plan.spec, run)) if run else None

    def finish(self, plane: DataPlane) -> NativePartWeights:
        run, self._run = self._run, None
        spec = self._part.spec
        model = None if run is None else NativeModel(spec, run.weights, self._team, run.part)
        chosen = choose_together(model, self._team, spec, self._runs, self._place, plane)
        del model
        with ModelFiles(self._path, HEAD_UNIT) as files:
            if run is None or run.part != self._part:
                del run  # its memory is free before the part's is taken
                begin_anew()
                run = PlainPart(files, self.precision, self._team, self._part)
            return run.with_exact(files, chosen)
