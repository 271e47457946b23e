"""A profile: fitted from measured iterations, stored, loaded, and refused where it does not belong."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from orcaserve.core import ConfigError
from orcaserve.simulation.machine import this_machine
from orcaserve.simulation.profile import (
    MIN_SAMPLES,
    Profile,
    ProfiledCost,
    Sample,
    fit_cost,
    fit_errors,
    load_profile,
    with_pauses,
)
from orcaserve.simulation.shape import Shape, shape_of_sizes

TRUE = ProfiledCost((1, 8, 32, 512), (4e-3, 5e-3, 9e-3, 80e-3), 60e-6, 150e-9, 20e-9)


def _shapes(n: int, rng: random.Random) -> list[Shape]:
    """Batches as servers have them: mostly increments, now and then prompts among them."""
    shapes = []
    for _ in range(n):
        sizes = [(1, rng.randint(1, 900)) for _ in range(rng.randint(1, 32))]
        if rng.random() < 0.4:
            sizes += [(rng.randint(2, 400), 0) for _ in range(rng.randint(1, 3))]
        shapes.append(shape_of_sizes(sizes))
    return shapes


def _samples(n: int, noise: float = 0.0, seed: int = 1) -> list[Sample]:
    rng = random.Random(seed)
    return [Sample(shape, TRUE.seconds(shape) * (1 + noise * rng.gauss(0, 1))) for shape in _shapes(n, rng)]


def _profile() -> Profile:
    return Profile(this_machine(), {"name": "m", "weights": "int8"}, {"threads": 2}, TRUE, {"n_samples": 7}, "2026")


def test_seconds_are_a_line_through_the_knots_and_shares() -> None:
    shape = Shape(n_requests=2, n_tokens=20, n_fed=0, context=1000, products=0, longest_input=1, longest_context=1)
    assert TRUE.seconds(shape) == pytest.approx(7e-3 + 2 * 60e-6 + 1000 * 150e-9)
    assert TRUE.stage_seconds(shape) == (TRUE.seconds(shape),)


@pytest.mark.parametrize(("n_tokens", "expected"), [(1, 4e-3), (8, 5e-3), (512, 80e-3), (992, 80e-3 + 71e-3)])
def test_at_and_beyond_the_knots(n_tokens: int, expected: float) -> None:
    shape = Shape(0, n_tokens, 0, 0, 0, n_tokens, 0)
    assert TRUE.seconds(shape) == pytest.approx(expected)


def test_the_fit_finds_the_cost_that_made_the_samples() -> None:
    cost = fit_cost(_samples(600))
    assert fit_errors(cost, _samples(200, seed=2))["p90_error"] < 0.01


def test_the_fit_bears_noise_and_a_few_interrupted_iterations() -> None:
    samples = _samples(600, noise=0.03)
    samples[::50] = [Sample(sample.shape, sample.seconds * 5) for sample in samples[::50]]
    assert fit_errors(fit_cost(samples), _samples(200, seed=2))["median_error"] < 0.02


def test_pauses_of_both_kinds_are_found() -> None:
    """One iteration in ten takes 10 ms longer, and all take a twentieth longer, which the fit is not to see as cost."""
    rng = random.Random(2)
    samples = [
        Sample(shape, 1.05 * TRUE.seconds(shape) + (0.01 if rng.random() < 0.1 else 0.0))
        for shape in _shapes(4000, rng)
    ]
    found = with_pauses(TRUE, samples)
    expected = TRUE.times(1.05).plus(0.001)
    for shape in _shapes(20, rng):
        assert found.seconds(shape) == pytest.approx(expected.seconds(shape), rel=0.03)
    undisturbed = with_pauses(TRUE, _samples(100))
    assert undisturbed.at_knots == pytest.approx(TRUE.at_knots)
    quicker = [Sample(shape, 0.5 * TRUE.seconds(shape)) for shape in _shapes(100, rng)]
    assert with_pauses(TRUE, quicker) == TRUE


def test_the_fit_gives_no_negative_costs() -> None:
    rng = random.Random(3)
    samples = [Sample(shape, 1e-2 * (1 + rng.random()) / shape.n_requests) for shape in _shapes(200, rng)]
    cost = fit_cost(samples)
    assert min(cost.per_request, cost.per_context, cost.per_product, *cost.at_knots) >= 0
    assert list(cost.at_knots) == sorted(cost.at_knots)


def test_batches_of_one_kind_can_be_fitted() -> None:
    samples = [Sample(shape_of_sizes([(1, 50)]), 4e-3) for _ in range(MIN_SAMPLES)]
    assert fit_cost(samples).seconds(samples[0].shape) == pytest.approx(4e-3)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        fit_cost(_samples(MIN_SAMPLES - 1))


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    _profile().save(path)
    assert load_profile(path) == _profile()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kind": "other"}, "kind"),
        ({"version": 99}, "version"),
        ({"machine": [1]}, "machine"),
        ({"model": None}, "model"),
        ({"cost": 3}, "cost"),
        ({"cost.knots": []}, "cost.knots"),
        ({"cost.knots": [1, 1, 2, 3]}, "cost.knots must ascend"),
        ({"cost.at_knots": [1.0]}, "cost.at_knots"),
        ({"cost.at_knots": [1, 2, 3, float("nan")]}, "cost.at_knots[3]"),
        ({"cost.per_context": -1}, "cost.per_context"),
        ({"cost.per_request": True}, "cost.per_request"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    path = tmp_path / "profile.json"
    _profile().save(path)
    data = json.loads(path.read_text())
    for name, value in change.items():
        part, _, rest = name.partition(".")
        if rest:
            data[part][rest] = value
        else:
            data[part] = value
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError) as caught:
        load_profile(path)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        load_profile(path)


def test_another_machine_or_model_is_named() -> None:
    profile = _profile()
    profile.check_machine(this_machine())
    profile.check_model({"name": "m"})
    with pytest.raises(ConfigError, match=r"machine\.cores"):
        profile.check_machine({**this_machine(), "cores": 999})
    with pytest.raises(ConfigError, match=r"model\.weights is 'int8'"):
        profile.check_model({"name": "m", "weights": "float32"})


def test_a_fit_of_one_batch_size_is_as_good_as_its_samples() -> None:
    """Requests and the least cost cannot be told apart, and the first guess has negative shares: none may be lost."""
    rng = random.Random(4)
    samples = []
    for _ in range(83):
        n = rng.choice([4, 4, 4, 4, 1])
        sizes = [(rng.randint(10, 49) if rng.random() < 0.3 else 1, rng.randint(10, 60)) for _ in range(n)]
        sizes = [(length, 0 if length > 1 else position) for length, position in sizes]
        shape = shape_of_sizes(sizes)
        samples.append(Sample(shape, 0.01 + 0.0001 * shape.n_tokens))
    cost = fit_cost(samples)
    assert max(abs(cost.seconds(sample.shape) / sample.seconds - 1) for sample in samples) < 0.01
