"""What the quantization_config of a compressed-tensors folder says: how the weight of each module is stored.

    config_groups: name -> {targets, weights: {num_bits, type, symmetric, strategy, group_size, ...}, input_activations}
    ignore:        modules that are not quantised
    format:        of all groups, unless they say their own

A target is a module's name, a pattern "re:..." that fits the beginning of one, or a class: they count in this order.
Whatever would change the numbers and is not known here is refused by its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orcaserve.core.errors import CheckpointError, UnsupportedModel

INT, PACKED = "int-quantized", "pack-quantized"
BITS = {INT: (8,), PACKED: (4, 8)}
STRATEGIES = ("tensor", "channel", "group")
MAX_PATTERN = 1000  # characters
_PATTERN = "re:"
_CLASSES = ("Linear", "Embedding")
_EMBEDDINGS = ("embed", "wte", "wpe")  # in names of modules
# Keys that change no number, of the whole and of a group's weights.
_HARMLESS = {"quant_method", "quantization_status", "global_compression_ratio", "version"}
_WEIGHTS = {"num_bits", "type", "symmetric", "strategy", "group_size"}
_WEIGHTS_HARMLESS = {"observer", "observer_kwargs", "actorder", "scale_dtype", "zp_dtype"}


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a group's weights are stored. group_size: inputs that share a scale; -1: all of them.

    per_tensor: all outputs share it, too.
    """

    format: str
    bits: int
    symmetric: bool
    group_size: int
    per_tensor: bool


class CompressedConfig:
    """Raises UnsupportedModel for what is not supported, CheckpointError for what makes no sense."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        groups = settings.get("config_groups")
        if not isinstance(groups, dict) or not groups:
            raise CheckpointError("quantization_config: config_groups is no object of groups")
        sparsity = settings.get("sparsity_config")
        if sparsity and not (isinstance(sparsity, dict) and sparsity.get("format") == "dense"):
            raise _unsupported("sparsity_config", "weights without sparsity are")
        for key, value in settings.items():
            if key not in _HARMLESS | {"config_groups", "format", "ignore", "sparsity_config"} and value:
                raise _unsupported(key, "quantised weights alone are")
        self._ignored = [_target(target, "ignore") for target in _list(settings, "ignore", "quantization_config")]
        self._groups: list[tuple[list[str], Scheme]] = []
        for name, group in groups.items():
            where = f"config_groups.{name}"
            if not isinstance(group, dict):
                raise CheckpointError(f"quantization_config: {where} is no object")
            targets = [_target(target, f"{where}.targets") for target in _list(group, "targets", where)]
            self._groups.append((targets, _scheme(group, where, settings.get("format"))))

    def scheme_of(self, module: str) -> Scheme:
        """Of a module that is quantised in the files. Raises CheckpointError if it should not be."""
        if any(_fits(target, module) or target == _class_of(module) for target in self._ignored):
            raise CheckpointError(f"{module} is quantised, but in the ignore list of quantization_config")
        for names in ((module,), (), (_class_of(module),)):  # by name, by pattern, by class
            for targets, scheme in self._groups:
                if any(target in names if names else _fits(target, module) for target in targets):
                    return scheme
        raise CheckpointError(f"{module} is quantised, but is no target of quantization_config's config_groups")


def _scheme(group: Mapping[str, Any], where: str, format: Any) -> Scheme:
    weights, inputs = group.get("weights"), group.get("input_activations")
    format = group.get("format") or format  # "mixed-precision" above them means that each group has its own
    if not isinstance(weights, dict):
        raise _unsupported(f"{where} without weights", "groups whose weights are integers are")
    for key, value in group.items():
        if key not in ("targets", "weights", "input_activations", "format") and value:
            raise _unsupported(f"{where}.{key}", "weights and input_activations are")
    for key, value in weights.items():
        if key not in _WEIGHTS | _WEIGHTS_HARMLESS and value:
            raise _unsupported(f"{where}.weights.{key}", "what is computed beforehand for whole groups of inputs is")
    if not isinstance(format, str) or format not in BITS:
        raise _unsupported(f"{where} of format {format!r}", f"{INT} and {PACKED} are")
    kind, bits, strategy = weights.get("type", "int"), weights.get("num_bits", 8), weights.get("strategy")
    if kind != "int":
        raise _unsupported(f"{where}.weights of type {kind!r}", "int is")
    if bits not in BITS[format]:
        allowed = " and ".join(map(str, BITS[format]))
        raise _unsupported(f"{where}.weights of {bits!r} bits in {format}", f"{allowed} are")
    size = weights.get("group_size")
    if strategy is None:  # as its library understands it
        strategy = "tensor" if size is None else "channel" if size == -1 else "group"
    if strategy not in STRATEGIES:
        raise _unsupported(f"{where}.weights of strategy {strategy!r}", f"{', '.join(STRATEGIES)} are")
    if strategy == "group" and (type(size) is not int or size < 1):
        raise CheckpointError(f"quantization_config: {where}.weights.group_size is no positive number")
    symmetric = weights.get("symmetric", True)
    if not isinstance(symmetric, bool):
        raise CheckpointError(f"quantization_config: {where}.weights.symmetric is neither true nor false")
    # Inputs of matrices are held as --quantization says: what was meant for them must be coarser than that, or as fine.
    if inputs and not (isinstance(inputs, dict) and inputs.get("type", "int") == "int"
                       and inputs.get("num_bits", 8) == 8):  # fmt: skip
        raise _unsupported(f"{where}.input_activations", "inputs of 8-bit integers, or none, are")
    return Scheme(format, bits, symmetric, size if strategy == "group" and size else -1, strategy == "tensor")


def _unsupported(what: str, supported: str) -> UnsupportedModel:
    return UnsupportedModel(f"quantization_config: {what} is not supported; {supported}")


def _list(settings: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = settings.get(key) or []
    if not isinstance(value, list):
        raise CheckpointError(f"{where}: {key} is no list")
    return value


def _target(target: Any, where: str) -> str:
    if not isinstance(target, str):
        raise CheckpointError(f"quantization_config: {where} holds what is no string")
    if target.startswith(_PATTERN):
        try:
            if len(target) > MAX_PATTERN:
                raise re.error("too long")
            re.compile(target.removeprefix(_PATTERN))
        except re.error as error:
            raise CheckpointError(f"quantization_config: a pattern in {where} is none ({error})") from error
    return target


def _fits(target: str, module: str) -> bool:
    if target.startswith(_PATTERN):
        return re.match(target.removeprefix(_PATTERN), module) is not None
    return target == module


def _class_of(module: str) -> str:
    """As far as a name tells."""
    last = module.rpartition(".")[2]
    return _CLASSES[any(part in last for part in _EMBEDDINGS)]
