from __future__ import annotations

from orcaserve.core import CannotFit, EngineFacts, InvalidRequest, OrcaServeError


def test_longest_request_is_bounded_by_context_and_by_slots() -> None:
    def longest(context_length: int, n_slots: int) -> int:
        return EngineFacts("m", 10, context_length, n_slots, max_bs=4, n_workers=1).longest_request

    assert longest(context_length=100, n_slots=64) == 64
    assert longest(context_length=50, n_slots=64) == 50


def test_with_windows_only_the_context_bounds_it() -> None:
    assert EngineFacts("m", 10, 100, 64, max_bs=4, n_workers=1, window=20).longest_request == 100


def test_cannot_fit_is_an_invalid_request_with_openais_code() -> None:
    error = CannotFit("max_tokens", "too long")
    assert isinstance(error, InvalidRequest) and isinstance(error, OrcaServeError)
    assert (error.code, error.status, error.field, str(error)) == (
        "context_length_exceeded", 400, "max_tokens", "too long",
    )  # fmt: skip
