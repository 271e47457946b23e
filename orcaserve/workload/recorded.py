"""Recorded traces: CSV files of arrival times and lengths, such as those of Azure."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from orcaserve.core.errors import ConfigError
from orcaserve.workload.arrival import Arrival

TIME, INPUT, OUTPUT = COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOST_TOKENS = 10**7  # of one request: a longer one is a mistake in the file
MOST_SECONDS = 1e11  # some three thousand years
BUNDLED = {f"azure-{kind}": Path(__file__).parent / "traces" / f"azure-2023-{kind}.csv.gz" for kind in ("conv", "code")}


class _Instant(NamedTuple):
    """written: in which of the ways that a time may be written; within a file all must be written alike."""

    seconds: float
    written: str


def read_trace(path: Path) -> list[Arrival]:
    """A CSV file, gzipped if its name ends with .gz. Its first line names the columns, of which three count.

    TIMESTAMP: ISO 8601, or seconds; never going back. ContextTokens, GeneratedTokens: 1 or more. The last line may lack
    its end. Times are counted from the first arrival. Raises ConfigError naming line and field.
    """
    arrivals: list[Arrival] = []
    first = before = None
    for line, row in _rows(path):
        now = _time(path, line, row[TIME])
        first, before = first or now, before or now
        if now.written != first.written:
            raise _error(path, line, TIME, f"is {now.written}, and the first one is {first.written}")
        if now.seconds < before.seconds:
            raise _error(path, line, TIME, "lies before the line above; lines must be in order of time")
        before = now
        n_input, n_output = (_tokens(path, line, name, row[name]) for name in (INPUT, OUTPUT))
        arrivals.append(Arrival(now.seconds - first.seconds, n_input, n_output))
    if not arrivals:
        raise ConfigError(str(path), "holds no request")
    return arrivals


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Line numbers, from 1, and what stands there in the three columns; empty lines are passed over."""
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    try:
        heading = [name.strip() for name in next(reader, [])]
        for name in COLUMNS:
            if heading.count(name) != 1:
                how = "has no column" if name not in heading else "has twice the column"
                raise ConfigError(f"{path}, line 1", f"{how} {name}; a trace has the columns {', '.join(COLUMNS)}")
        places = {name: heading.index(name) for name in COLUMNS}
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(heading):
                what = f"has {len(cells)} fields, and the heading names {len(heading)}"
                raise ConfigError(f"{path}, line {reader.line_num}", what)
            yield reader.line_num, {name: cells[place].strip() for name, place in places.items()}
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num}", f"is no line of a CSV file: {error}") from error


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error
    try:
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (EOFError, OSError, zlib.error) as error:
        raise ConfigError(str(path), f"is no whole gzip file: {error}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}", "is not text in UTF-8") from error


def _time(path: Path, line: int, text: str) -> _Instant:
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        if not abs(seconds) <= MOST_SECONDS:
            raise _error(path, line, TIME, f"must be at most {MOST_SECONDS:g} seconds, and is {text[:40]}")
        return _Instant(seconds, "a number of seconds")
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        raise _error(path, line, TIME, f"is neither a date with time nor a number of seconds: {text[:40]!r}") from error
    if date.tzinfo is None:
        return _Instant(date.replace(tzinfo=UTC).timestamp(), "a date without a time zone")
    return _Instant(date.timestamp(), "a date with a time zone")


def _tokens(path: Path, line: int, name: str, text: str) -> int:
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20):
        raise _error(path, line, name, f"is no whole number: {text[:40]!r}")
    value = int(text)
    if not 1 <= value <= MOST_TOKENS:
        raise _error(path, line, name, f"must be from 1 to {MOST_TOKENS}, and is {value}")
    return value


def _error(path: Path, line: int, name: str, message: str) -> ConfigError:
    return ConfigError(f"{path}, line {line}, {name}", message)
