"""Settings: a config.json, read key by key; whatever is missing or of the wrong kind stops the load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orcaserve.core.errors import CheckpointError, UnsupportedModel
from orcaserve.model.spec import RopeSpec

MAX_SIZE = 1 << 24
SMALLEST, LARGEST = 1e-12, 1e12  # numbers outside would overflow in float32 arithmetic


class Settings:
    """A config under the key names of transformers. Every getter raises CheckpointError naming the key."""

    def __init__(self, values: Mapping[str, Any], where: str = "config") -> None:
        self._values, self._where = values, where

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def size(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self._present(key, default)
        if type(value) is not int or not 0 < value <= MAX_SIZE:
            raise CheckpointError(f"{self._where}: {key} must be an integer from 1 to {MAX_SIZE}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._present(key, default)
        if not _is_number(value):
            raise CheckpointError(f"{self._where}: {key} must be a number from {SMALLEST:g} to {LARGEST:g}")
        return float(value)

    def maybe_number(self, key: str) -> float | None:
        return None if self._values.get(key) is None else self.number(key)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of `count` positive numbers."""
        value = self._present(key, None)
        if not isinstance(value, list) or len(value) != count:
            raise CheckpointError(f"{self._where}: {key} must be a list of {count} numbers")
        if not all(map(_is_number, value)):
            raise CheckpointError(f"{self._where}: {key} must hold numbers from {SMALLEST:g} to {LARGEST:g}")
        return tuple(map(float, value))

    def flag(self, key: str, default: bool) -> bool:
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"{self._where}: {key} must be true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._present(key, default)
        if not isinstance(value, str):
            raise CheckpointError(f"{self._where}: {key} must be a string")
        return value

    def inner(self, key: str) -> Settings | None:
        """The settings nested under `key`, or None without them."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise CheckpointError(f"{self._where}: {key} must be an object")
        return Settings(value, f"{self._where}: {key}")

    def error(self, what: str) -> CheckpointError:
        """What is wrong with these settings, for whoever finds it."""
        return CheckpointError(f"{self._where}: {what}")

    def refuse(self, key: str, *allowed: Any) -> None:
        """Raise UnsupportedModel if `key` is set to something other than null and the `allowed` values."""
        value = self._values.get(key)
        if value is not None and value not in allowed:
            raise UnsupportedModel(f"{self._where}: {key} is set, which is not supported")

    def _present(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"{self._where}: {key} is missing")
        return value


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and SMALLEST <= value <= LARGEST


def rope_spec(settings: Settings, head_dim: int, context_length: int) -> RopeSpec:
    """The rotary positions of a config: rope_parameters (transformers 5), or rope_theta and rope_scaling before it.

    Raises UnsupportedModel for a kind that is not known.
    """
    rope = settings.inner("rope_parameters") or settings.inner("rope_scaling") or Settings({})
    theta = rope.maybe_number("rope_theta") or settings.number("rope_theta", 10_000.0)
    kind = rope.text("rope_type", rope.text("type", "default"))
    share = rope.maybe_number("partial_rotary_factor") or settings.number("partial_rotary_factor", 1.0)
    if share > 1:
        raise CheckpointError("partial_rotary_factor must be at most 1")
    dim = head_dim if kind == "proportional" else int(head_dim * share)
    if dim % 2 or dim == 0:
        raise CheckpointError(f"rotary positions need an even number of dimensions, a head has {dim}")
    scaled = kind in ("llama3", "yarn", "longrope")
    trained = settings if settings.get("original_max_position_embeddings") else rope
    trained_length = trained.size("original_max_position_embeddings", context_length) if scaled else context_length
    reader = _KINDS.get(kind)
    if reader is None:
        raise UnsupportedModel(f"rope kind {kind!r} is not supported; {', '.join(_KINDS)} are")
    options = reader(rope, dim, share, context_length / trained_length)
    return RopeSpec(dim, head_dim, trained_length, kind, theta, **options)


def _yarn(rope: Settings, dim: int, share: float, stretch: float) -> dict[str, Any]:
    return {
        "factor": rope.number("factor", stretch),
        "amplitude": rope.maybe_number("attention_factor"),
        "amplitude_multiplier": rope.number("attention_multiplier", 1.0),
        "beta_fast": rope.number("beta_fast", 32.0),
        "beta_slow": rope.number("beta_slow", 1.0),
        "truncate": rope.flag("truncate", True),
        "mscale": rope.maybe_number("mscale"),
        "mscale_all_dim": rope.maybe_number("mscale_all_dim"),
    }


def _longrope(rope: Settings, dim: int, share: float, stretch: float) -> dict[str, Any]:
    return {
        "factor": rope.number("factor", stretch),
        "amplitude": rope.maybe_number("attention_factor"),
        "short_factors": rope.numbers("short_factor", dim // 2),
        "long_factors": rope.numbers("long_factor", dim // 2),
    }


def _llama3(rope: Settings, dim: int, share: float, stretch: float) -> dict[str, Any]:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if not low < high:
        raise CheckpointError("rope: low_freq_factor must be less than high_freq_factor")
    return {"factor": rope.number("factor"), "low_freq_factor": low, "high_freq_factor": high}


_KINDS = {
    "default": lambda rope, dim, share, stretch: {},
    "linear": lambda rope, dim, share, stretch: {"factor": rope.number("factor")},
    "dynamic": lambda rope, dim, share, stretch: {"factor": rope.number("factor")},
    "proportional": lambda rope, dim, share, stretch: {"factor": rope.number("factor", 1.0), "turned_share": share},
    "divisors": lambda rope, dim, share, stretch: {
        "factor": rope.number("factor", 1.0),
        "short_factors": rope.numbers("divisors", dim // 2),
    },
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}
