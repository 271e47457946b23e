from __future__ import annotations

from orcaserve.serving.observing.life import Life


def test_the_parts_of_a_life_make_the_whole() -> None:
    life = Life(10.0, 10.5, begun=12.0, first_token=15.0, last_token=19.0, ended=19.0, reason="stop")
    assert (life.waited, life.initiation, life.increments) == (2.0, 3.0, 4.0)


def test_what_has_not_happened_took_no_time() -> None:
    life = Life(10.0, 10.5)
    assert life.waited is life.initiation is life.increments is None
    life.begun = 11.0
    assert life.waited == 1.0 and life.initiation is None
