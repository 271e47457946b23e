"""LoraFiles: a low-rank adapter as PEFT saves it, adapter_config.json and adapter_model.safetensors.

What it holds for each Linear that it adapts: A [r, inputs] and B [outputs, r], for y += scale * B (A x).
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.json_object import parse_object
from orcaserve.checkpoint.safetensors import SafetensorsFile
from orcaserve.core.adapter import AdapterSource
from orcaserve.core.errors import CheckpointError, ConfigError, ModelError, ModelNotFound, UnsupportedModel

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PICKLED = "adapter_model.bin"
MAX_CONFIG = 1 << 20  # bytes
_PREFIX = "base_model.model."
_TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<which>[AB])\.weight")
_PLAIN = re.compile(r"[\w.]+")
_CHUNK = 1 << 20
# Settings of PEFT's that change what is computed, each with the values that change nothing.
_REFUSED: dict[str, tuple[object, ...]] = {
    "use_dora": (None, False),
    "bias": (None, "none"),
    "modules_to_save": (None, []),
    "lora_bias": (None, False),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "alora_invocation_tokens": (None, []),
    "target_parameters": (None, []),
    "use_qalora": (None, False),
    "megatron_config": (None,),
    "arrow_config": (None,),
}

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LowRank:
    """Of one Linear: a [r, inputs], b [outputs, r]."""

    a: Floats
    b: Floats
    scale: float

    @property
    def rank(self) -> int:
        return len(self.a)


class LoraFiles:
    """The files of one adapter, whose settings have been checked; numbers are read by `read`.

    modules: names of the adapted Linears as transformers' model has them. transposed: trained on a Linear that its
    model stores [inputs, outputs].
    Raises ModelNotFound if files are missing, CheckpointError if they are damaged or contradict each other,
    UnsupportedModel, with the name of the setting, for kinds of adapters that cannot be run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / WEIGHTS).is_file() and (path / PICKLED).exists():
            raise UnsupportedModel(
                f"{path.name}/{PICKLED} is pickled, and reading it could run programs: save it as {WEIGHTS}"
            )
        try:
            with (path / CONFIG).open("rb") as file:
                raw = file.read(MAX_CONFIG + 1)
        except OSError as error:
            raise ModelNotFound(f"{path / CONFIG} cannot be read: {error.strerror}") from error
        if len(raw) > MAX_CONFIG:
            raise CheckpointError(f"{CONFIG} is larger than {MAX_CONFIG} bytes")
        self._config = parse_object(raw, CONFIG)
        self._check_settings()
        self.transposed = self._flag("fan_in_fan_out")
        self._file = SafetensorsFile(path / WEIGHTS)
        try:
            self.modules = self._find_modules()
        except BaseException:
            self._file.close()
            raise

    @property
    def rank(self) -> int:
        """The largest of its Linears'."""
        return max(self._file.tensors[names["A"]].shape[0] for names in self.modules.values())

    def read(self, module: str) -> LowRank:
        """Raises CheckpointError if a number is not finite or a scale makes no sense."""
        names = self.modules[module]
        a, b = self._file.read(names["A"]), self._file.read(names["B"])
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            raise CheckpointError(f"{WEIGHTS}: {module} has numbers that are not finite")
        return LowRank(a, b, self._scale(module, len(a)))

    def shapes(self, module: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of A and of B."""
        names = self.modules[module]
        return self._file.tensors[names["A"]].shape, self._file.tensors[names["B"]].shape

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> LoraFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_settings(self) -> None:
        kind = self._config.get("peft_type")
        if kind != "LORA":
            raise UnsupportedModel(f"{CONFIG}: peft_type {str(kind)[:40]!r} is not supported; LORA is")
        for name, harmless in _REFUSED.items():
            if self._config.get(name) not in harmless:
                raise UnsupportedModel(f"{CONFIG}: {name} is not supported: adapters of plain low-rank matrices are")

    def _find_modules(self) -> Mapping[str, Mapping[str, str]]:
        """Module -> A and B -> name in the file."""
        found: dict[str, dict[str, str]] = {}
        for name in self._file.tensors:
            match = _TENSOR.fullmatch(name.removeprefix(_PREFIX))
            if "lora_magnitude_vector" in name:
                raise UnsupportedModel(f"{WEIGHTS}: tensor {name} belongs to DoRA, which is not supported")
            if "lora_embedding_" in name:
                raise UnsupportedModel(f"{WEIGHTS}: tensor {name} adapts an embedding; only Linears can be")
            if match is None or not name.startswith(_PREFIX):
                raise UnsupportedModel(f"{WEIGHTS}: tensor {name} is no {_PREFIX}*.lora_A.weight or lora_B.weight")
            found.setdefault(match["module"], {})[match["which"]] = name
        if not found:
            raise CheckpointError(f"{WEIGHTS} holds no tensors")
        for module, names in found.items():
            if len(names) != 2:
                raise CheckpointError(f"{WEIGHTS}: {module} lacks one of lora_A and lora_B")
            (rank, *inputs), (*outputs, b_rank) = (self._file.tensors[names[which]].shape for which in "AB")
            if len(inputs) != 1 or len(outputs) != 1 or rank != b_rank or rank < 1:
                raise CheckpointError(f"{WEIGHTS}: lora_A and lora_B of {module} are no matrices of one rank")
            expected = self._of("rank_pattern", module, self._config.get("r"))
            if rank != expected:
                raise CheckpointError(f"{WEIGHTS}: {module} has rank {rank}, {CONFIG} says {str(expected)[:40]}")
        return found

    def _scale(self, module: str, rank: int) -> float:
        alpha = self._of("alpha_pattern", module, self._config.get("lora_alpha"))
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
            raise CheckpointError(f"{CONFIG}: lora_alpha is no number")
        return alpha / (math.sqrt(rank) if self._flag("use_rslora") else rank)

    def _of(self, patterns: str, module: str, usual: Any) -> Any:
        """What the setting of this name says of the module; names in it, and ends of names, count."""
        given = self._config.get(patterns) or {}
        if not isinstance(given, dict) or not all(_PLAIN.fullmatch(key) for key in given):
            raise UnsupportedModel(f"{CONFIG}: {patterns} is not supported but for names of modules")
        return next((v for key, v in given.items() if module == key or module.endswith(f".{key}")), usual)

    def _flag(self, name: str) -> bool:
        value = self._config.get(name, False)
        if not isinstance(value, bool):
            raise CheckpointError(f"{CONFIG}: {name} is neither true nor false")
        return value


def digest(path: Path) -> str:
    """What an adapter is: a hash of its files. Raises ModelNotFound."""
    whole = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        try:
            with (path / name).open("rb") as file:
                while chunk := file.read(_CHUNK):
                    whole.update(chunk)
        except OSError as error:
            raise ModelNotFound(f"{path / name} cannot be read: {error.strerror}") from error
        whole.update(b"\0")
    return whole.hexdigest()


def named_adapters(modules: Iterable[tuple[str, str | Path]], model: str) -> tuple[AdapterSource, ...]:
    """Names and folders -> what an engine is to load from its start. model: the base model's name.

    Their settings are looked at. Raises ConfigError for names that do not tell them apart, ModelError that names the
    adapter.
    """
    sources: list[AdapterSource] = []
    for number, (name, folder) in enumerate(modules, 1):
        if any(name == other.name for other in sources):
            raise ConfigError("--lora-modules", f"{name} is given twice")
        if name == model:
            raise ConfigError("--lora-modules", f"{name} is the model's own name")
        path = Path(os.path.abspath(folder))
        try:
            LoraFiles(path).close()
            sources.append(AdapterSource(number, name, path, digest(path)))
        except ModelError as error:
            raise type(error)(f"adapter {name}: {error}") from error
    return tuple(sources)
