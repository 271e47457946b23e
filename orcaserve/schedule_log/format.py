"""What stands in a schedule log. JSON, one line each; the first line is the header, all others are lists.

    {"kind":"orcaserve-schedule","version":1,"run":"...","part":1,"start":1796083200.1,"settings":{...}}
    ["a", t, id, input, asked, carried, may_stop, terms] a request has arrived; from `carried` on 0 may be left out
    ["x", t, id, why]                                    it was refused
    ["c", t, id, ends]                                   a client has left
    ["d", t, ends]                                       deadlines have passed
    ["b", t, n, increments, initiations, reserved, used, stop, lacking, preempted]      batch n goes to the engine
    ["r", t, n, took, ends, failing]                     batch n is back
    ["z", t, ends]                                       the engine has ended

t: microseconds since the run's `start` (seconds of the wall clock). took: microseconds of the device.
increments: request ids in order of arrival, as runs: "3-9 12"; "=" is everybody of the batch that returned last but
those who ended with it. initiations: [id, tokens], or [id, tokens, to come] for a piece of one.
reserved, used: slots once the batch was chosen. stop: why nobody else is in it, a value of Stop; lacking: slots that
the next one would have needed. preempted: ids. ends: [id, why, output tokens].
terms: an object of what selection may look at, as far as it is not usual: "client" (a number, for names may be those of
keys; 0: none), "weight", "priority", "background", "timeout" and "first_token" (seconds).
Whatever is 0 or empty at the end of a line is left out.

With settings.prefix_caching a "b" line may end with an object. "cached": [[id, tokens, blocks, copied], ...] are
requests that begin with the keys and values of others: so many tokens, in the pages of these blocks (as runs), and what
is more than those was copied from block `copied`. "kept": [[id, first, n, twin], ...] are requests whose next n pages
become the blocks `first` and those that follow; the page after them holds what block `twin` holds. Tokens are in no
log: which texts begin alike is told by the numbers of blocks. settings.shareable: longer texts share nothing.

With settings.sources the model has an encoder, which reads all input tokens of a request but the last.
settings.window: nobody looks further back, and slots before that are returned; null: they are kept.

Lines stand in the order in which the scheduler was asked,
which is what a replay repeats; only the time of "a" may lie before that of the line above.

A further part of a run begins with a header too, which says how things stood: "live": [[id, input, asked, carried,
may_stop, output tokens, terms], ...]; "in_flight": [[n, ids], ...]; "last": what "=" means.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orcaserve.core import USUAL, FinishReason, Terms
from orcaserve.scheduler.policies import Stop

KIND, VERSION = "orcaserve-schedule", 1
SAME = "="


@dataclass(frozen=True, slots=True)
class Settings:
    """What the scheduler was made of, and the model's name. A log without the last ones is of a scheduler without."""

    policy: str
    max_bs: int
    n_slots: int
    page_size: int
    n_workers: int
    longest: int
    microbatch_size: int | None = None
    shortest_first: bool = True
    model: str = ""
    fairness: str = "none"
    batched_tokens: int | None = None
    target_itl: float | None = None
    prefix_caching: bool = False
    shareable: int | None = None
    sources: bool = False
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """A request by its sizes. asked: the most tokens that it may generate; carried: of those, put out before this run.

    may_stop: something may end it earlier. With asked 0 its prompt is read, and that is all. terms: the client is a
    number, as text.
    """

    id: int
    n_input: int
    asked: int
    carried: int = 0
    may_stop: bool = False
    terms: Terms = USUAL


@dataclass(frozen=True, slots=True)
class End:
    """n_output: all of its output tokens, those carried included."""

    id: int
    why: FinishReason
    n_output: int


@dataclass(frozen=True, slots=True)
class Arrived:
    time: float
    request: Known


@dataclass(frozen=True, slots=True)
class Refused:
    time: float
    id: int
    why: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    time: float
    id: int
    ends: Sequence[End] = ()


@dataclass(frozen=True, slots=True)
class Expired:
    time: float
    ends: Sequence[End] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """An initiation, or a part of one: input tokens, and how many later iterations bring.

    n_cached: tokens before them whose keys and values others had made.
    """

    id: int
    n_tokens: int
    n_to_come: int = 0
    n_cached: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """What a request began with: n_cached tokens, in the pages of blocks, and, if they are more, copied from one."""

    id: int
    n_cached: int
    blocks: Sequence[int]
    copied: int = 0


@dataclass(frozen=True, slots=True)
class Filled:
    """The request's next n pages have become blocks, from `first` on. twin: see core.batch.Kept."""

    id: int
    first: int
    n: int
    twin: int = 0


@dataclass(frozen=True, slots=True)
class HandedOut:
    """ids: all requests of the batch, increments before initiations; initiations: those that are no increments."""

    time: float
    number: int
    ids: Sequence[int]
    initiations: Sequence[Piece]
    n_reserved: int
    n_used: int
    stop: Stop
    n_lacking: int = 0
    preempted: Sequence[int] = ()
    taken: Sequence[Taken] = ()
    filled: Sequence[Filled] = ()

    @property
    def n_tokens(self) -> int:
        return len(self.ids) - len(self.initiations) + sum(piece.n_tokens for piece in self.initiations)


@dataclass(frozen=True, slots=True)
class Returned:
    """took: seconds of the device. failing: ids whose token meant nothing."""

    time: float
    number: int
    took: float
    ends: Sequence[End] = ()
    failing: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Over:
    time: float
    ends: Sequence[End] = ()


Event = Arrived | Refused | Cancelled | Expired | HandedOut | Returned | Over


@dataclass(frozen=True, slots=True)
class Log:
    """A run, as far as it was kept. Times of events: seconds since `start`, which is seconds of the wall clock.

    live: who was there already when the oldest part that was kept begins, with their output tokens then.
    whole: it begins with the run. cut: the last line is incomplete, and left out.
    """

    name: str
    start: float
    settings: Settings
    events: Sequence[Event]
    live: Sequence[tuple[Known, int]] = ()
    whole: bool = True
    cut: bool = False


def as_runs(ids: Iterable[int]) -> str:
    """[3, 4, 5, 9] -> "3-5 9"."""
    parts: list[str] = []
    first = last = -2
    for i in ids:
        if i == last + 1:
            last = i
            continue
        if first >= 0:
            parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = i
    if first >= 0:
        parts.append(str(first) if first == last else f"{first}-{last}")
    return " ".join(parts)


def from_runs(text: str) -> list[int]:
    """Raises ValueError."""
    ids: list[int] = []
    for part in text.split():
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(part)
        low, high = int(first), int(last or first)
        if high < low or high - low > MOST_IN_A_RUN:
            raise ValueError(part)
        ids.extend(range(low, high + 1))
    return ids


MOST_IN_A_RUN = 1_000_000  # a damaged line must not fill the memory
