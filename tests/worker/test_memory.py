"""The size of the K/V region."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.config import KVConfig
from orcaserve.core import ConfigError
from orcaserve.worker.memory import choose_n_slots

GIB = 2**30


def test_the_three_ways_to_say_it() -> None:
    assert choose_n_slots(KVConfig(n_slots=100), 1000, GIB, 10) == 96, "whole pages"
    assert choose_n_slots(KVConfig(memory_bytes=100_000), 1000, GIB, 10) == 96
    assert choose_n_slots(KVConfig(), 1024, 4 * 2**20, 10**9) == 1024, "a quarter of what is free"
    assert choose_n_slots(KVConfig(), 1024, GIB, 100) == 112, "no more than requests could fill"
    assert choose_n_slots(KVConfig(), 1024, 4 * 2**20, 10**9, 4) == 256, "replicas share that quarter"
    assert choose_n_slots(KVConfig(n_slots=100), 1000, GIB, 10, 4) == 96, "what is set holds for each"


@given(
    page=st.integers(1, 64),
    slot_bytes=st.integers(1, 10**6),
    available=st.integers(0, 10**12),
    most_useful=st.integers(1, 10**7),
    n_slots=st.none() | st.integers(64, 10**7),
)
def test_whole_pages_that_fit_or_a_refusal(
    page: int, slot_bytes: int, available: int, most_useful: int, n_slots: int | None
) -> None:
    try:
        chosen = choose_n_slots(KVConfig(n_slots, page_size=page), slot_bytes, available, most_useful)
    except ConfigError:
        assert (n_slots or page) // page * page * slot_bytes > available
        return
    assert chosen >= page and chosen % page == 0
    assert chosen * slot_bytes <= available
    if n_slots is None:
        assert chosen <= most_useful + page - 1 or chosen == page
    else:
        assert n_slots - page < chosen <= n_slots


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (KVConfig(n_slots=2**21), "--n-slots: 2097152 slots of 1024 bytes need 2,048.0 MiB .* 1,024.0 MiB"),
        (KVConfig(memory_bytes=2 * GIB), "--kv-cache-memory-bytes: 2097152 slots .* need 2,048.0 MiB"),
        (KVConfig(memory_bytes=16 * 1024 - 1), "at least 16384 bytes, for one page of 16 tokens"),
    ],
)
def test_refusals_give_the_numbers(config: KVConfig, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        choose_n_slots(config, 1024, GIB, 100)


def test_no_memory_for_a_single_page() -> None:
    with pytest.raises(ConfigError, match="--n-slots"):
        choose_n_slots(KVConfig(), 1024, 1000, 100)
