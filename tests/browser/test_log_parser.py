"""The page's reader of schedule logs against logs of the real recorder, and against our own reader of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from server_process import Serve

from orcaserve.schedule_log.format import Arrived, Cancelled, Event, HandedOut, Log, Over, Refused, Returned
from orcaserve.schedule_log.reader import read_log

PARSE = """async (lines) => {
  const { LogParser } = await import("/web/schedule_log.js");
  const parser = new LogParser();
  return lines.map((line) => parser.parse(line));
}"""
FEED = """async ([lines, capacity]) => {
  const { LogParser } = await import("/web/schedule_log.js");
  const { History } = await import("/web/history.js");
  const parser = new LogParser();
  const history = new History(capacity);
  for (const line of lines) {
    const event = parser.parse(line);
    if (event !== null) history.add(event);
  }
  const lives = [...history.lives.values()];
  return {
    first: history.first, next: history.next, live: [...history.live], waiting: history.nWaiting,
    lives: lives.map((l) => [l.id, l.why, l.output, l.begun, l.to, l.lane]),
    lanes: history.lanes.map((lane) => lane.map((l) => [l.from, l.to])),
  };
}"""


def recorded(start: Callable[..., Serve], path: Path, *flags: str) -> Serve:
    """A server that writes a log, after some load with clients that leave, stopped again."""
    serve = start("--schedule-log", str(path), *flags)

    def one(i: int) -> None:
        if i % 7 == 3:
            with serve.http.stream(
                "POST", "/v1/completions",
                json={"model": serve.model, "prompt": "x" * i, "max_tokens": 3000, "ignore_eos": True, "stream": True},
            ) as answer:  # fmt: skip
                next(answer.iter_lines())
            return
        serve.complete("x" * (1 + 13 * i % 170), max_tokens=5 + i % 60)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(60)))
    assert serve.stop() == 0
    return serve


def as_page(event: Event) -> dict[str, Any]:
    """An event of our reader as the page's has it."""
    ends = [{"id": e.id, "why": e.why.value, "output": e.n_output} for e in getattr(event, "ends", ())]
    match event:
        case Arrived(time, known):
            sizes = {"input": known.n_input, "asked": known.asked, "carried": known.carried, "mayStop": known.may_stop}
            return {"kind": "arrived", "time": time, "id": known.id, **sizes}
        case Refused(time, request_id, why):
            return {"kind": "refused", "time": time, "id": request_id, "why": why}
        case Cancelled(time, request_id):
            return {"kind": "cancelled", "time": time, "id": request_id, "ends": ends}
        case HandedOut():
            pieces = [
                {"id": p.id, "tokens": p.n_tokens, "toCome": p.n_to_come, "cached": getattr(p, "n_cached", 0)}
                for p in event.initiations
            ]
            begun = {p.id for p in event.initiations}
            return {
                "kind": "batch", "time": event.time, "number": event.number, "pieces": pieces,
                "increments": [i for i in event.ids if i not in begun], "reserved": event.n_reserved,
                "used": event.n_used, "stop": event.stop.value, "lacking": event.n_lacking,
                "preempted": list(event.preempted),
            }  # fmt: skip
        case Returned(time, number, took, _, failing):
            return {
                "kind": "returned",
                "time": time,
                "number": number,
                "took": took,
                "ends": ends,
                "failing": list(failing),
            }
        case Over(time):
            return {"kind": "over", "time": time, "ends": ends}


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


@pytest.mark.parametrize("flags", [("-np", "3"), ("-np", "5", "--scheduling-policy", "overcommit", "--n-slots", "4096"),
                                   ("-np", "4", "--scheduling-policy", "request-level")])  # fmt: skip
