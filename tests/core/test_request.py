from __future__ import annotations

import pytest

from orcaserve.core import FinishReason, Grammar, Request, SamplingParams

STOP = 2


def request(n_input: int = 3, max_tokens: int = 4, min_tokens: int = 0, stops: bool = True) -> Request:
    params = SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens)
    return Request(1, list(range(n_input)), params, frozenset({STOP}) if stops else frozenset())


def run(request: Request, tokens: list[int]) -> list[FinishReason | None]:
    reasons = []
    for token in tokens:
        request.output.append(token)
        reasons.append(request.finish_reason_after(token))
    return reasons


def test_max_tokens_is_the_papers() -> None:
    assert request(n_input=3, max_tokens=4).max_tokens == 7


def test_iterations_follow_from_the_output() -> None:
    one = request()
    assert (one.n_iterations, one.n_input) == (0, 3)
    one.output.append(9)
    assert (one.n_iterations, one.n_input) == (1, 3)


def test_one_that_was_with_an_engine_before_starts_anew_and_goes_on() -> None:
    one = Request(1, [0, 1, 2], SamplingParams(max_tokens=4, min_tokens=3), frozenset({STOP}), output=[9, STOP])
    assert (one.n_iterations, one.n_carried, one.max_tokens) == (0, 2, 7)
    one.output.append(9)
    assert one.finish_reason_after(9) is None
    assert (one.n_iterations, one.n_carried) == (1, 2)
    one.output.append(8)
    assert one.finish_reason_after(8) is FinishReason.LENGTH
    stopped = Request(1, [0], SamplingParams(max_tokens=4, min_tokens=2), frozenset({STOP}), output=[9, 9])
    assert run(stopped, [STOP]) == [FinishReason.STOP]


def test_a_grammar_may_end_before_min_tokens() -> None:
    params = SamplingParams(max_tokens=9, min_tokens=5)
    assert run(Request(1, [0], params, frozenset({STOP})), [9, STOP]) == [None, None]
    bound = SamplingParams(max_tokens=9, min_tokens=5, grammar=Grammar.regex("a"))
    assert run(Request(1, [0], bound, frozenset({STOP})), [9, STOP]) == [None, FinishReason.STOP]


def test_ends_by_length() -> None:
    assert run(request(max_tokens=1), [9]) == [FinishReason.LENGTH]
    assert run(request(max_tokens=3), [9, 9, 9]) == [None, None, FinishReason.LENGTH]


def test_ends_by_stop_id() -> None:
    assert run(request(), [9, STOP]) == [None, FinishReason.STOP]
    assert run(request(), [STOP]) == [FinishReason.STOP]


def test_stop_wins_over_length_on_the_last_token() -> None:
    assert run(request(max_tokens=2), [9, STOP]) == [None, FinishReason.STOP]


def test_no_stop_ids_no_stop() -> None:
    assert run(request(stops=False), [STOP] * 4) == [None, None, None, FinishReason.LENGTH]


def test_min_tokens_come_before_the_stop_id() -> None:
    """min_tokens of real output, then the stop id may end it: the stop id itself is not among them."""
    assert run(request(min_tokens=2), [STOP, STOP, STOP]) == [None, None, FinishReason.STOP]
    assert run(request(min_tokens=1), [9, STOP]) == [None, FinishReason.STOP]
    assert run(request(max_tokens=2, min_tokens=2), [STOP, STOP]) == [None, FinishReason.LENGTH]


def test_requests_are_equal_by_identity() -> None:
    """Two clients may send the same thing: they stay two requests, and can be in sets."""
    assert request() != request()
    assert len({request(), request()}) == 2


def test_an_empty_prompt_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="at least one input token"):
        request(n_input=0)
