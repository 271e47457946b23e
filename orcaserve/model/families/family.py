"""Family: how one kind of model differs from the skeleton, as a table."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from orcaserve.model.families.settings import Settings
from orcaserve.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Names:
    """What a format calls the tensors of a family, without the endings .weight and .bias.

    A tuple names the parts that are stacked, first one on top, into one matrix of the skeleton.
    layer: start of the names of layer {i}; names of a layer's own tensors follow that start. Those of tensors that the
    spec does not ask for may be empty.
    prefix: start that files may put before every name but the head's.
    transposed: matrices are stored [in, out].
    interleaved: query and key rows are stored as pairs (i, i + half) side by side, head by head.
    ignored: patterns (re.fullmatch) of tensors that are no parameters.
    grouped: queries, keys and values are one matrix, in which every K/V head has its query heads, key and value.
    skipped_positions: rows of the positions' table before that of position 0.
    norm_offset: what is added to the stored weights of norms.
    router, expert_up, expert_down: of layers of experts; {e} is the expert's number.
    """

    embedding: str
    positions: str | None
    layer: str
    attention_norm: str
    qkv: tuple[str, ...]
    out: str
    mlp_norm: str
    up: tuple[str, ...]
    down: str
    norm: str
    head: str
    prefix: str = ""
    transposed: bool = False
    interleaved: bool = False
    ignored: tuple[str, ...] = ()
    post_attention_norm: str = ""
    post_mlp_norm: str = ""
    q_norm: str = ""
    k_norm: str = ""
    embedding_norm: str = ""
    grouped: bool = False
    skipped_positions: int = 0
    norm_offset: float = 0.0
    router: str = ""
    expert_up: tuple[str, ...] = ()
    expert_down: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of model, in one format or both.

    title, example, special: for the table of families: its name, a checkpoint on the hub, what Llama has not.
    model_types: values of config.json's model_type that it reads. architectures: of GGUF's general.architecture.
    variant: the names in a file that has these tensors, where a family has more than one way to call them.
    """

    title: str
    model_types: tuple[str, ...]
    spec: Callable[[Settings], ModelSpec]
    safetensors: Names
    example: str
    special: str = ""
    architectures: tuple[str, ...] = ()
    gguf: Names | None = None
    variant: Callable[[Names, Collection[str]], Names] = lambda names, tensors: names


# The decoder-only families of GGUF share these names.
GGUF_NAMES = Names(
    embedding="token_embd",
    positions=None,
    layer="blk.{i}.",
    attention_norm="attn_norm",
    qkv=("attn_q", "attn_k", "attn_v"),
    out="attn_output",
    mlp_norm="ffn_norm",
    up=("ffn_gate", "ffn_up"),
    down="ffn_down",
    norm="output_norm",
    head="output",
)
