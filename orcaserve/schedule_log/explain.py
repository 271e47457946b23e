"""One request's life in plain words, from a schedule log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median

from orcaserve.core import USUAL, ConfigError, FinishReason, Terms
from orcaserve.schedule_log.format import (
    Arrived,
    Cancelled,
    End,
    Expired,
    HandedOut,
    Known,
    Log,
    Over,
    Piece,
    Refused,
    Returned,
)
from orcaserve.scheduler.policies import Stop

LONG = 1.5  # times the usual, after which an iteration is a delay worth telling
MOST_DELAYS = 3

WHY = {
    Stop.NOBODY_WAITS: "all workers had a batch, or it had only just come",
    Stop.BATCH_FULL: "the batch was full",
    Stop.SLOTS_LACK: "slots were lacking",
    Stop.OTHER_CELL: "others needed another computation",
    Stop.BATCH_FIXED: "a whole batch had to end first",
    Stop.BOUND_REACHED: "the iteration had all the tokens it may have",
}
ENDS = {
    FinishReason.STOP: "with a stop token",
    FinishReason.LENGTH: "with all the tokens it asked for",
    FinishReason.CANCELLED: "because its client left",
    FinishReason.ERROR: "with an error",
}


@dataclass(slots=True)
class Visit:
    """One of its iterations. own: its own initiation, or the piece of one. ended: when the batch was back."""

    batch: HandedOut
    own: Piece | None
    ended: float | None = None

    @property
    def seconds(self) -> float:
        return 0.0 if self.ended is None else self.ended - self.batch.time


@dataclass(slots=True)
class Story:
    """What a log tells of one request. n_before, n_running: who was there when it came, and how many of them had begun.

    under_way: when the batch returned that ran when it came. waits: between two batches that it was not in, seconds and
    why. lacking: most slots that were lacking meanwhile, to whoever was next.
    """

    known: Known
    arrived: float
    n_before: int = 0
    n_running: int = 0
    waits: list[tuple[Stop, float]] = field(default_factory=list)
    lacking: int = 0
    visits: list[Visit] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    cancelled: float | None = None
    expired: bool = False
    end: End | None = None
    ended: float | None = None

    @property
    def first_visit(self) -> float | None:
        return self.visits[0].batch.time if self.visits else None

    @property
    def first_token(self) -> float | None:
        return next((v.ended for v in self.visits if v.own is None or not v.own.n_to_come), None)


def tell(log: Log, request_id: int) -> str:
    """Raises ConfigError if the log does not know the request."""
    for event in log.events:
        if isinstance(event, Refused) and event.id == request_id:
            return f"request {request_id} was refused {_moment(log, event.time)}: {event.why}"
    story = _story(log, request_id)
    lines = [f"request {request_id} in {log.name} ({_settings(log)})", ""]
    lines += [f"{name:<12} {text}" for name, text in _chapters(log, story)]
    return "\n".join(lines)


def overview(log: Log, most: int) -> str:
    """The requests that took longest for each of their tokens, one a line."""
    stories = {event.request.id: Story(event.request, event.time) for event in log.events if isinstance(event, Arrived)}
    begun: dict[int, float] = {}
    for event in log.events:
        if isinstance(event, HandedOut):
            for piece in event.initiations:
                begun.setdefault(piece.id, event.time)
        elif isinstance(event, Returned | Cancelled | Expired | Over):
            for end in event.ends:
                if end.id in stories:
                    stories[end.id].end, stories[end.id].ended = end, event.time
    rows = []
    for story in stories.values():
        if story.end is not None and story.ended is not None:
            total = story.ended - story.arrived
            waited = begun.get(story.known.id, story.ended) - story.arrived
            rows.append((total / max(story.end.n_output, 1), total, waited, story))
    rows.sort(key=lambda row: -row[0])
    lines = [
        f"{'request':>8} {'arrived s':>10} {'input':>6} {'output':>6} {'waited s':>9} {'total s':>9} {'ms/token':>9}"
    ]
    for per_token, total, waited, story in rows[:most]:
        assert story.end is not None
        lines.append(
            f"{story.known.id:>8} {story.arrived:>10.3f} {story.known.n_input:>6} {story.end.n_output:>6} "
            f"{waited:>9.3f} {total:>9.3f} {per_token * 1e3:>9.1f}"
        )
    return "\n".join(lines)


def _story(log: Log, request_id: int) -> Story:
    live = {known.id for known, _ in log.live}
    begun = {known.id for known, n_output in log.live if n_output > known.carried}
    story: Story | None = None
    open_visits: dict[int, Visit] = {}
    since: tuple[float, Stop] | None = None  # it waits since then, because of this
    for event in log.events:
        match event:
            case Arrived(time, known):
                if known.id == request_id:
                    story = Story(known, time, len(live), len(live & begun))
                    since = time, Stop.NOBODY_WAITS
                live.add(known.id)
            case HandedOut():
                begun.update(event.ids)
                if story is None or story.end is not None:
                    continue
                if since is not None:
                    story.waits.append((since[1], max(event.time - since[0], 0.0)))
                if request_id in event.preempted:
                    story.preempted.append(event.number)
                if request_id in event.ids:
                    own = next((piece for piece in event.initiations if piece.id == request_id), None)
                    visit = open_visits[event.number] = Visit(event, own)
                    story.visits.append(visit)
                    since = None
                elif not story.visits:
                    since = event.time, event.stop
                    story.lacking = max(story.lacking, event.n_lacking)
            case Returned(time, number):
                if number in open_visits:
                    open_visits[number].ended = time
            case Cancelled(time, cancelled_id) if story is not None and cancelled_id == request_id:
                story.cancelled = time
            case _:
                pass
        for end in event.ends if isinstance(event, Returned | Cancelled | Expired | Over) else ():
            live.discard(end.id)
            if story is not None and end.id == request_id:
                story.end, story.ended = end, event.time
                story.expired = isinstance(event, Expired)
    if story is None:
        raise ConfigError("REQUEST", _who_is_there(log, request_id))
    return story


def _who_is_there(log: Log, request_id: int) -> str:
    ids = [event.request.id for event in log.events if isinstance(event, Arrived)]
    if any(known.id == request_id for known, _ in log.live):
        return f"{request_id} came before what is left of {log.name} begins"
    return f"{request_id} is not in {log.name}, " + (
        f"which knows requests {min(ids)} to {max(ids)}" if ids else "which knows no request"
    )


def _chapters(log: Log, story: Story) -> Iterator[tuple[str, str]]:
    known = story.known
    carried = f", {known.carried} of which an earlier engine has put out" if known.carried else ""
    before = f"{story.n_before} requests were there, {story.n_running} of them had begun"
    wanted = f"for at most {known.asked:,} output tokens" if known.asked else "which were only to be read"
    yield (
        "arrived",
        f"{_moment(log, story.arrived)}, with {known.n_input:,} input tokens, {wanted}{carried}; "
        f"{before if story.n_before else 'nobody else was there'}",
    )
    if known.terms != USUAL:
        yield "terms", ", ".join(_terms(known.terms))
    yield from _waiting(story)
    yield from _begin(story)
    yield from _tokens(story)
    for number in story.preempted:
        again = next((v for v in story.visits if v.batch.number >= number and v.own is not None), None)
        anew = f", and started anew in iteration {again.batch.number}, with {again.own.n_tokens:,} tokens" if (
            again is not None and again.own is not None
        ) else ""  # fmt: skip
        whose = "one in the foreground" if known.terms.background else "an earlier request"
        yield "preempted", f"before iteration {number}, because {whose} needed its slots{anew}"
    yield from _ending(story)


def _terms(terms: Terms) -> Iterator[str]:
    if terms.client:
        yield f"of client {terms.client}" + (f", whose weight is {terms.weight:g}" if terms.weight != 1 else "")
    elif terms.weight != 1:
        yield f"weight {terms.weight:g}"
    if terms.priority:
        yield f"priority {terms.priority}"
    if terms.background:
        yield "in the background"
    if terms.first_token is not None:
        yield f"its first token was due after {_span(terms.first_token)}"
    if terms.timeout is not None:
        yield f"its end was due after {_span(terms.timeout)}"


def _waiting(story: Story) -> Iterator[tuple[str, str]]:
    until = story.first_visit if story.first_visit is not None else story.ended
    if until is None:
        yield "waited", "to the end of the log, without a first iteration"
        return
    counts = Counter(why for why, _ in story.waits)
    seconds = {why: sum(s for w, s in story.waits if w is why) for why in counts}
    parts = []
    for why, n in counts.items():
        if seconds[why] > 0:
            lacking = f" (up to {story.lacking:,} for the next one)" if why is Stop.SLOTS_LACK else ""
            times = f" through {_count(n, 'iteration')}" if why is not Stop.NOBODY_WAITS else ""
            parts.append(f"{_span(seconds[why])}{times} because {WHY[why]}{lacking}")
    yield (
        "waited",
        f"{_span(until - story.arrived)} for its first iteration" + (": " if parts else "") + "; ".join(parts),
    )


def _begin(story: Story) -> Iterator[tuple[str, str]]:
    pieces = [visit for visit in story.visits if visit.own is not None]
    if not pieces:
        return
    first = pieces[0]
    assert first.own is not None
    others = [piece for piece in first.batch.initiations if piece is not first.own]
    beside = [_count(len(first.batch.ids) - len(others) - 1, "increment")]
    if others:
        beside.append(f"the initiation of {_requests(others)}")
    cached = f" ({first.own.n_cached:,} more were there already)" if first.own.n_cached else ""
    tokens = _count(first.own.n_tokens, "token") + cached
    text = f"iteration {first.batch.number}, {tokens}, beside {' and '.join(beside)}"
    if first.own.n_to_come:
        text += f"; {first.own.n_to_come:,} more tokens came in later iterations"
    if first.ended is not None:
        text += f"; it took {_span(first.seconds)}"
    yield "initiation", text


def _tokens(story: Story) -> Iterator[tuple[str, str]]:
    if (first := story.first_token) is None or not story.known.asked:
        return
    yield "first token", f"{_span(first - story.arrived)} after its arrival"
    n_output = story.end.n_output - story.known.carried if story.end is not None else len(story.visits)
    giving = [v for v in story.visits if v.ended is not None and (v.own is None or not v.own.n_to_come)][:n_output]
    gaps = [b.ended - a.ended for a, b in pairwise(giving) if a.ended is not None and b.ended is not None]
    if gaps:
        yield "tokens", f"{len(giving)}; usually {_span(median(gaps))} between two, at most {_span(max(gaps))}"
    yield from _delays(story, giving[1:])
    more = len(story.visits) - len(giving) - sum(1 for v in story.visits if v.own is not None and v.own.n_to_come)
    if story.end is not None and more > 0:
        yield "held back", f"through {_count(more, 'more iteration')}, until all of its batch had ended"


def _delays(story: Story, visits: Sequence[Visit]) -> Iterator[tuple[str, str]]:
    """Iterations that took long because others began in them."""
    plain = [visit.seconds for visit in visits if not visit.batch.initiations]
    usual = median(plain) if plain else min((visit.seconds for visit in visits), default=0.0)
    long = [v for v in visits if v.own is None and v.batch.initiations and v.seconds > LONG * usual]
    if not long:
        return
    extra = sum(visit.seconds - usual for visit in long)
    them = "it" if len(long) == 1 else "them"
    yield (
        "delays",
        f"{_span(extra)} in {_count(len(long), 'iteration')} that took longer because others began in {them}",
    )
    for visit in sorted(long, key=lambda visit: -visit.seconds)[:MOST_DELAYS]:
        who = _requests(sorted(visit.batch.initiations, key=lambda piece: -piece.n_tokens))
        yield "", f"iteration {visit.batch.number}: {_span(visit.seconds)} instead of {_span(usual)}, with {who}"


def _ending(story: Story) -> Iterator[tuple[str, str]]:
    if story.cancelled is not None:
        yield "cancelled", f"{_span(story.cancelled - story.arrived)} after its arrival"
    if story.end is None or story.ended is None:
        yield "ended", "not before the log ends"
        return
    total, n = story.ended - story.arrived, story.end.n_output - story.known.carried
    each = f", {_span(total / n)} for each of its {n} tokens" if n else ", without a token"
    how = "because its deadline had passed" if story.expired else ENDS[story.end.why]
    yield "ended", f"{_span(total)} after its arrival, {how}{each}"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def _requests(pieces: Sequence[Piece]) -> str:
    shown = [f"request {piece.id} ({piece.n_tokens:,} tokens)" for piece in pieces[:MOST_DELAYS]]
    rest = len(pieces) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _settings(log: Log) -> str:
    settings = log.settings
    return f"{settings.model}, {settings.policy}, max_bs {settings.max_bs}, {settings.n_slots:,} slots"


def _moment(log: Log, time: float) -> str:
    clock = datetime.fromtimestamp(log.start + time, UTC).strftime("%H:%M:%S.%f")[:-3]
    return f"at {clock} UTC, {_span(time)} after the start"


def _span(seconds: float) -> str:
    if abs(seconds) < 0.0995:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.2f} s" if abs(seconds) < 99.5 else f"{seconds:,.0f} s"
