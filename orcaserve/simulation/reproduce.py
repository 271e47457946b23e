"""Reproducing a schedule log: the scheduler is asked again what it was asked, and must answer the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orcaserve.core import Batch, FinishReason, IterationResult, Phase, Request, SamplingParams
from orcaserve.schedule_log.format import (
    Arrived,
    Cancelled,
    End,
    Event,
    Expired,
    HandedOut,
    Known,
    Log,
    Over,
    Piece,
    Returned,
    Settings,
)
from orcaserve.scheduler.policies import PolicySettings, make_policy
from orcaserve.scheduler.scheduler import Scheduler
from orcaserve.simulation.recorded_texts import RecordedPrefixes, RecordedTexts

STOP = 1  # the token that ends a request early; all others are 0


@dataclass(frozen=True, slots=True)
class Reproduction:
    """n_same: batches that came out as recorded, in order. difference: what the first other one is, or None.

    n_left_out: requests that were there before the log begins, or came while they were.
    """

    n_same: int
    difference: str | None
    n_left_out: int = 0


def reproduce(log: Log) -> Reproduction:
    """Drive a new scheduler with the log's settings through the log's events, in their order."""
    events, n_left_out = _from_rest(log)
    settings = log.settings
    ends = {end.id: end for event in events for end in _ends_of(event)}
    policy = make_policy(settings.policy, policy_settings(settings))
    if policy.holds_back:  # who has ended, but was not told so before the log ends, is not known
        last = max((i for i, event in enumerate(events) if _ends_of(event)), default=-1)
        events = events[: last + 1]
    prefixes = RecordedPrefixes(settings.page_size, settings.shareable) if settings.prefix_caching else None
    if prefixes is not None and not log.whole:  # what was kept from before it begins is not known
        return Reproduction(0, None, n_left_out)
    scheduler = Scheduler(
        settings.n_slots,
        settings.max_bs,
        settings.n_workers,
        settings.page_size,
        policy,
        prefixes,
        settings.window,
        settings.sources,
    )
    texts = RecordedTexts(events, settings.page_size) if prefixes is not None else None
    requests: dict[int, Request] = {}
    in_flight: dict[int, Batch] = {}
    first = next((event.number for event in events if isinstance(event, HandedOut)), 1)
    n_same = 0
    for event in events:
        match event:
            case Arrived(time, known):
                requests[known.id] = _request(known, texts)
                scheduler.add(requests[known.id], time)
            case Cancelled(_, request_id):
                scheduler.cancel(request_id)
            case HandedOut(time):
                if prefixes is not None:
                    prefixes.taken = {taken.id: taken for taken in event.taken}
                batch = scheduler.next_batch(time)
                if (difference := _difference(event, batch)) is not None or batch is None:
                    return Reproduction(n_same, difference, n_left_out)
                in_flight[event.number] = batch
                n_same += 1
            case Expired(_, ended):  # a clock decided that, and no schedule
                for end in ended:
                    scheduler.cancel(end.id)
            case Returned(_, number, took, ended, failing):
                batch = in_flight.pop(number)
                tokens = [
                    _token(requests[entry.request_id], ends.get(entry.request_id), texts) for entry in batch.entries
                ]
                for end in ended:  # what it has computed is good, and stays for others
                    if end.why is FinishReason.ERROR and end.id not in failing:
                        scheduler.cancel(end.id)
                failures = dict.fromkeys(failing, "failed")
                scheduler.complete(IterationResult(number - first + 1, tokens, failures, took))
            case Over():
                break
    return Reproduction(n_same, None, n_left_out)


def policy_settings(settings: Settings) -> PolicySettings:
    """What the log's policy was made of."""
    return PolicySettings(
        settings.n_workers,
        settings.longest,
        settings.microbatch_size,
        settings.shortest_first,
        fairness=settings.fairness,
        batched_tokens=settings.batched_tokens,
        target_itl=settings.target_itl,
        whole=settings.sources,
    )


def _from_rest(log: Log) -> tuple[Sequence[Event], int]:
    """The events from where nobody was live, and how many requests that leaves out. Of a whole log: all.

    With a target, none of one that has lost its beginning: decisions rest on all iterations before them.
    """
    live = {known.id for known, _ in log.live}
    if log.settings.target_itl is not None and not log.whole:
        return (), len(live) + sum(isinstance(event, Arrived) for event in log.events)
    n_left_out = len(live)
    for i, event in enumerate(log.events):
        if not live:
            return log.events[i:], n_left_out
        if isinstance(event, Arrived):
            live.add(event.request.id)
            n_left_out += 1
        live.difference_update(end.id for end in _ends_of(event))
    return (), n_left_out


def _ends_of(event: Event) -> Sequence[End]:
    return event.ends if isinstance(event, Returned | Cancelled | Expired | Over) else ()


def _request(known: Known, texts: RecordedTexts | None) -> Request:
    stops = frozenset({STOP})
    if texts is None:
        params, output = SamplingParams(max_tokens=known.asked), [0] * known.carried
        return Request(known.id, range(known.n_input), params, stops, terms=known.terms, output=output)
    # Who has taken nothing had no chance to, or takes nothing on principle, as those who ask for log-probabilities.
    params = SamplingParams(max_tokens=known.asked, prompt_logprobs=None if known.id in texts.takers else 0)
    text = texts.text(known.id, known.n_input + known.carried)
    prompt, output = text[: known.n_input], text[known.n_input :]
    return Request(known.id, prompt, params, stops, terms=known.terms, output=output)


def _token(request: Request, end: End | None, texts: RecordedTexts | None) -> int:
    if end is not None and end.why is FinishReason.STOP and len(request.output) + 1 == end.n_output:
        return STOP
    return 0 if texts is None else texts.token(request.id, request.n_input + len(request.output))


def _difference(event: HandedOut, batch: Batch | None) -> str | None:
    """What is other than recorded, in words, or None."""
    where = f"iteration {event.number}"
    if batch is None:
        return f"{where}: nobody could be chosen, and {len(event.ids)} requests were"
    ids = {entry.request_id for entry in batch.entries}
    if ids != set(event.ids):
        more, less = sorted(ids - set(event.ids)), sorted(set(event.ids) - ids)
        return f"{where}: with {more or 'nobody'} more and {less or 'nobody'} less than recorded"
    pieces = [
        Piece(entry.request_id, len(entry.tokens), entry.n_to_come, len(entry.prefix.tokens) if entry.prefix else 0)
        for entry in batch.entries
        if entry.phase is Phase.INITIATION
    ]
    if pieces != list(event.initiations):
        return f"{where}: other initiations than recorded"
    return None
