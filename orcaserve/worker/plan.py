"""Plan: which worker has which part of the model."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import accumulate, pairwise

from orcaserve.checkpoint.converted import is_converted
from orcaserve.config import EngineConfig, ParallelConfig
from orcaserve.core import ConfigError
from orcaserve.data_plane.protocol import Place
from orcaserve.model.loader import ModelFiles
from orcaserve.model.part import Part, share
from orcaserve.model.spec import ModelSpec


class Plan:
    """The parts of `spec`, by place. Raises ConfigError, naming the flag, if the model cannot be cut so."""

    def __init__(self, spec: ModelSpec, parallel: ParallelConfig) -> None:
        self.spec = spec
        self._stages = split_layers(spec.n_layers, parallel)
        n_stages, n_shards = parallel.pipeline_parallel_size, parallel.tensor_parallel_size
        self.places = [Place(s, r, n_stages, n_shards) for s in range(n_stages) for r in range(n_shards)]
        self.parts = [self.part(place) for place in self.places]  # all of them: one that is impossible shows here

    @classmethod
    def read(cls, config: EngineConfig) -> Plan:
        """The plan for the configured model, of which only headers are read. Raises ModelError or ConfigError."""
        parallel = config.parallel
        flag = "--pipeline-parallel-size" if parallel.pipeline_parallel_size > 1 else "--tensor-parallel-size"
        if config.model.device != "cpu" and is_converted(config.model.path):
            raise ConfigError("--device", "a converted model is packed for the CPU's kernels: take --device cpu")
        if is_converted(config.model.path):
            raise ConfigError(flag, "a converted model is packed as a whole: give the files that it was made from")
        if find_spec("torch") is None:
            raise ConfigError(flag, "workers exchange numbers through PyTorch: pip install 'orcaserve[torch]'")
        with ModelFiles(config.model.path) as files:
            return cls(files.spec, parallel)

    def part(self, place: Place) -> Part:
        return Part(self.spec, self._stages[place.stage], place.shard, place.n_shards)


def split_layers(n_layers: int, parallel: ParallelConfig) -> list[range]:
    """The layers of each stage, first to last. Raises ConfigError."""
    n_stages, split = parallel.pipeline_parallel_size, parallel.layer_split
    if split is not None:
        if sum(split) != n_layers:
            raise ConfigError("--layer-split", f"adds up to {sum(split)} layers, and the model has {n_layers}")
        return [range(start, stop) for start, stop in pairwise(accumulate(split, initial=0))]
    if n_stages > n_layers:
        raise ConfigError("--pipeline-parallel-size", f"must be at most {n_layers}: the model has so many layers")
    return [share(n_layers, stage, n_stages) for stage in range(n_stages)]
