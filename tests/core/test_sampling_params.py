"""Every field is a closed interval of the right type; whatever is outside is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core import InvalidRequest, SamplingParams

# field, least, most; both are allowed
INTEGERS = [
    ("max_tokens", 0, 2**31 - 1),
    ("min_tokens", 0, 16),  # at most max_tokens, whose default is 16
    ("top_k", -1, 2**31 - 1),
    ("n", 1, 128),
    ("seed", -(2**63), 2**63 - 1),
]
NUMBERS = [
    ("temperature", 0.0, 2.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", 0.01, 10.0),
]
FLAGS = ["ignore_eos", "include_stop_str_in_output", "skip_special_tokens"]


def refused(field: str, value: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        SamplingParams(**{field: value})
    assert refusal.value.field == field and field in refusal.value.message
    assert refusal.value.status == 400
    return refusal.value


def test_defaults_are_openais() -> None:
    params = SamplingParams()
    assert (params.max_tokens, params.temperature, params.top_p, params.n, params.seed) == (16, 1.0, 1.0, 1, None)
    assert (params.stop, params.logit_bias, params.stop_token_ids) == ((), {}, frozenset())
    assert not params.greedy


@pytest.mark.parametrize(("field", "least", "most"), INTEGERS)
def test_integers(field: str, least: int, most: int) -> None:
    for value in (least, most):
        assert getattr(SamplingParams(**{field: value}), field) == value  # type: ignore[arg-type]
    for value in (least - 1, most + 1, 10**400):
        message = refused(field, value).message
        assert f"from {least} to {most}" in message and str(value) not in message.split()
    wrong: list[Any] = [1.0, "1", True, math.nan, [1], *([] if field == "seed" else [None])]
    for value in wrong:
        assert refused(field, value).code == "invalid_type"


@pytest.mark.parametrize(("field", "least", "most"), NUMBERS)
def test_numbers(field: str, least: float, most: float) -> None:
    for value in (least, most, 1):
        assert getattr(SamplingParams(**{field: value}), field) == value  # type: ignore[arg-type]
    too_much: list[float] = [math.nextafter(least, -math.inf), math.nextafter(most, math.inf)]
    for value in [*too_much, math.nan, math.inf, -math.inf, 10**400]:
        assert refused(field, value).code == "invalid_value"
    wrong: list[Any] = ["1", True, None, [0.5], 1j]
    for value in wrong:
        assert refused(field, value).code == "invalid_type"


@pytest.mark.parametrize("field", FLAGS)
def test_flags(field: str) -> None:
    assert getattr(SamplingParams(**{field: True}), field) is True  # type: ignore[arg-type]
    for value in (0, 1, "true", None):
        assert refused(field, value).code == "invalid_type"


def test_stop_takes_what_users_pass() -> None:
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]
    assert SamplingParams(stop=None).stop == ()  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]
    assert SamplingParams(stop=("x" * 1024,) * 4).stop == ("x" * 1024,) * 4


@pytest.mark.parametrize("value", ["", [""], ["a"] * 5, ["x" * 1025], [1], [None], [["a"]], 1, b"stop"])
def test_bad_stops(value: Any) -> None:
    refused("stop", value)


def test_stop_token_ids() -> None:
    assert SamplingParams(stop_token_ids=[3, 3, 5]).stop_token_ids == {3, 5}  # type: ignore[arg-type]
    assert len(SamplingParams(stop_token_ids=frozenset(range(1024))).stop_token_ids) == 1024
    bad: list[Any] = [[-1], [2**31], [1.0], [True], ["1"], [None], [[1]], 5, "5", b"5", None, range(1025)]
    for value in bad:
        refused("stop_token_ids", value)


def test_logit_bias() -> None:
    mine = {1: -100, 2: 100.0}
    params = SamplingParams(logit_bias=mine)
    mine[3] = math.nan
    assert params.logit_bias == {1: -100, 2: 100.0}  # checked, and its own since
    assert len(SamplingParams(logit_bias=dict.fromkeys(range(1024), 0.5)).logit_bias) == 1024
    bad: list[Any] = [
        *({1: value} for value in (-100.1, 100.1, math.nan, math.inf, True, "1", None)),
        *({key: 1.0} for key in (-1, 2**31, "1", 1.0, True)),
        dict.fromkeys(range(1025), 0.0),
        [(1, 1.0)],
        None,
    ]
    for value in bad:
        refused("logit_bias", value)


def test_ids_are_checked_against_the_vocabulary() -> None:
    SamplingParams(logit_bias={9: 1.0}, stop_token_ids=frozenset({9})).check_vocabulary(10)
    for field, value in (("logit_bias", {10: 1.0}), ("stop_token_ids", frozenset({10}))):
        with pytest.raises(InvalidRequest, match=r"outside 0\.\.9") as refusal:
            SamplingParams(**{field: value}).check_vocabulary(10)  # type: ignore[arg-type]
        assert refusal.value.field == field


def test_min_tokens_is_bounded_by_max_tokens() -> None:
    assert SamplingParams(max_tokens=5, min_tokens=5).min_tokens == 5
    with pytest.raises(InvalidRequest) as refusal:
        SamplingParams(max_tokens=5, min_tokens=6)
    assert refusal.value.field == "min_tokens"


def test_greedy_is_the_limit_of_temperature_to_zero() -> None:
    assert SamplingParams(temperature=0).greedy
    assert SamplingParams(temperature=9e-5).greedy
    assert not SamplingParams(temperature=1e-4).greedy


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([field for field, *_ in INTEGERS + NUMBERS] + FLAGS + ["stop", "stop_token_ids"]), json_values)
def test_nothing_but_invalid_request_comes_out(field: str, value: Any) -> None:
    """Whatever JSON holds is accepted or refused by name."""
    try:
        params = SamplingParams(**{field: value})
    except InvalidRequest as refusal:
        assert refusal.field == field
    else:
        assert all(math.isfinite(getattr(params, name)) for name, *_ in NUMBERS)
