"""Profile: what iterations cost on a machine that was measured, as a file; and the fit that makes it of measurements.

The cost is a line through points over the number of input tokens (weights are read once for few tokens, arithmetic
grows with many, and what lies between is what the machine makes of it), plus a share for every request, for every
token of context, and for every product of a prompt's attention.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orcaserve.core import ConfigError
from orcaserve.simulation.shape import Shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KIND, VERSION = "orcaserve-profile", 1
KNOTS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192)
MIN_SAMPLES = 20
OUTLIER = 4.0  # samples further off than so many times the middle error are left out of the second fit

Facts = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class ProfiledCost:
    """A fitted cost, of an engine in one process. Times in seconds, and they include whatever the loop does between two
    iterations.

    knots, at_knots: input tokens, ascending, and what an iteration of so many costs at least; linear between two of
    them and beyond the last one (as from the origin, if there is one alone).
    per_request: each request of the batch. per_context: each earlier token that a request with one input token attends
    to. per_product: each pair of a prompt's token and a token it attends to.
    """

    knots: tuple[int, ...]
    at_knots: tuple[float, ...]
    per_request: float
    per_context: float
    per_product: float

    def __post_init__(self) -> None:
        assert len(self.knots) == len(self.at_knots) >= 1
        assert all(a < b for a, b in pairwise(self.knots))

    @property
    def n_workers(self) -> int:
        return 1

    def seconds(self, shape: Shape) -> float:
        return (
            self._of_tokens(shape.n_tokens)
            + self.per_request * shape.n_requests
            + self.per_context * shape.context
            + self.per_product * shape.products
        )

    def stage_seconds(self, shape: Shape) -> Sequence[float]:
        return (self.seconds(shape),)

    def times(self, factor: float) -> ProfiledCost:
        """The cost of a machine that takes so many times as long for everything."""
        shares = (factor * share for share in (self.per_request, self.per_context, self.per_product))
        return ProfiledCost(self.knots, tuple(factor * cost for cost in self.at_knots), *shares)

    def plus(self, seconds: float) -> ProfiledCost:
        """The cost with so much more for each iteration."""
        return replace(self, at_knots=tuple(cost + seconds for cost in self.at_knots))

    def _of_tokens(self, n: int) -> float:
        return sum(share * self.at_knots[i] for i, share in _shares(self.knots, n))


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured iteration. seconds: until the next one could begin."""

    shape: Shape
    seconds: float


@dataclass(frozen=True, slots=True)
class Profile:
    """What `orcaserve profile` measures and stores.

    machine: facts as `this_machine` gives them, and more. model: name, weights, kv_cache_dtype, weight_bytes,
    slot_bytes, context_length at least. engine: threads, max_bs, n_slots, page_size at least.
    fit: n_samples, and median_error and p90_error of the cost against what was measured, as shares.
    """

    machine: Facts
    model: Facts
    engine: Facts
    cost: ProfiledCost
    fit: Facts = field(default_factory=dict)
    made: str = ""

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"kind": KIND, "version": VERSION, **asdict(self)}, indent=1) + "\n")

    def check_machine(self, here: Facts) -> None:
        """Raises ConfigError, naming the fact, if it was measured on another machine than `here`."""
        self._check_same("machine", self.machine, here)

    def check_model(self, wanted: Facts) -> None:
        """Raises ConfigError, naming the fact, if it was measured with another model, or one held otherwise."""
        self._check_same("model", self.model, wanted)

    def _check_same(self, part: str, mine: Facts, other: Facts) -> None:
        for name, value in other.items():
            if name in mine and mine[name] != value:
                raise ConfigError("profile", f"{part}.{name} is {mine[name]!r}, but here it is {value!r}")


