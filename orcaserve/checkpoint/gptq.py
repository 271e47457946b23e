"""GptqCheckpoint: a folder of GPTQ's 4-bit weights, seen as tensors of Q4_1 blocks: nothing after it knows of GPTQ.

A Linear `x` of such a folder is
    x.qweight  int32 [n_in / 8, n_out]       eight inputs in a number, the first one in its lowest bits
    x.qzeros   int32 [n_groups, n_out / 8]   eight outputs in a number, likewise
    x.scales   float16 [n_groups, n_out]
    x.g_idx    int32 [n_in]                  the group of each input; without it they are in order
and a weight is (nibble - zero) * scale. As in the files, zeros are 1 greater than what is stored, but not in the newer
form "gptq_v2". A Q4_1 block holds 32 inputs with the scale and -zero * scale; the latter is rounded to float16, which
changes nothing where the zero is 8, as in symmetric quantisation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.dequantise import dequantise
from orcaserve.checkpoint.folder import FolderCheckpoint
from orcaserve.checkpoint.tensor_info import TensorInfo
from orcaserve.core.errors import CheckpointError, UnsupportedModel

Bytes = NDArray[np.uint8]

BITS = 4
BLOCK = 32
BLOCK_BYTES = 20  # scale, minimum, 16 bytes of nibbles
KIND = "Q4_1"
_PER_NUMBER = 32 // BITS
_KINDS = {"qweight": "I32", "qzeros": "I32", "scales": "F16", "g_idx": "I32"}


def is_gptq(config: Mapping[str, Any]) -> bool:
    """Whether a config.json says that the weights beside it are GPTQ's."""
    settings = config.get("quantization_config")
    return isinstance(settings, dict) and settings.get("quant_method") == "gptq"