def test_the_page_reads_what_our_reader_reads(
    page: Any, start: Callable[..., Serve], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    path = tmp_path / "run.log"
    recorded(start, path, *flags)
    log = read_log(path)
    header, *found = page.evaluate(PARSE, lines_of(path))
    assert header["settings"]["max_bs"] == int(flags[1]) and header["live"] == []
    for event in found:
        event.get("increments", []).sort()
        event.pop("terms", None)
    wanted = [as_page(event) for event in log.events]
    for event in wanted:
        event.get("increments", []).sort()
    assert found == wanted
    check_history(page, log, lines_of(path))


def check_history(page: Any, log: Log, lines: list[str]) -> None:
    """Every request, with how it ended; nobody shares a row with somebody else at the same time."""
    history = page.evaluate(FEED, [lines, 100_000])
    ends = {e.id: e for event in log.events if not isinstance(event, Arrived | HandedOut | Refused) for e in event.ends}
    assert {row[0]: (row[1], row[2]) for row in history["lives"]} == {
        i: (e.why.value, e.n_output) for i, e in ends.items()
    }
    assert history["live"] == [] and history["waiting"] == 0
    assert history["next"] == sum(isinstance(event, HandedOut) for event in log.events)
    for lane in history["lanes"]:
        shown = [span for span in lane if span[1] >= span[0]]
        assert all(one[1] < other[0] for one, other in pairwise(shown))


def test_a_later_part_says_how_things_stood(page: Any, start: Callable[..., Serve], tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    recorded(start, path)
    lines = lines_of(path)
    # As the recorder would begin a new part in the middle: with who is there, what is in flight, and what "=" means.
    at = next(i for i, line in enumerate(lines[200:], 200) if line.startswith('["b"') and '"="' in line)
    live: dict[int, list[int]] = {}
    in_flight: dict[int, list[int]] = {}
    last: list[int] = []
    for event in read_log(path).events[: at - 1]:
        match event:
            case Arrived(_, known):
                live[known.id] = [known.id, known.n_input, known.asked, known.carried, int(known.may_stop), 1]
            case HandedOut():
                in_flight[event.number] = list(event.ids)
            case Returned(_, number):
                last = [i for i in in_flight.pop(number) if i not in {end.id for end in event.ends}]
        for end in getattr(event, "ends", ()):
            live.pop(end.id, None)
    header = json.loads(lines[0]) | {
        "part": 2, "live": list(live.values()), "in_flight": list(map(list, in_flight.items())), "last": last,
    }  # fmt: skip
    whole, tail = page.evaluate(PARSE, lines), page.evaluate(PARSE, [json.dumps(header), *lines[at:]])
    assert tail[1:] == whole[at:]
    history = page.evaluate(FEED, [[json.dumps(header), *lines[at:]], 100_000])
    assert history["live"] == [] and history["waiting"] == 0


def test_what_other_settings_add_to_lines(page: Any) -> None:
    """Terms of requests, deadlines, reused prefixes; lines of a kind that this page does not know are passed over."""
    header = {"kind": "orcaserve-schedule", "version": 1, "run": "r", "part": 2, "start": 1.5, "last": []}
    header |= {"settings": {"max_bs": 4, "n_slots": 100}, "live": [[1, 5, 9, 0, 0, 0, {"client": 2}]]}
    lines = [
        json.dumps(header), '["a",5,2,30,9,0,0,{"client":3,"priority":1}]', '["?",6,7,8]',
        '["b",7,1,"",[[2,6]],16,6,"tokens",{"cached":[[2,24,"1-2",0]]}]', '["d",8,[[1,"error",0]]]', '["r",9,1,2]',
    ]  # fmt: skip
    begun, arrived, unknown, batch, expired, _ = page.evaluate(PARSE, lines)
    assert begun["live"][0]["terms"] == {"client": 2} and arrived["terms"] == {"client": 3, "priority": 1}
    assert unknown is None and batch["stop"] == "tokens" and batch["lacking"] == 0
    assert batch["pieces"] == [{"id": 2, "tokens": 6, "toCome": 0, "cached": 24}]
    assert expired == {"kind": "expired", "time": 8e-6, "ends": [{"id": 1, "why": "error", "output": 0}]}
    lives = page.evaluate(FEED, [lines, 100])["lives"]
    assert [row[:3] for row in lives] == [[1, "late", 0], [2, None, None]]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["hello"], "line 1: is no header: this is no schedule log"),
        (["{}"], "line 1: is no header of a schedule log"),
        (['["a",1,1,1,1]'], "line 1: is no header: a schedule log begins with one"),
        (['{"kind":"orcaserve-schedule","version":9}'], "line 1: has version 9, and this page reads 1"),
        (['{"kind":"orcaserve-schedule","version":1,"start":1}'], "settings.max_bs must be a number"),
        (["HEADER", '["b",1,1,"3-999999999999",[],1,1]'], "line 2: increments must be a list of ids"),
        (["HEADER", '["b",1,1,7,[],1,1]'], "line 2: increments must be a list of ids"),
        (["HEADER", '["b",1,1,"",{},1,1]'], "line 2: initiations must be a list"),
        (["HEADER", '["b",1,1,"",[[1,-4]],1,1]'], "line 2: initiations must be a number, 0 or more"),
        (["HEADER", '["r",1,1,1]'], "line 2: iteration 1 is not in flight"),
        (["HEADER", '["r",1,1'], "line 2: is not JSON"),
        (["HEADER", '["a","x",1,1,1]'], "line 2: time must be a number"),
        (["HEADER", "null"], "line 2: is no header"),
    ],
)
def test_damage_is_named(page: Any, lines: list[str], said: str) -> None:
    header = {"kind": "orcaserve-schedule", "version": 1, "run": "r", "part": 1, "start": 1.5}
    header |= {"settings": {"max_bs": 4, "n_slots": 100}}
    given = [json.dumps(header) if line == "HEADER" else line for line in lines]
    catching = PARSE.replace("return lines.map(", "try { lines.map(").replace(
        "\n}", "} catch (e) { return e.message; }\n}"
    )
    assert said in page.evaluate(catching, given)


def test_what_is_kept_is_bounded(page: Any) -> None:
    """A day of a busy server: iterations, requests and rows of long ago are forgotten."""
    feed = """async (n) => {
      const { History } = await import("/web/history.js");
      const history = new History(500);
      const settings = { max_bs: 4, n_slots: 9 };
      history.add({ kind: "header", run: "r", part: 1, start: 0, settings, live: [], inFlight: [] });
      for (let i = 1; i <= n; i++) {
        const time = i / 100;
        history.add({ kind: "arrived", time, id: i, input: 3, asked: 2, carried: 0, mayStop: false });
        const increments = i > 1 ? [i - 1] : [];
        history.add({ kind: "batch", time, number: i, increments, pieces: [{ id: i, tokens: 3, toCome: 0, cached: 0 }],
                      reserved: 1, used: 1, stop: "none", lacking: 0, preempted: [] });
        const ends = increments.map((id) => ({ id, why: "length", output: 2 }));
        history.add({ kind: "returned", time: time + 0.005, number: i, took: 0.004, ends, failing: [] });
      }
      const kept = history.lanes.reduce((sum, lane) => sum + lane.length, 0);
      const { first, next, lives, lanes } = history;
      return [next - first, lives.size, kept, lanes.length, history.placeOf(n), history.placeOf(1)];
    }"""
    kept, lives, in_lanes, lanes, newest, oldest = page.evaluate(feed, 30_000)
    assert kept == 500 and lives == in_lanes < 2000 and lanes <= 3
    assert newest == 29_999 and oldest is None