def load_profile(path: Path) -> Profile:
    """Raises ConfigError naming the field that is missing or wrong, OSError if the file cannot be read."""
    try:
        data = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError("profile", f"{path.name} is not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise ConfigError("profile", f"{path.name}: kind is not {KIND!r}; `orcaserve profile` writes such files")
    if data.get("version") != VERSION:
        raise ConfigError("profile", f"{path.name}: version is {data.get('version')!r}, and this reads {VERSION}")
    parts = {name: _facts(path, data, name) for name in ("machine", "model", "engine", "fit")}
    return Profile(**parts, cost=_cost(path, data.get("cost")), made=str(data.get("made", "")))


def fit_cost(samples: Sequence[Sample]) -> ProfiledCost:
    """Least squares of relative errors, none of the costs below zero; twice, the second time without outliers.

    Raises ValueError for fewer than MIN_SAMPLES samples.
    """
    if len(samples) < MIN_SAMPLES:
        raise ValueError(f"{len(samples)} iterations are too few for a fit: it takes {MIN_SAMPLES}")
    first = _fit(samples)
    errors = [abs(first.seconds(sample.shape) / sample.seconds - 1) for sample in samples]
    limit = max(OUTLIER * sorted(errors)[len(errors) // 2], 0.02)
    kept = [sample for sample, error in zip(samples, errors, strict=True) if error <= limit]
    return _fit(kept) if MIN_SAMPLES <= len(kept) < len(samples) else first


def with_pauses(cost: ProfiledCost, samples: Sequence[Sample]) -> ProfiledCost:
    """The cost, and what iterations took beyond it on average: a share of their time, and as much for each of them.

    A fit without outliers is of iterations that nothing interrupts, and machines interrupt: some at any time, some
    whenever a thread has to be woken. Both shares are fitted to the samples, none below zero.
    """
    import numpy as np

    costs = np.array([cost.seconds(sample.shape) for sample in samples])
    beyond = np.array([sample.seconds for sample in samples]) / costs - 1
    share, each = _least_squares(np.stack([np.ones_like(costs), 1 / costs], axis=1), beyond)
    return cost.times(1 + float(share)).plus(float(each))


def slowdown(cost: ProfiledCost, samples: Sequence[Sample]) -> float:
    """How many times as long all iterations took together as their costs say."""
    return sum(sample.seconds for sample in samples) / sum(cost.seconds(sample.shape) for sample in samples)


def fit_errors(cost: ProfiledCost, samples: Sequence[Sample]) -> dict[str, int | float]:
    """What `Profile.fit` says: how far the cost is from the samples, as shares of what was measured."""
    errors = sorted(abs(cost.seconds(sample.shape) / sample.seconds - 1) for sample in samples)
    return {
        "n_samples": len(errors),
        "median_error": round(errors[len(errors) // 2], 5),
        "p90_error": round(errors[min(len(errors) * 9 // 10, len(errors) - 1)], 5),
    }


def _fit(samples: Sequence[Sample]) -> ProfiledCost:
    import numpy as np  # here alone: a simulation needs none of it

    knots = _knots_for(sorted({sample.shape.n_tokens for sample in samples}))
    n = len(knots)
    rows = np.zeros((len(samples), n + 3))
    for row, sample in zip(rows, samples, strict=True):
        for i, share in _shares(knots, sample.shape.n_tokens):
            row[: i + 1] += share  # by how much a knot lies above the one before: more tokens never cost less
        row[n:] = sample.shape.n_requests, sample.shape.context, sample.shape.products
        row /= sample.seconds  # relative errors count, not absolute ones
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    solution = _least_squares(rows / scale, np.ones(len(samples))) / scale
    solution[:n] = np.cumsum(solution[:n])
    *at_knots, per_request, per_context, per_product = map(float, solution)
    return ProfiledCost(knots, tuple(at_knots), per_request, per_context, per_product)


def _least_squares(rows: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """rows [m, n], targets [m] -> the solution [n] without negative numbers (Lawson and Hanson's algorithm)."""
    import numpy as np

    n = rows.shape[1]
    x, free = np.zeros(n), np.zeros(n, bool)
    tolerance = 1e-10 * float(np.abs(rows.T @ targets).max())
    for _ in range(10 * n):
        gradient = np.where(free, -np.inf, rows.T @ (targets - rows @ x))
        best = int(gradient.argmax())
        if gradient[best] <= tolerance:
            break
        free[best] = True
        while free.any():
            trial = np.zeros(n)
            trial[free] = np.linalg.lstsq(rows[:, free], targets, rcond=1e-12)[0]
            below = free & (trial <= 0)
            if not below.any():
                x = trial
                break
            step = float((x[below] / np.maximum(x[below] - trial[below], 1e-300)).min())  # until one is 0
            x = np.maximum(x + step * (trial - x), 0)
            free &= ~(below & (x <= 1e-12 * x.max()))
            x[~free] = 0
    return x


def _knots_for(tokens: Sequence[int]) -> tuple[int, ...]:
    """Of KNOTS those that samples of these numbers of tokens (ascending) can say something of, and both ends."""
    low, high = tokens[0], tokens[-1]
    chosen = [low]
    for knot in KNOTS:
        if chosen[-1] < knot < high and any(chosen[-1] < n <= knot for n in tokens):
            chosen.append(knot)
    return tuple(chosen if high == low else [*chosen, high])


def _shares(knots: Sequence[int], n: int) -> list[tuple[int, float]]:
    """By which shares the knots count at n tokens: their sum is the line through them, drawn on beyond the last."""
    if len(knots) == 1:
        return [(0, n / knots[0])]
    if n <= knots[0]:
        return [(0, 1.0)]
    i = min(bisect_right(knots, n), len(knots) - 1)
    share = (n - knots[i - 1]) / (knots[i] - knots[i - 1])
    return [(i - 1, 1 - share), (i, share)]


def _facts(path: Path, data: Mapping[str, Any], name: str) -> Facts:
    facts = data.get(name)
    if not isinstance(facts, dict) or not all(isinstance(value, str | int | float) for value in facts.values()):
        raise ConfigError("profile", f"{path.name}: {name} must be an object of numbers and texts")
    return facts


def _cost(path: Path, data: object) -> ProfiledCost:
    if not isinstance(data, dict):
        raise ConfigError("profile", f"{path.name}: cost must be an object")
    shares = [_number(path, f"cost.{name}", data.get(name)) for name in ("per_request", "per_context", "per_product")]
    knots, at_knots = data.get("knots"), data.get("at_knots")
    if not isinstance(knots, list) or not knots or not all(type(n) is int and n >= 1 for n in knots):
        raise ConfigError("profile", f"{path.name}: cost.knots must list numbers of tokens")
    if any(a >= b for a, b in pairwise(knots)):
        raise ConfigError("profile", f"{path.name}: cost.knots must ascend")
    if not isinstance(at_knots, list) or len(at_knots) != len(knots):
        raise ConfigError("profile", f"{path.name}: cost.at_knots must have one number for each of cost.knots")
    return ProfiledCost(
        tuple(knots), tuple(_number(path, f"cost.at_knots[{i}]", value) for i, value in enumerate(at_knots)), *shares
    )


def _number(path: Path, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ConfigError("profile", f"{path.name}: {name} must be a number of seconds, 0 or more")
    return float(value)
