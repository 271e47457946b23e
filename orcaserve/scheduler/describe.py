"""All live requests in words for an operator: what each does, what it holds, and why it waits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from orcaserve.core import Batch, LiveRequest, LiveRequests, LiveState, Phase, Request
from orcaserve.core.watching import MOST_DESCRIBED
from orcaserve.scheduler.policies import Selection
from orcaserve.scheduler.request_pool import RequestPool
from orcaserve.scheduler.slot_ledger import SlotLedger

# By the values of Stop. One that is not here is told by its name.
_WHY = {
    "none": "it has only just come, or all batches are in flight: the next one is chosen when one returns",
    "full": "the batch is full (max_bs {max_bs:,})",
    "tokens": "the iteration has as many tokens as it may have",
    "cell": "others need another computation first",
    "fixed": "a whole batch has to end first",
}


def describe_live(
    pool: RequestPool,
    ledger: SlotLedger,
    selection: Selection,
    turn: Request | None,
    in_flight: Sequence[Batch],
    max_bs: int,
    now: float,
) -> LiveRequests:
    """selection: of the batch that was handed out last. turn: who is admitted next. now: on the clock of arrivals.

    Of more than MOST_DESCRIBED those that hold slots are told, and then the earliest of all others.
    """
    phases = {entry.request_id: entry.phase for batch in in_flight for entry in batch.entries}
    why = _why(selection, ledger, max_bs)
    told, n_before = [], 0  # n_before: of those who wait
    for request in _chosen(pool, ledger):
        holds = request.id in ledger
        if (phase := phases.get(request.id)) is not None:
            state = LiveState.INITIATION if phase is Phase.INITIATION else LiveState.INCREMENT
            reason = ""
        elif request.ending is not None:
            state, reason = LiveState.PAUSED, "it has ended, and is answered when all of its batch have"
        elif holds:
            state, reason = LiveState.PAUSED, why
        else:
            state, reason = LiveState.WAITING, _waits(why, n_before, request, turn)
            n_before += 1
        told.append(
            LiveRequest(
                request.id,
                state,
                max(now - request.arrival, 0.0),
                request.n_input,
                len(request.output),
                ledger.reserved_by(request.id) if holds else 0,
                ledger.held_by(request.id) if holds else 0,
                reason,
            )
        )
    return LiveRequests(told, len(pool) - len(told))


def _chosen(pool: RequestPool, ledger: SlotLedger) -> list[Request]:
    """In order of arrival."""
    if len(pool) <= MOST_DESCRIBED:
        return list(pool)
    holding = list(islice((r for r in pool if r.id in ledger), MOST_DESCRIBED))
    others = islice((r for r in pool if r.id not in ledger), MOST_DESCRIBED - len(holding))
    chosen = {r.id for r in (*holding, *others)}
    return [request for request in pool if request.id in chosen]


def _why(selection: Selection, ledger: SlotLedger, max_bs: int) -> str:
    """Why nobody else is in the batch that was chosen last."""
    if selection.stop.value == "slots":
        free = ledger.n_slots - ledger.n_reserved
        return f"the next one needs {free + selection.n_lacking:,} slots and {free:,} are free"
    if (known := _WHY.get(selection.stop.value)) is not None:
        return known.format(max_bs=max_bs)
    return f"the batch was closed: {selection.stop.name.lower().replace('_', ' ')}"


def _waits(why: str, n_before: int, request: Request, turn: Request | None) -> str:
    again = "it lost its slots to another one and starts anew; " if request.n_iterations else ""
    if request is turn:
        return again + why.replace("the next one needs", "it needs")
    if not n_before:  # of another priority, client or kind
        return f"{again}another one comes first; {why}"
    return f"{again}{n_before:,} {'request' if n_before == 1 else 'requests'} came before it; {why}"
