"""Reading a schedule log: its parts as one run, every line checked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from orcaserve.core import USUAL, ConfigError, FinishReason, InvalidRequest, Terms
from orcaserve.core.window import LEAST_WINDOW, window_for
from orcaserve.schedule_log.format import (
    KIND,
    SAME,
    VERSION,
    Arrived,
    Cancelled,
    End,
    Event,
    Expired,
    Filled,
    HandedOut,
    Known,
    Log,
    Over,
    Piece,
    Refused,
    Returned,
    Settings,
    Taken,
    from_runs,
)
from orcaserve.schedule_log.rotating_file import part_path
from orcaserve.scheduler.policies import ORDERS, POLICIES, Stop

MOST_PARTS = 1000

_T = TypeVar("_T")


def read_log(path: Path) -> Log:
    """The run that `path` belongs to, with all older parts beside it. Raises ConfigError naming file, line and field;
    OSError if it cannot be read."""
    parts = [_Part(path)]
    while parts[0].number > 1 and len(parts) < MOST_PARTS:
        older = part_path(path, len(parts))
        if not older.exists() or not (part := _Part(older)).precedes(parts[0]):
            break
        parts.insert(0, part)
    first = parts[0]
    state = _State(first)
    events: list[Event] = []
    for part in parts:
        events += part.events(state)
        if part.cut and part is not parts[-1]:
            raise ConfigError(str(part.path), f"line {part.n_lines}: is cut short, and another part follows")
    live = tuple((_known(first, 1, row), row[5]) for row in first.live)
    return Log(path.name, first.start, first.settings, events, live, first.number == 1, parts[-1].cut)


class _Part:
    """One file. cut: its last line has no end; it is left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_bytes()
        self._lines = text.split(b"\n")
        last = self._lines.pop()
        self.cut, self.n_lines = bool(last), len(self._lines) + bool(last)
        if not self._lines:
            raise ConfigError(str(path), "line 1: is no header: the file is empty or cut short")
        header = self.json(1, self._lines[0])
        if not isinstance(header, dict) or header.get("kind") != KIND:
            raise self.error(1, "kind", f"is not {KIND!r}: this is no schedule log")
        if header.get("version") != VERSION:
            raise self.error(1, "version", f"is {header.get('version')!r}, and this reads {VERSION}")
        self.run = str(header.get("run"))
        self.number = self.whole(1, "part", header.get("part"), least=1)
        start = header.get("start")
        if isinstance(start, bool) or not isinstance(start, int | float):
            raise self.error(1, "start", "must be seconds of the wall clock")
        self.start = float(start)
        self.settings = self._settings(header.get("settings"))
        self.live = self._live(header.get("live", []))
        self.in_flight = self._in_flight(header.get("in_flight", []))
        self.last = self._ids(header.get("last", []), "last")

    def precedes(self, other: _Part) -> bool:
        return self.run == other.run and self.number + 1 == other.number

    def events(self, state: _State) -> Iterator[Event]:
        for number, line in enumerate(self._lines[1:], 2):
            fields = self.json(number, line)
            if not isinstance(fields, list) or not fields or fields[0] not in _READERS:
                raise self.error(number, "field 1", f"must be one of {', '.join(_READERS)}")
            yield _READERS[fields[0]](_Line(self, number, fields), state)

    def json(self, number: int, line: bytes) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            raise ConfigError(str(self.path), f"line {number}: is not JSON: {error}") from error

    def error(self, line: int, name: str, what: str) -> ConfigError:
        return ConfigError(str(self.path), f"line {line}: {name} {what}")

    def whole(self, line: int, name: str, value: object, least: int = 0) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(line, name, f"must be a whole number, {least} or more")
        return value

    def _settings(self, found: object) -> Settings:
        if not isinstance(found, dict):
            raise self.error(1, "settings", "must be an object")
        if found.get("policy") not in POLICIES:
            raise self.error(1, "settings.policy", f"must be one of {', '.join(POLICIES)}")
        sizes = {
            name: self.whole(1, f"settings.{name}", found.get(name), 1)
            for name in ("max_bs", "n_slots", "page_size", "n_workers", "longest")
        }
        size = found.get("microbatch_size")
        if size is not None:
            size = self.whole(1, "settings.microbatch_size", size, 1)
        shortest_first = found.get("shortest_first", True)
        if not isinstance(shortest_first, bool):
            raise self.error(1, "settings.shortest_first", "must be true or false")
        fairness = found.get("fairness", "none")
        if fairness not in ORDERS:
            raise self.error(1, "settings.fairness", f"must be one of {', '.join(ORDERS)}")
        tokens = found.get("batched_tokens")
        if tokens is not None:
            tokens = self.whole(1, "settings.batched_tokens", tokens, sizes["max_bs"])
        seconds = found.get("target_itl")
        if seconds is not None and not (type(seconds) in (int, float) and 0 < seconds < math.inf):
            raise self.error(1, "settings.target_itl", "must be seconds, more than 0")
        prefix_caching, shareable = found.get("prefix_caching", False), found.get("shareable")
        if not isinstance(prefix_caching, bool):
            raise self.error(1, "settings.prefix_caching", "must be true or false")
        sources = found.get("sources", False)
        if not isinstance(sources, bool):
            raise self.error(1, "settings.sources", "must be true or false")
        if shareable is not None:
            shareable = self.whole(1, "settings.shareable", shareable)
        window = found.get("window")
        if window is not None:
            window = self.whole(1, "settings.window", window, LEAST_WINDOW)
            if window_for(window, sizes["n_slots"], sizes["page_size"]) is None:
                raise self.error(1, "settings.window", "does not fit into the K/V region")
        return Settings(
            found["policy"], **sizes, microbatch_size=size, shortest_first=shortest_first,
            model=str(found.get("model", "")), fairness=fairness, batched_tokens=tokens, target_itl=seconds,
            prefix_caching=prefix_caching, shareable=shareable, window=window, sources=sources,
        )  # fmt: skip

    def _ids(self, value: object, name: str) -> list[int]:
        if not isinstance(value, list) or not all(type(n) is int for n in value):
            raise self.error(1, name, "must hold ids of requests")
        return value

    def _in_flight(self, value: object) -> dict[int, list[int]]:
        batches: dict[int, list[int]] = {}
        for row in value if isinstance(value, list) else [None]:
            if not isinstance(row, list) or len(row) != 2 or type(row[0]) is not int:
                raise self.error(1, "in_flight", "must hold lists of an iteration and ids")
            batches[row[0]] = self._ids(row[1], "in_flight")
        return batches

    def _live(self, value: object) -> list[list[Any]]:
        """[id, input, asked, carried, may_stop, output tokens, terms] each; terms may be left out."""
        if not isinstance(value, list):
            raise self.error(1, "live", "must be a list")
        for row in value:
            if (
                not isinstance(row, list)
                or len(row) not in (6, 7)
                or not all(type(n) is int and n >= 0 for n in row[:6])
            ):
                raise self.error(1, "live", "must hold lists of 6 whole numbers, and maybe an object")
        return value


