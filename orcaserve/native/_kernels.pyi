"""The extension module (csrc/bind_*.cpp). Sizes and pointers are checked there; meanings are documented at the doors to
it: model.py, kv_region.py, packing.py, sampler.py, attention.py."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float32]
_Int32s = NDArray[np.int32]
_Bytes = NDArray[np.uint8]

def available_isas() -> list[str]: ...
def isa() -> str: ...
def set_isa(name: str) -> None: ...

class Team:
    """Threads of the kernels; they sleep while there is nothing to do."""

    def __init__(self, n_threads: int) -> None: ...
    @property
    def n_threads(self) -> int: ...
    @property
    def progress(self) -> int:
        """Changes whenever a unit of work is begun, and only then. Any thread, also while others run the kernels."""

    def take_cores(self, first: int, total: int) -> None:
        """From now on this thread alone runs the kernels: it and the others each get a core for themselves, as the
        threads `first`, `first` + 1, ... of `total` on this machine, if it has so many. Threads that this one starts
        will share its core. Raises ValueError if there are fewer in all."""

class KVRegion:
    def __init__(
        self,
        storage: int,
        page_size: int,
        n_pages: int,
        keys: NDArray[Any],
        values: NDArray[Any],
        key_scales: _Floats | None,
        value_scales: _Floats | None,
    ) -> None: ...

class Model:
    def __init__(
        self,
        spec: object,
        embedding: tuple[int, _Bytes] | None,
        positions: tuple[int, _Bytes] | None,
        layers: list[Any],
        norm: tuple[_Floats, _Floats | None] | None,
        head: object | None,
        head_table: tuple[int, _Bytes] | None = None,
        embedding_norm: tuple[_Floats, _Floats | None] | None = None,
    ) -> None: ...
    def run(
        self,
        team: Team,
        kv: KVRegion,
        starts: _Int32s,
        contexts: _Int32s,
        page_tables: _Int32s,
        token_ids: _Int32s | None,
        hidden: _Floats | None,
        logit_rows: _Int32s | None,
        logits: _Floats | None,
        frequencies: list[_Floats],  # of each rope of the model
        frequency_sets: list[_Int32s | None],
        all_reduce: object | None = None,  # SharedSums, or a Callable[[int, int, int], None]
        observed: list[NDArray[np.float64]] | None = None,
        shares: bool = False,
        adapters: list[Adapter | None] | None = None,
    ) -> None: ...

class Adapter:
    def __init__(self, model: Model, layers: list[tuple[Any, ...]]) -> None: ...

class Sampler:
    def __init__(self, team: Team) -> None: ...
    def admit(
        self,
        request_id: int,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repetition_penalty: float,
        presence_penalty: float,
        frequency_penalty: float,
        bias_ids: Sequence[int],
        bias: Sequence[float],
        min_tokens: int,
        stop_ids: Sequence[int],
        largest_id: int,
        seed: int,
        n_prompt: int,
        seen: Sequence[int],
        output: Sequence[int],
    ) -> None: ...
    def drop(self, request_ids: Sequence[int]) -> None: ...
    def take_back(self, request_ids: Sequence[int]) -> None: ...
    def sample(
        self,
        logits: _Floats,
        request_ids: Sequence[int],
        masks: Sequence[tuple[int, NDArray[np.uint32]]],
        n_top: Sequence[tuple[int, int]],
        rows: Sequence[int],
    ) -> tuple[list[int], list[tuple[int, int]], list[tuple[Any, ...]]]: ...

class Mailbox:
    """Numbers from one process to another, through memory that both have mapped."""

    def __init__(self, memory: _Bytes, at: int, n_slots: int, slot_bytes: int) -> None: ...
    @staticmethod
    def bytes(n_slots: int, slot_bytes: int) -> int: ...
    def put(self, x: _Floats) -> None: ...
    def take(self, x: _Floats) -> None: ...

class SharedSums:
    """Sums over the arrays of several processes, in memory that all have mapped."""

    def __init__(self, memory: _Bytes, at: int, shard: int, n_shards: int, capacity: int) -> None: ...
    @staticmethod
    def bytes(n_shards: int, capacity: int) -> int: ...
    @property
    def waiting(self) -> bool: ...
    def add(self, x: _Floats) -> None: ...

def uniform(seed: int, index: int) -> float: ...
def padded_inputs(format: int, n_in: int) -> int: ...
def group_inputs(format: int, n_in_padded: int) -> int: ...
def panel_bytes(format: int, n_in_padded: int, group: int) -> int: ...
def count_panels(n_out: int, interleaved: bool) -> int: ...
def pack_floats(format: int, parts: Sequence[_Floats], interleaved: bool, panels: _Bytes, team: Team) -> None: ...
def pack_blocks(
    parts: Sequence[tuple[int, _Bytes]], n_in: int, interleaved: bool, panels: _Bytes, team: Team
) -> bool: ...
def linear(
    format: int,
    n_out: int,
    n_in: int,
    panels: _Bytes,
    bias: _Floats | None,
    x: _Floats,
    y: _Floats,
    team: Team,
    group: int | None = None,
) -> None: ...

class attention:
    """A submodule: attention alone, for tests and benchmarks."""

    PART_KEYS: int
    BLOCK_ROWS: int
    @staticmethod
    def attend(
        team: Team,
        qkv: _Floats,
        out: _Floats,
        head_dim: int,
        scale: float,
        storage: int,
        page_size: int,
        keys: NDArray[Any],
        values: NDArray[Any],
        key_scales: _Floats | None,
        value_scales: _Floats | None,
        first_layer: int,
        n_layers: int,
        starts: _Int32s,
        contexts: _Int32s,
        tables: _Int32s,
        rope_dim: int,
        rope_amplitude: float,
        frequencies: _Floats | None,
        frequency_set: _Int32s | None,
        cut_for: int,
        shares: bool = False,
        window: int = 0,
        softcap: float = 0.0,
        alibi: _Floats | None = None,
    ) -> None: ...
    @staticmethod
    def cut_blocks(
        starts: _Int32s, contexts: _Int32s, group: int, n_kv_heads: int, n_threads: int
    ) -> list[tuple[int, ...]]: ...

class rows:
    """A submodule: operators on a row, panel or tile, for tests."""

    def __getattr__(self, name: str) -> Callable[..., None]: ...
