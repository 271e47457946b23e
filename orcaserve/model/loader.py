"""load_model: a checkpoint's tensors into the skeleton's weights. It fails rather than guesses.

Every parameter is set exactly once, from a tensor of exactly the expected sizes, and every tensor of the checkpoint is
used or known to be no parameter.
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from orcaserve.checkpoint.checkpoint import Checkpoint, eos_ids, open_checkpoint
from orcaserve.core.errors import CheckpointError, UnsupportedModel
from orcaserve.model.attention import choose_attention
from orcaserve.model.families import Names, family_of
from orcaserve.model.families.settings import Settings
from orcaserve.model.layers import ACTIVATIONS, MLP, Embedding, Linear, Norm, StoredEmbedding, can_pack
from orcaserve.model.spec import ModelSpec
from orcaserve.model.transformer import Layer, Transformer, Weights

logger = logging.getLogger(__name__)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_model(path: Path, dtype: str = "float32", device: torch.device | str = "cpu") -> Transformer:
    """Read a GGUF file or a checkpoint folder. `dtype` is how weights are held: float32 or bfloat16.

    Raises ModelNotFound, CheckpointError (damaged or contradictory) or UnsupportedModel.
    """
    checkpoint = open_checkpoint(path)
    try:
        spec, names = _describe(checkpoint)
        weights = _Loader(checkpoint, spec, names, DTYPES[dtype], torch.device(device)).load()
    finally:
        checkpoint.close()
    return Transformer(spec, weights, choose_attention(device, spec.attention_scale))


def _describe(checkpoint: Checkpoint) -> tuple[ModelSpec, Names]:
    """The model's sizes and the names of its tensors, checked as far as they can be without reading weights."""
    settings = Settings(checkpoint.config)
    settings.refuse("quantization_config")
    family = family_of(checkpoint.config.get("model_type"))
    spec = family.spec(settings)
    if spec.activation not in ACTIVATIONS:
        raise UnsupportedModel(f"activation {spec.activation!r} is not supported; {', '.join(ACTIVATIONS)} are")
    if spec.n_heads % spec.n_kv_heads:
        raise CheckpointError(f"{spec.n_heads} heads cannot share {spec.n_kv_heads} key/value heads evenly")
    names = family.gguf if checkpoint.format == "gguf" else family.safetensors
    if checkpoint.config["model_type"] not in names.interleaved:
        names = replace(names, interleaved=frozenset())
    ids = frozenset(token for token in eos_ids(checkpoint) if token < spec.vocab_size)
    return replace(spec, eos_ids=ids), names