class _State:
    """What a line is checked against, and what it leaves out."""

    def __init__(self, first: _Part) -> None:
        self.live = {row[0] for row in first.live}
        self.in_flight: dict[int, Sequence[int]] = dict(first.in_flight)
        self.last: Sequence[int] = first.last
        self.n_batches: int | None = None  # not known where a run does not begin

    def end(self, ends: Sequence[End]) -> None:
        self.live.difference_update(end.id for end in ends)


class _Line:
    """The fields of one line, from 1; what is left out at its end is 0 or empty."""

    def __init__(self, part: _Part, number: int, fields: list[Any]) -> None:
        self._part, self._number, self._fields = part, number, fields

    def error(self, field: int, name: str, what: str) -> ConfigError:
        return self._part.error(self._number, f"field {field} ({name})", what)

    def get(self, field: int, default: object = None) -> Any:
        return self._fields[field - 1] if len(self._fields) >= field else default

    def whole(self, field: int, name: str, least: int = 0, default: object = None) -> int:
        value = self.get(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(field, name, f"must be a whole number, {least} or more")
        return value

    def time(self) -> float:
        value = self.get(2)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(2, "time", "must be microseconds since the start")
        return value / 1e6

    def live(self, field: int, name: str, request_id: object, state: _State) -> int:
        if type(request_id) is not int or request_id not in state.live:
            raise self.error(field, name, f"names request {request_id!r}, which is not there")
        return request_id

    def ends(self, field: int, state: _State) -> tuple[End, ...]:
        ends = []
        for end in self.listed(field, "ends"):
            if not isinstance(end, list) or len(end) != 3 or type(end[2]) is not int or end[2] < 0:
                raise self.error(field, "ends", "must hold lists of an id, a reason and a number of tokens")
            try:
                reason = FinishReason(end[1])
            except ValueError:
                raise self.error(field, "ends", f"must not hold the reason {end[1]!r}") from None
            ends.append(End(self.live(field, "ends", end[0], state), reason, end[2]))
        state.end(ends)
        return tuple(ends)

    def listed(self, field: int, name: str) -> list[Any]:
        value = self.get(field, [])
        if not isinstance(value, list):
            raise self.error(field, name, "must be a list")
        return value

    def members(self) -> dict[str, Any]:
        """Of the object that the line ends with, if it does; it is no field any more."""
        return self._fields.pop() if self._fields and isinstance(self._fields[-1], dict) else {}

    def rows(self, members: dict[str, Any], name: str, kinds: tuple[type, ...]) -> Iterator[list[Any]]:
        """Of a member of the object: lists of such values, the first of which is an id."""
        found = members.get(name, [])
        for row in found if isinstance(found, list) else [None]:
            if (
                not isinstance(row, list)
                or [type(value) for value in row] != list(kinds)
                or any(type(value) is int and value < 0 for value in row)
            ):
                raise self.error(len(self._fields) + 1, name, f"must hold lists of {len(kinds)} values")
            yield row

    def length(self, most: int) -> None:
        if len(self._fields) > most:
            raise self.error(most + 1, "beyond the last", "must not be there")


def _known(part: _Part, line: int, row: Sequence[Any]) -> Known:
    if row[1] < 1 or (row[3] and row[3] >= row[2]):
        raise part.error(line, "live", "holds a request of impossible sizes")
    try:
        terms = _terms(row[6] if len(row) > 6 else None)
    except ValueError as error:
        raise part.error(line, "live", f"holds terms that {error}") from None
    return Known(row[0], row[1], row[2], row[3], bool(row[4]), terms)


def _terms(found: object) -> Terms:
    """Raises ValueError."""
    if found is None:
        return USUAL
    if not isinstance(found, dict) or not found.keys() <= _TERMS.keys():
        raise ValueError(f"must be an object of {', '.join(_TERMS)}")
    for name, value in found.items():
        if type(value) not in _TERMS[name]:
            raise ValueError(f"have a wrong {name}")
    client = found.get("client", 0)
    try:
        return Terms(**{**found, "client": str(client) if client else ""})
    except InvalidRequest as error:
        raise ValueError(f"are wrong: {error.message}") from None


_TERMS: dict[str, tuple[type, ...]] = {
    "client": (int,),
    "weight": (int, float),
    "priority": (int,),
    "background": (bool,),
    "timeout": (int, float),
    "first_token": (int, float),
}


def _arrived(line: _Line, state: _State) -> Event:
    line.length(8)
    try:
        terms = _terms(line.get(8))
    except ValueError as error:
        raise line.error(8, "terms", str(error)) from None
    request_id = line.whole(3, "id")
    if request_id in state.live:
        raise line.error(3, "id", f"names request {request_id}, which is there already")
    known = Known(
        request_id,
        line.whole(4, "input", 1),
        line.whole(5, "asked"),
        line.whole(6, "carried", 0, 0),
        bool(line.whole(7, "may_stop", 0, 0)),
        terms,
    )
    if known.carried and known.carried >= known.asked:
        raise line.error(6, "carried", "must be less than was asked for")
    state.live.add(request_id)
    return Arrived(line.time(), known)


def _refused(line: _Line, state: _State) -> Event:
    line.length(4)
    why = line.get(4)
    if not isinstance(why, str):
        raise line.error(4, "why", "must be a text")
    return Refused(line.time(), line.whole(3, "id"), why)


def _cancelled(line: _Line, state: _State) -> Event:
    line.length(4)
    return Cancelled(line.time(), line.whole(3, "id"), line.ends(4, state))


def _expired(line: _Line, state: _State) -> Event:
    line.length(3)
    return Expired(line.time(), line.ends(3, state))


def _handed_out(line: _Line, state: _State) -> Event:
    members = line.members()
    line.length(10)
    number = line.whole(3, "iteration", 1)
    if state.n_batches is not None and number != state.n_batches + 1:
        raise line.error(3, "iteration", f"is {number}, and {state.n_batches + 1} is due: a line is missing")
    state.n_batches = number
    runs = line.get(4)
    try:
        increments = list(state.last) if runs == SAME else from_runs(runs)
    except (ValueError, AttributeError):
        raise line.error(4, "increments", f"{runs!r} is no list of ids such as '3-9 12'") from None
    taken = _taken(line, members)
    n_cached = {each.id: each.n_cached for each in taken}
    initiations = []
    for piece in line.listed(5, "initiations"):
        if (
            not isinstance(piece, list)
            or len(piece) not in (2, 3)
            or not all(type(n) is int and n > 0 for n in piece[1:])
        ):
            raise line.error(5, "initiations", "must hold lists of an id and a number of tokens")
        request_id = line.live(5, "initiations", piece[0], state)
        n_to_come = piece[2] if len(piece) == 3 else 0
        initiations.append(Piece(request_id, piece[1], n_to_come, n_cached.pop(request_id, 0)))
    ids = [line.live(4, "increments", request_id, state) for request_id in increments]
    ids += [piece.id for piece in initiations]
    if not ids or len(set(ids)) < len(ids):
        raise line.error(4, "increments", "and initiations must be of one request each, and of one at least")
    try:
        stop = Stop(line.get(8, Stop.NOBODY_WAITS.value))
    except ValueError:
        raise line.error(8, "stop", f"{line.get(8)!r} is no reason") from None
    preempted = tuple(line.live(10, "preempted", request_id, state) for request_id in line.listed(10, "preempted"))
    filled = tuple(Filled(*row) for row in line.rows(members, "kept", (int, int, int, int)))
    if n_cached or not {each.id for each in filled} <= set(ids):
        raise line.error(11, "cached or kept", "names a request that does not begin in this batch, or is not in it")
    state.in_flight[number] = ids
    sizes = line.whole(6, "reserved"), line.whole(7, "used"), stop, line.whole(9, "lacking", 0, 0)
    return HandedOut(line.time(), number, tuple(ids), tuple(initiations), *sizes, preempted, taken, filled)


def _taken(line: _Line, members: dict[str, Any]) -> tuple[Taken, ...]:
    taken = []
    for request_id, n, runs, copied in line.rows(members, "cached", (int, int, str, int)):
        try:
            taken.append(Taken(request_id, n, from_runs(runs), copied))
        except ValueError:
            raise line.error(11, "cached", f"{runs!r} is no list of blocks such as '3-9 12'") from None
    return tuple(taken)


def _returned(line: _Line, state: _State) -> Event:
    line.length(6)
    number = line.whole(3, "iteration", 1)
    ids = state.in_flight.pop(number, None)
    if ids is None:
        raise line.error(3, "iteration", f"{number} is not in flight")
    ends = line.ends(5, state)
    failing = tuple(line.listed(6, "failing"))
    state.last = [request_id for request_id in ids if request_id in state.live]
    return Returned(line.time(), number, line.whole(4, "took") / 1e6, ends, failing)


def _over(line: _Line, state: _State) -> Event:
    line.length(3)
    return Over(line.time(), line.ends(3, state))


_READERS: dict[str, Callable[[_Line, _State], Event]] = {
    "a": _arrived,
    "x": _refused,
    "c": _cancelled,
    "d": _expired,
    "b": _handed_out,
    "r": _returned,
    "z": _over,
}
