"""Part: what one worker has of a model: a run of its layers, and of each of them a shard.

A shard has some K/V heads with the query heads that share them, some columns of the MLP and some of the vocabulary, as
even as they come out. Its Linears `out` and `down` give sums over its own inputs alone: they are added up over the
shards, after which every shard has the same hidden states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orcaserve.core.errors import ConfigError
from orcaserve.model.spec import ModelSpec

COLUMN_UNIT = 64  # of the MLP: no block of a quantised matrix, and no run that is turned as one, is cut through
_GROUPS = (192, 128)  # columns that share a scale in int8: not cut through either, if shards stay about as even
_UNEVEN = 1 / 16  # that the largest shard may grow by for it


@dataclass(frozen=True, slots=True)
class Part:
    """Layers `layers` of the model `spec`, shard `shard` of `n_shards`.

    Raises ConfigError if the model cannot be cut so.
    """

    spec: ModelSpec
    layers: range
    shard: int = 0
    n_shards: int = 1

    def __post_init__(self) -> None:
        check_layers_and_shard(self.layers, self.spec.n_layers, self.shard, self.n_shards)
        columns = min(self.spec.mlp_sizes)
        most = min(self.spec.n_kv_heads, -(-columns // COLUMN_UNIT))
        if self.n_shards > most:
            raise ConfigError(
                "--tensor-parallel-size",
                f"must be at most {most}: the model has {self.spec.n_kv_heads} key/value heads and "
                f"{columns} columns in its {'experts' if self.spec.n_experts else 'MLP'}",
            )
        if self.n_shards > 1 and self.spec.qk_norm == "all":
            raise ConfigError("--tensor-parallel-size", "must be 1: this model norms all heads of a token together")

    @classmethod
    def whole(cls, spec: ModelSpec) -> Part:
        return cls(spec, range(spec.n_layers))

    @property
    def first(self) -> bool:
        return self.layers.start == 0

    @property
    def last(self) -> bool:
        return self.layers.stop == self.spec.n_layers

    @property
    def is_whole(self) -> bool:
        return self.first and self.last and self.n_shards == 1

    @property
    def kv_heads(self) -> range:
        return share(self.spec.n_kv_heads, self.shard, self.n_shards)

    @property
    def heads(self) -> range:
        group = self.spec.n_heads // self.spec.n_kv_heads
        return range(self.kv_heads.start * group, self.kv_heads.stop * group)

    @property
    def grouped_rows(self) -> tuple[range, ...]:
        """Of a matrix in which every K/V head has its query heads, key and value: its own queries, keys, values."""
        spec, dim = self.spec, self.spec.head_dim
        n_rows = (spec.n_heads // spec.n_kv_heads + 2) * dim  # of a K/V head with its query heads
        ends = [(head + 1) * n_rows for head in self.kv_heads]
        queries = [range(end - n_rows, end - 2 * dim) for end in ends]
        return (*queries, *(range(end - 2 * dim, end - dim) for end in ends), *(range(end - dim, end) for end in ends))

    @property
    def columns(self) -> range:
        """Of the MLP of layers without experts."""
        return self._columns(self.spec.intermediate_size)

    @property
    def expert_columns(self) -> range:
        """Of each expert."""
        return self._columns(self.spec.expert_size)

    def _columns(self, n: int) -> range:
        return share(n, self.shard, self.n_shards, _column_unit(n, self.n_shards))

    @property
    def vocabulary(self) -> range:
        """Of the head. The embedding is whole in every shard of the first layers."""
        return share(self.spec.vocab_size, self.shard, self.n_shards)

    @property
    def own_spec(self) -> ModelSpec:
        """The sizes of this part alone; the vocabulary's is the whole model's."""
        return replace(
            self.spec,
            n_layers=len(self.layers),
            n_heads=len(self.heads),
            n_kv_heads=len(self.kv_heads),
            intermediate_size=len(self.columns),
            expert_size=len(self.expert_columns),
        )


def check_layers_and_shard(layers: range, n_layers: int, shard: int, n_shards: int) -> None:
    """Raises ConfigError if there are no such layers of n_layers, or there is no such shard."""
    if not 0 <= layers.start < layers.stop <= n_layers or layers.step != 1:
        raise ConfigError("layers", f"{layers} is no run of the model's {n_layers} layers")
    if not 0 <= shard < n_shards:
        raise ConfigError("shard", f"{shard} is none of {n_shards}")


def _column_unit(n: int, n_parts: int) -> int:
    def largest(unit: int) -> int:
        return max(len(share(n, part, n_parts, unit)) for part in range(n_parts))

    most = largest(COLUMN_UNIT) * (1 + _UNEVEN)
    return next((group for group in _GROUPS if n % group == 0 and largest(group) <= most), COLUMN_UNIT)


def share(n: int, part: int, n_parts: int, unit: int = 1) -> range:
    """Part `part` of 0 .. n - 1 in n_parts runs of whole units; a last, broken unit counts as one."""
    n_units = -(-n // unit)
    return range(min(n, n_units * part // n_parts * unit), min(n, n_units * (part + 1) // n_parts * unit))
