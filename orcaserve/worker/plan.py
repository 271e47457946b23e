"""Plan: which worker has which part of the model."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import accumulate, pairwise

from orcaserve.checkpoint.converted import WEIGHTS, is_converted
from orcaserve.config import EngineConfig, ParallelConfig
from orcaserve.core import ConfigError
from orcaserve.data_plane import memory
from orcaserve.data_plane.protocol import Place
from orcaserve.model.encoder_decoder.registry import is_encoder_decoder
from orcaserve.model.filled_heads import HEAD_UNIT
from orcaserve.model.loader import ModelFiles
from orcaserve.model.part import Part, share
from orcaserve.model.spec import ModelSpec


class Plan:
    """The parts of `spec`, by place. stages: the layers of each.

    Raises ConfigError, naming the flag, if the model cannot be cut so.
    """

    def __init__(self, spec: ModelSpec, parallel: ParallelConfig) -> None:
        self.spec = spec
        self.stages = split_layers(spec, parallel)
        n_stages, n_shards = parallel.pipeline_parallel_size, parallel.tensor_parallel_size
        self.places = [Place(s, r, n_stages, n_shards) for s in range(n_stages) for r in range(n_shards)]
        self.parts = [self.part(place) for place in self.places]  # all of them: one that is impossible shows here

    @classmethod
    def read(cls, config: EngineConfig) -> Plan:
        """The plan for the configured model, of which only headers are read. Raises ModelError or ConfigError."""
        parallel = config.parallel
        if is_encoder_decoder(config.model.path):
            raise ConfigError(_flag(parallel), "a model with an encoder is not cut: take 1")
        if config.model.device != "cpu" and is_converted(config.model.path):
            raise ConfigError("--device", "a converted model is packed for the CPU's kernels: take --device cpu")
        far = config.nodes.n_nodes > 1 or config.model.device != "cpu" or not memory.AVAILABLE
        if far and find_spec("torch") is None:
            raise ConfigError(
                _flag(parallel), "these workers exchange numbers through PyTorch: pip install 'orcaserve[torch]'"
            )
        if is_converted(config.model.path):
            return cls._of_converted(config)
        with ModelFiles(config.model.path, HEAD_UNIT if config.model.device == "cpu" else 1) as files:
            return cls(files.spec, parallel)

    @classmethod
    def _of_converted(cls, config: EngineConfig) -> Plan:
        from orcaserve.native.packed_model import PackedFile  # late: the kernels come with it

        file = PackedFile(config.model.path / WEIGHTS)
        file.check_settings(config.model.dtype, config.model.quantization)
        plan = cls(file.spec, config.parallel)
        for part in plan.parts:
            file.check_part(part)
        return plan

    def part(self, place: Place) -> Part:
        return Part(self.spec, self.stages[place.stage], place.shard, place.n_shards)


def _flag(parallel: ParallelConfig) -> str:
    """What asks for more workers than one."""
    return "--pipeline-parallel-size" if parallel.pipeline_parallel_size > 1 else "--tensor-parallel-size"


def split_layers(spec: ModelSpec, parallel: ParallelConfig) -> list[range]:
    """The layers of each stage, first to last: as asked for, or so that the longest stage takes the least time. A stage
    takes as long as it has weights, those of the output head in the last one included. Raises ConfigError."""
    n_layers, n_stages, split = spec.n_layers, parallel.pipeline_parallel_size, parallel.layer_split
    if split is not None:
        if sum(split) != n_layers:
            raise ConfigError("--layer-split", f"adds up to {sum(split)} layers, and the model has {n_layers}")
        return [range(start, stop) for start, stop in pairwise(accumulate(split, initial=0))]
    if n_stages > n_layers:
        raise ConfigError("--pipeline-parallel-size", f"must be at most {n_layers}: the model has so many layers")
    if n_stages == 1:
        return [range(n_layers)]
    n_before, head = n_stages - 1, spec.head_weights / spec.layer_weights

    def with_last(n: int) -> list[range]:
        return [*(share(n_layers - n, stage, n_before) for stage in range(n_before)), range(n_layers - n, n_layers)]

    def badness(stages: list[range]) -> tuple[float, float]:
        costs = [*map(len, stages[:-1]), len(stages[-1]) + head]
        return max(costs), sum(cost**2 for cost in costs)

    return min(map(with_last, range(1, n_layers - n_before + 1)), key=badness)
