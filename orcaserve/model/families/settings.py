"""Settings: a config.json, read key by key; whatever is missing or of the wrong kind stops the load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

    def with_defaults(self, **defaults: Any) -> Settings:
        """The same with values for the keys that it has not; a null stays one."""
        return Settings({**defaults, **self._values}, self._where)

    def renamed(self, **other_names: str) -> Settings:
        """The same, where a key that it has not may stand under another name: key=name."""
        found = {key: self._values[name] for key, name in other_names.items() if name in self._values}
        return self.with_defaults(**found)

    def without(self, *keys: str) -> Settings:
        """The same less these keys, which somebody else has read."""
        return Settings({key: value for key, value in self._values.items() if key not in keys}, self._where)

    def size(self, key: str, default: int | None = None, least: int = 1, most: int = MAX_SIZE) -> int:
        """A positive integer."""
        value = self._present(key, default)
        if type(value) is not int or not least <= value <= most:
            raise CheckpointError(f"{self._where}: {key} must be an integer from {least} to {most}")
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

    def listed(self, key: str, count: int) -> list[Any] | None:
        """A list of `count` things, or None without it."""
        value = self._values.get(key)
        if value is not None and (not isinstance(value, list) or len(value) != count):
            raise CheckpointError(f"{self._where}: {key} must be a list of {count}")
        return value

    def layers(self, key: str, n_layers: int) -> frozenset[int]:
        """A list of numbers of layers, or nothing."""
        value = self._values.get(key)
        value = [] if value is None else value
        if not isinstance(value, list) or not all(type(i) is int and 0 <= i < n_layers for i in value):
            raise CheckpointError(f"{self._where}: {key} must be a list of integers from 0 to {n_layers - 1}")
        return frozenset(value)

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


def head_size(settings: Settings, heads: int) -> int:
    """Dimensions of a head, from hidden_size where the config has no head_dim."""
    hidden = settings.size("hidden_size")
    if settings.get("head_dim") is None and hidden % heads:
        raise CheckpointError(f"config: hidden_size {hidden} is not a multiple of the {heads} attention heads")
    return settings.size("head_dim", max(hidden // heads, 1))


def layer_windows(settings: Settings, n_layers: int, windowed: Callable[[int], bool] | None = None) -> tuple[int, ...]:
    """ModelSpec.windows of a config with sliding_window.

    windowed: which layers have it where layer_types does not say so; None = all have it, whatever layer_types says.
    """
    if settings.get("sliding_window") is None:
        return ()
    window = settings.size("sliding_window")
    if windowed is None:
        return (window,) * n_layers
    kinds = settings.listed("layer_types", n_layers)
    if kinds is None:
        return tuple(window if windowed(i) else 0 for i in range(n_layers))
    for kind in kinds:
        if kind not in ("sliding_attention", "full_attention"):
            raise UnsupportedModel(f"layer_types: {kind!r} is not supported; full_attention, sliding_attention are")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and SMALLEST <= value <= LARGEST


def rope_spec(settings: Settings, head_dim: int, context_length: int, layers: str | None = None) -> RopeSpec:
    """The rotary positions of a config: rope_parameters (transformers 5), or rope_theta and rope_scaling before it.

    layers: the kind of layers whose positions they are, where rope_parameters has some for each kind.
    Raises UnsupportedModel for a kind that is not known.
    """
    rope = settings.inner("rope_parameters")
    if rope and layers:
        rope = rope.inner(layers)
    rope = rope or settings.inner("rope_scaling") or Settings({})
    theta = rope.maybe_number("rope_theta") or settings.number("rope_theta", 10_000.0)
    kind = rope.text("rope_type", rope.text("type", "default"))
    kind = "longrope" if kind == "su" else kind  # its first name
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
