"""The record of a run: idle shares, the trace, the picture."""

from __future__ import annotations

import json
from pathlib import Path
from queue import SimpleQueue
from xml.etree import ElementTree

import pytest

from orcaserve.config import EngineConfig, KVConfig, ModelConfig, ParallelConfig
from orcaserve.core import IterationReport, Request, SamplingParams
from orcaserve.core.spans import COMPUTE, FORWARD, RECEIVE, SAMPLE, IterationSpans, Span
from orcaserve.engine.host import EngineHost
from orcaserve.engine.timeline import Timeline

MS = 1_000_000


@pytest.fixture
def timeline(tmp_path: Path) -> Timeline:
    """Two stages: one works for 8 of 10 ms, the other for 3; then nothing happens for a second; then 10 ms again."""
    timeline = Timeline(["s0r0", "s1r0"], tmp_path / "t.json")
    for number, start in ((1, 0), (2, 1000 * MS)):
        first = [Span(FORWARD, start, start + 1), Span(COMPUTE, start, start + 7 * MS)]
        second = [Span(RECEIVE, start, start + 7 * MS), Span(COMPUTE, start + 7 * MS, start + 9 * MS)]
        second.append(Span(SAMPLE, start + 9 * MS, start + 10 * MS))
        timeline.add("s0r0", IterationSpans(number, 2, 5, first))
        timeline.add("s1r0", IterationSpans(number, 2, 5, second))
    return timeline


def test_idle_is_who_waits_while_others_work(timeline: Timeline) -> None:
    assert timeline.idle_shares() == pytest.approx({"s0r0": 0.3, "s1r0": 0.7})


def test_files(timeline: Timeline, tmp_path: Path) -> None:
    assert timeline.wanted
    timeline.write()
    assert not timeline.wanted
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {0: "worker s0r0", 1: "worker s1r0"}
    receive = next(event for event in events if event.get("cat") == RECEIVE)
    assert (receive["ts"], receive["dur"], receive["tid"]) == (0, 7000, 1)
    assert receive["args"] == {"iteration": 1, "requests": 2, "tokens": 5}
    picture = (tmp_path / "t.svg").read_text()
    assert "30.0%" in picture and "70.0%" in picture
    ElementTree.fromstring(picture)


def test_nothing_recorded_and_nowhere_to_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Timeline(["s0r0"], None).write()
    Timeline(["s0r0"], tmp_path / "t.json").write()
    ElementTree.fromstring((tmp_path / "t.svg").read_text())
    Timeline(["s0r0"], tmp_path / "none" / "t.json").write()
    assert "cannot be written" in caplog.text


def test_one_worker_in_this_process(tmp_path: Path, tiny_model: Path) -> None:
    parallel = ParallelConfig(timeline=tmp_path / "t.json")
    config = EngineConfig(ModelConfig(tiny_model, "tiny", threads=1), KVConfig(n_slots=64), parallel=parallel)
    news: SimpleQueue[IterationReport] = SimpleQueue()
    host = EngineHost.load(config, news.put)
    host.submit([Request(1, [1, 2, 3], SamplingParams(max_tokens=3, temperature=0))])
    while not any(progress.finish_reason for progress in news.get(timeout=20).progress):
        pass
    host.close()
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [event["args"]["tokens"] for event in events if event["ph"] == "X"] == [3, 1, 1]