class _Loader:
    """Takes tensors out of a checkpoint, each once."""

    def __init__(
        self, checkpoint: Checkpoint, spec: ModelSpec, names: Names, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._checkpoint, self._spec, self._names = checkpoint, spec, names
        self._dtype, self._device = dtype, device
        self._stored: dict[str, str] = {}  # name without prefix -> name in the file; shrinks as tensors are taken
        for name in checkpoint.tensors:
            plain = name.removeprefix(names.prefix)
            if plain in self._stored:
                raise CheckpointError(f"tensors {self._stored[plain]} and {name} are the same parameter")
            self._stored[plain] = name

    def load(self) -> Weights:
        spec, names = self._spec, self._names
        embedding, head = self._ends()
        weights = Weights(
            embedding=embedding,
            positions=None if names.positions is None else Embedding(self._table(names.positions, spec.context_length)),
            layers=[self._layer(names.layer.format(i=i)) for i in range(spec.n_layers)],
            norm=self._norm(names.norm),
            head=head,
        )
        left = [name for plain, name in self._stored.items() if not self._is_ignored(plain)]
        if left:
            raise CheckpointError(f"{len(left)} tensors are no parameters of this model, the first is {left[0]}")
        return weights

    def _is_ignored(self, plain: str) -> bool:
        return any(re.fullmatch(pattern, plain) for pattern in self._names.ignored)

    def _layer(self, start: str) -> Layer:
        spec, names = self._spec, self._names
        heads = (spec.n_heads, spec.n_kv_heads, spec.n_kv_heads)
        attention_norm = self._norm(start + names.attention_norm)
        sizes = tuple(n * spec.head_dim for n in heads)
        qkv = self._linear(start, names.qkv, sizes, spec.hidden_size, spec.qkv_bias, heads[:2])
        out = self._linear(start, (names.out,), (spec.hidden_size,), spec.q_size, spec.out_bias)
        mlp_norm = self._norm(start + names.mlp_norm)
        wide = (spec.intermediate_size,) * (2 if spec.gated else 1)
        up = self._linear(start, names.up, wide, spec.hidden_size, spec.mlp_bias)
        down = self._linear(start, (names.down,), (spec.hidden_size,), spec.intermediate_size, spec.mlp_bias)
        return Layer(attention_norm, qkv, out, mlp_norm, MLP(up, down, spec.activation, spec.gated))

    def _norm(self, name: str) -> Norm:
        size = (self._spec.hidden_size,)
        bias = self._stack((name + ".bias",), size) if self._spec.norm == "layer" else None
        return Norm(self._stack((name + ".weight",), size), bias, self._spec.norm_eps)

    def _table(self, name: str, rows: int) -> Tensor:
        """[rows, hidden], looked up by row; stored so in every family."""
        return self._stack((name + ".weight",), (rows,), (self._spec.hidden_size,))

    def _ends(self) -> tuple[Embedding | StoredEmbedding, Linear]:
        """Embedding and output head: two tables, or one that is both."""
        spec, names, stored = self._spec, self._names, dict(self._stored)
        table = self._table(names.embedding, spec.vocab_size)
        if not spec.tied:
            head = Linear(self._table(names.head, spec.vocab_size))
            head.pack()
            return Embedding(table), head
        if f"{names.head}.weight" in stored and not torch.equal(self._table(names.head, spec.vocab_size), table):
            logger.warning("%s.weight differs from the embedding it is tied to, and is ignored", names.head)
        head = Linear(table)
        info = self._checkpoint.tensors[stored[f"{names.embedding}.weight"]]
        if not can_pack(table) or info.n_bytes > table.nbytes // 2:
            return Embedding(table), head
        head.pack()
        return StoredEmbedding(info.kind, self._checkpoint.stored(info.name), spec.hidden_size), head

    def _linear(
        self,
        start: str,
        parts: tuple[str, ...],
        sizes: tuple[int, ...],
        width: int,
        bias: bool,
        turned: tuple[int, ...] = (),
    ) -> Linear:
        """A Linear of parts with `sizes` rows each. turned: see _stack."""
        transposed = self._names.transposed
        weights, biases = (tuple(start + part + end for part in parts) for end in (".weight", ".bias"))
        linear = Linear(
            self._stack(weights, sizes, (width,), turned, transposed),
            self._stack(biases, sizes, (), turned) if bias else None,
        )
        linear.pack()
        return linear

    def _stack(
        self,
        names: tuple[str, ...],
        sizes: tuple[int, ...],
        width: tuple[int, ...] = (),
        turned: tuple[int, ...] = (),
        transposed: bool = False,
    ) -> Tensor:
        """[sum of sizes, *width]: the tensors `names` on top of each other, or one tensor that already is.

        turned: numbers of heads of the leading parts that rotary positions turn. transposed: stored [*width, size].
        """
        if len(names) == 1:
            sizes = (sum(sizes),)
        shapes = [(*width, size) if transposed else (size, *width) for size in sizes]
        taken = [self._take(name, shape) for name, shape in zip(names, shapes, strict=True)]
        stacked = torch.empty(sum(sizes), *width)
        for i, (name, rows) in enumerate(zip(taken, torch.split(stacked, list(sizes)), strict=True)):
            if transposed:
                rows.copy_(torch.from_numpy(self._checkpoint.read(name)).t())
            else:
                self._checkpoint.read(name, rows.numpy())
            # The sum is one quick pass; it may overflow where no number is infinite, so it only arouses suspicion.
            if not torch.isfinite(rows.sum()) and not torch.isfinite(rows).all():
                raise CheckpointError(f"tensor {name} holds values that are not finite numbers")
            if i < len(turned) and self._names.interleaved:
                pairs = rows.view(turned[i], -1, 2, *width)
                rows.copy_(pairs.transpose(1, 2).reshape(rows.shape))
        return stacked.to(self._device, self._dtype)

    def _take(self, name: str, shape: tuple[int, ...]) -> str:
        """The file's name of a parameter that has not been taken yet. Raises CheckpointError."""
        stored = self._stored.pop(name, None)
        if stored is None:
            raise CheckpointError(f"tensor {name} of sizes {list(shape)} is missing")
        actual = self._checkpoint.tensors[stored].shape
        if actual != shape:
            raise CheckpointError(f"tensor {stored} has sizes {list(actual)}, the config asks for {list(shape)}")
        return stored
