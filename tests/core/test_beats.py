"""Who stands still, by what workers say of themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core.beats import IN_TIME, Beat, Standstills, period

N = 5


def say(standstills: Standstills, n: int, **beats: Beat) -> dict[str, str]:
    """Everybody says the same n times; who is blamed, and how."""
    blamed: dict[str, str] = {}
    for _ in range(n):
        for name, beat in beats.items():
            if words := standstills.take(name, beat):
                blamed[name] = words
    return blamed


def test_who_computes_without_getting_on() -> None:
    stuck, waiting = Beat(True, 3, 70), Beat(True, 3, 12, "s0r0")
    standstills = Standstills(("s0r0", "s1r0"), N)
    assert say(standstills, N, s0r0=stuck, s1r0=waiting) == {}
    blamed = say(standstills, 1, s0r0=stuck, s1r0=waiting)
    assert list(blamed) == ["s0r0"] and "hangs" in blamed["s0r0"]


def test_who_moves_is_not_blamed_however_long_it_takes_and_who_waits_for_it_is_not() -> None:
    standstills = Standstills(("s0r0", "s1r0"), N)
    for n in range(100):
        assert standstills.take("s0r0", Beat(True, 0, n // N)) is None
        assert standstills.take("s1r0", Beat(True, 0, 0, "s0r0")) is None


def test_nobody_has_anything_to_do() -> None:
    standstills = Standstills(("s0r0", "s1r0"), N)
    assert say(standstills, 100, s0r0=Beat(n_run=7), s1r0=Beat(n_run=7)) == {}


def test_numbers_are_lost_on_their_way() -> None:
    standstills = Standstills(("s0r0", "s1r0"), N)
    blamed = say(standstills, N + 1, s0r0=Beat(False, 4), s1r0=Beat(True, 3, 12, "s0r0"))
    assert list(blamed) == ["s1r0"] and blamed["s1r0"].startswith("waits for s0r0, and no worker computes")


@given(st.lists(st.builds(Beat, st.booleans(), st.integers(0, 1), st.integers(0, 1), st.sampled_from(["", "b"]))))
def test_one_alone_is_blamed_exactly_if_it_is_busy_and_its_last_beats_are_all_the_same(beats: list[Beat]) -> None:
    standstills = Standstills(("a",), N)
    for n, beat in enumerate(beats, 1):
        same = n > N and len(set(beats[n - N - 1 : n])) == 1
        blamed = standstills.take("a", beat) is not None
        assert not blamed or beat.busy
        if same and beat.busy:
            assert blamed


def test_beats_come_often_enough_for_both_limits() -> None:
    assert period(30) == 30 / IN_TIME
    assert period(30, 1) == 0.25
    for device, worker in ((30.0, 30.0), (2.0, 3.0), (30.0, 1.0), (7.0, 2.9)):
        n = Standstills.within(("a",), device, worker)._n_beats
        assert n >= IN_TIME and abs(n * period(device, worker) - device) <= period(device, worker)
