import numpy as np
from numpy.typing import NDArray

def available_isas() -> list[str]: ...
def isa() -> str: ...
def set_isa(name: str) -> None: ...

class AttentionPlan:
    def __init__(
        self,
        starts: NDArray[np.int32],
        contexts: NDArray[np.int32],
        page_tables: NDArray[np.int32],
        n_pages: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        page_size: int,
        scale: float,
        bfloat16: bool,
    ) -> None: ...
    @property
    def n_tokens(self) -> int: ...
    def run(
        self,
        q: int,
        k: int,
        v: int,
        q_stride: int,
        k_stride: int,
        v_stride: int,
        keys: int,
        values: int,
        out: int,
        n_threads: int,
        /,
    ) -> None: ...