class GptqCheckpoint:
    """A checkpoint folder. Attributes as in `Checkpoint`. It owns `folder`.

    Raises UnsupportedModel for other numbers of bits and for inputs whose groups are mixed (act-order), CheckpointError
    if tensors are missing or disagree.
    """

    format: Literal["safetensors"] = "safetensors"

    def __init__(self, folder: FolderCheckpoint) -> None:
        self._folder = folder
        self.path: Path = folder.path
        settings = folder.config["quantization_config"]
        self.config = {key: value for key, value in folder.config.items() if key != "quantization_config"}
        self.generation_config = folder.generation_config
        bits = settings.get("bits")
        if bits != BITS:
            raise UnsupportedModel(f"GPTQ with {bits!r} bits is not supported; {BITS} are")
        forms = {"gptq": 1, "gptq_v2": 0}
        form = settings.get("checkpoint_format") or "gptq"
        if not isinstance(form, str) or form not in forms:
            raise UnsupportedModel(f"GPTQ's checkpoint_format {form!r} is not supported; {', '.join(forms)} are")
        self._zero = forms[form]  # what a stored zero lacks
        self._group_size = settings.get("group_size", -1)
        if type(self._group_size) is not int or (self._group_size != -1 and self._group_size < 1):
            raise CheckpointError("quantization_config: group_size is neither -1 nor a positive number")
        self._linears: dict[str, str] = {}  # the weight's name -> the Linear's
        self.tensors = self._view(folder.tensors)

    def _view(self, stored: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        """The tensors with a weight in the place of each Linear's parts."""
        tensors = dict(stored)
        for name in stored:
            linear, _, part = name.rpartition(".")
            if part != "qweight":
                continue
            shape = self._check(linear, stored)
            weight = f"{linear}.weight"
            if weight in stored:
                raise CheckpointError(f"tensors {weight} and {name} are the same parameter")
            for part in _KINDS:
                tensors.pop(f"{linear}.{part}", None)
            self._linears[weight] = linear
            tensors[weight] = TensorInfo(weight, shape, KIND, 0, shape[0] * shape[1] // BLOCK * BLOCK_BYTES)
        return tensors

    def _check(self, linear: str, stored: Mapping[str, TensorInfo]) -> tuple[int, int]:
        """The weight's sizes [n_out, n_in]. Raises as the class says."""
        for part, kind in _KINDS.items():
            info = stored.get(f"{linear}.{part}")
            if info is None and part != "g_idx":
                raise CheckpointError(f"tensor {linear}.{part} is missing")
            if info is not None and (info.kind != kind or len(info.shape) != (1 if part == "g_idx" else 2)):
                raise UnsupportedModel(f"tensor {linear}.{part} is {info.kind} {list(info.shape)}, GPTQ has {kind}")
        n_in, n_out = stored[f"{linear}.qweight"].shape[0] * _PER_NUMBER, stored[f"{linear}.qweight"].shape[1]
        if n_in == 0 or n_in % BLOCK or n_out == 0 or n_out % _PER_NUMBER:
            raise UnsupportedModel(f"{linear} has {n_in} inputs and {n_out} outputs: not whole blocks of {BLOCK} and 8")
        size = n_in if self._group_size == -1 else self._group_size
        if size % BLOCK:
            raise UnsupportedModel(f"GPTQ's group_size {size} is not supported; multiples of {BLOCK} are")
        n_groups = -(-n_in // size)
        expected = {"qzeros": (n_groups, n_out // _PER_NUMBER), "scales": (n_groups, n_out), "g_idx": (n_in,)}
        for part, shape in expected.items():
            info = stored.get(f"{linear}.{part}")
            if info is not None and info.shape != shape:
                raise CheckpointError(f"tensor {info.name} has sizes {list(info.shape)}, must have {list(shape)}")
        return n_out, n_in

    def _part(self, name: str, dtype: str) -> NDArray[Any]:
        return self._folder.stored(name).reshape(-1).view(dtype).reshape(self._folder.tensors[name].shape)

    def _groups(self, linear: str, n_in: int, n_groups: int) -> NDArray[np.int32]:
        """The group of each block of inputs."""
        name = f"{linear}.g_idx"
        if name not in self._folder.tensors:
            return (np.arange(n_in // BLOCK, dtype=np.int32) * BLOCK) // (
                n_in if self._group_size == -1 else self._group_size
            )
        groups: NDArray[np.int32] = self._part(name, "<i4").reshape(-1, BLOCK)
        if (groups != groups[:, :1]).any():
            raise UnsupportedModel(
                f"{name} mixes the groups of neighbouring inputs (act-order), which is not supported"
            )
        if groups.min() < 0 or groups.max() >= n_groups:
            raise CheckpointError(f"tensor {name} names groups outside of 0..{n_groups - 1}")
        return groups[:, 0]

    def stored(self, name: str, rows: Sequence[range] | None = None) -> Bytes:
        if name not in self._linears:
            return self._folder.stored(name, rows)
        blocks = self._blocks(name)  # outputs are columns in the files: some of them are not read sooner than all
        return blocks if rows is None else np.concatenate([blocks[run.start : run.stop] for run in rows])

    def _blocks(self, name: str) -> Bytes:
        linear = self._linears[name]
        n_out, n_in = self.tensors[name].shape
        scales = self._part(f"{linear}.scales", "<f2")
        packed = self._part(f"{linear}.qzeros", "<u4")
        zeros = (packed[:, :, None] >> np.arange(0, 32, BITS, dtype=np.uint32)) & 15
        with np.errstate(over="ignore", invalid="ignore"):  # whoever reads the blocks refuses what is not finite
            minima = (-(zeros.reshape(scales.shape) + np.float32(self._zero)) * scales.astype(np.float32)).astype("<f2")
        group = self._groups(linear, n_in, len(scales))
        blocks = np.empty((n_out, n_in // BLOCK, BLOCK_BYTES), np.uint8)
        blocks[:, :, 0:2] = np.ascontiguousarray(scales[group].T).view(np.uint8).reshape(n_out, -1, 2)
        blocks[:, :, 2:4] = np.ascontiguousarray(minima[group].T).view(np.uint8).reshape(n_out, -1, 2)
        numbers = self._part(f"{linear}.qweight", "<u4").reshape(n_in // BLOCK, -1, n_out).transpose(2, 0, 1)
        pairs = np.ascontiguousarray(numbers).view(np.uint8)  # [n_out, blocks, 16], each with two neighbouring inputs
        nibbles = np.empty((*pairs.shape[:2], BLOCK), np.uint8)
        nibbles[:, :, 0::2] = pairs & 15
        nibbles[:, :, 1::2] = pairs >> 4
        blocks[:, :, 4:] = nibbles[:, :, : BLOCK // 2] | nibbles[:, :, BLOCK // 2 :] << 4
        return blocks.reshape(n_out, -1)

    def read(self, name: str, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        if name not in self._linears:
            return self._folder.read(name, out)
        if out is None:
            out = np.empty(self.tensors[name].shape, np.float32)
        dequantise(KIND, self._blocks(name).reshape(-1), out.reshape(-1))
        return out

    @property
    def tokenizer_eos_ids(self) -> list[int]:
        return self._folder.tokenizer_eos_ids

    def close(self) -> None:
        self._folder.close()
