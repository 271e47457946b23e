"""Plan: which worker has which part of the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import accumulate, pairwise
from typing import Generic, TypeVar

from orcaserve.checkpoint.converted import WEIGHTS, is_converted
from orcaserve.config import EngineConfig, ParallelConfig
from orcaserve.core import ConfigError
from orcaserve.data_plane import memory
from orcaserve.data_plane.protocol import Place
from orcaserve.model.encoder_decoder.loader import EncoderDecoderFiles
from orcaserve.model.encoder_decoder.part import EncoderDecoderPart
from orcaserve.model.encoder_decoder.registry import is_encoder_decoder
from orcaserve.model.encoder_decoder.spec import EncoderDecoderSpec
from orcaserve.model.filled_heads import HEAD_UNIT
from orcaserve.model.loader import ModelFiles
from orcaserve.model.part import Part, share
from orcaserve.model.spec import ModelSpec

AnyPart = Part | EncoderDecoderPart
PartT = TypeVar("PartT", bound=AnyPart)


class PlanOf(Generic[PartT]):
    """The parts of a model, by place. stages: the layers of each.

    Raises ConfigError, naming the flag, if the model cannot be cut so.
    """

    def __init__(self, stages: list[range], make: Callable[[range, int, int], PartT], parallel: ParallelConfig) -> None:
        """make: a part, of its layers, its shard and the number of shards."""
        self.stages, self._make = stages, make
        n_stages, n_shards = parallel.pipeline_parallel_size, parallel.tensor_parallel_size
        self.places = [Place(s, r, n_stages, n_shards) for s in range(n_stages) for r in range(n_shards)]
        self.parts = [self.part(place) for place in self.places]  # all of them: one that is impossible shows here

    def part(self, place: Place) -> PartT:
        return self._make(self.stages[place.stage], place.shard, place.n_shards)


class Plan(PlanOf[Part]):
    """Of a model that is a decoder."""

    def __init__(self, spec: ModelSpec, parallel: ParallelConfig) -> None:
        self.spec = spec
        super().__init__(split_layers(spec, parallel), partial(Part, spec), parallel)


class EncoderDecoderPlan(PlanOf[EncoderDecoderPart]):
    """Of a model with two stacks."""

    def __init__(self, spec: EncoderDecoderSpec, parallel: ParallelConfig) -> None:
        self.spec = spec
        super().__init__(split_stacks(spec, parallel), partial(EncoderDecoderPart, spec), parallel)


def read_plan(config: EngineConfig) -> Plan | EncoderDecoderPlan:
    """The plan for the configured model, of which only headers are read. Raises ModelError or ConfigError."""
    parallel, path = config.parallel, config.model.path
    if config.model.device != "cpu" and is_converted(path):
        raise ConfigError("--device", "a converted model is packed for the CPU's kernels: take --device cpu")
    far = config.nodes.n_nodes > 1 or config.model.device != "cpu" or not memory.AVAILABLE
    if far and find_spec("torch") is None:
        raise ConfigError(
            _flag(parallel), "these workers exchange numbers through PyTorch: pip install 'orcaserve[torch]'"
        )
    if is_converted(path):
        return _of_converted(config)
    if is_encoder_decoder(path):
        with EncoderDecoderFiles(path) as both:
            return EncoderDecoderPlan(both.spec, parallel)
    with ModelFiles(path, HEAD_UNIT if config.model.device == "cpu" else 1) as files:
        return Plan(files.spec, parallel)


def _of_converted(config: EngineConfig) -> Plan:
    from orcaserve.native.packed_model import PackedFile  # late: the kernels come with it

    file = PackedFile(config.model.path / WEIGHTS)
    file.check_settings(config.model.dtype, config.model.quantization)
    plan = Plan(file.spec, config.parallel)
    for part in plan.parts:
        file.check_part(part)
    return plan


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
        return _as_asked_for(split)
    if n_stages > n_layers:
        raise ConfigError("--pipeline-parallel-size", f"must be at most {n_layers}: the model has so many layers")
    return _evenly(n_layers, n_stages, spec.head_weights / spec.layer_weights)


def split_stacks(spec: EncoderDecoderSpec, parallel: ParallelConfig) -> list[range]:
    """The same of a model with two stacks, the encoder's layers before the decoder's.

    In most iterations nobody begins, and the encoder does nothing. So the decoder's layers are divided as if they were
    all, and the first of these stages has the encoder too. Where there are more stages than layers of the decoder, the
    encoder's are divided over those that are left and that one.
    """
    n_encoder, n_decoder = spec.encoder.n_layers, spec.decoder.n_layers
    n_stages, split = parallel.pipeline_parallel_size, parallel.layer_split
    has = f"the model has {n_encoder} layers in its encoder and {n_decoder} in its decoder"
    if split is not None:
        if sum(split) != n_encoder + n_decoder:
            raise ConfigError("--layer-split", f"adds up to {sum(split)}, and {has}")
        return _as_asked_for(split)
    if n_stages > n_encoder + n_decoder:
        raise ConfigError("--pipeline-parallel-size", f"must be at most {n_encoder + n_decoder}: {has}")
    n_more = max(n_stages - n_decoder, 0)
    first, *others = _evenly(n_decoder, n_stages - n_more, spec.head_weights / spec.layer_weights)
    front = [share(n_encoder + first.stop, stage, n_more + 1) for stage in range(n_more + 1)]
    return [*front, *(range(n_encoder + each.start, n_encoder + each.stop) for each in others)]


def _as_asked_for(split: tuple[int, ...]) -> list[range]:
    return [range(start, stop) for start, stop in pairwise(accumulate(split, initial=0))]


def _evenly(n_layers: int, n_stages: int, head: float) -> list[range]:
    """At most as many stages as layers. head: how many layers the output head counts as."""
    if n_stages == 1:
        return [range(n_layers)]
    n_before = n_stages - 1

    def with_last(n: int) -> list[range]:
        return [*(share(n_layers - n, stage, n_before) for stage in range(n_before)), range(n_layers - n, n_layers)]

    def badness(stages: list[range]) -> tuple[float, float]:
        costs = [*map(len, stages[:-1]), len(stages[-1]) + head]
        return max(costs), sum(cost**2 for cost in costs)

    return min(map(with_last, range(1, n_layers - n_before + 1)), key=badness)
