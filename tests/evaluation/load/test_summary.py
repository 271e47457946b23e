"""A run's figures, from requests whose times are known."""

from __future__ import annotations

import json
from array import array

import pytest

from orcaserve.evaluation.load.generator import Load
from orcaserve.evaluation.load.record import Record
from orcaserve.evaluation.load.summary import lines, row, summarise
from orcaserve.evaluation.targets import Metric, parse_target
from orcaserve.workload import Arrival


def record(index: int, sent: float, *events: float, end: float | None = None, error: str | None = None) -> Record:
    made = Record(index, Arrival(sent, 10, max(len(events), 1)), sent, sent + 0.001, array("d", events))
    made.error = error
    if error is None:
        made.end = end if end is not None else events[-1]
        made.input_tokens, made.output_tokens = 10, len(events)
    return made


def load(*records: Record, seconds: float = 10.0) -> Load:
    return Load(len(records), list(records), seconds, [0.001] * 100, 1.0)


def test_latencies_of_a_request() -> None:
    one = record(0, 1.0, 1.201, 1.301, 1.501)
    assert one.latencies(Metric.TTFT) == pytest.approx([0.2])
    assert one.latencies(Metric.ITL) == pytest.approx([0.1, 0.2])
    assert one.latencies(Metric.E2E) == pytest.approx([0.5])
    assert one.latencies(Metric.NORMALIZED) == pytest.approx([0.5 / 3])


def test_without_the_servers_count_pieces_count() -> None:
    one = record(0, 0.0, 0.1, 0.2)
    one.output_tokens = None
    assert one.n_output == 2


def test_rates_and_goodput() -> None:
    quick = [record(i, float(i), i + 0.101, i + 0.201) for i in range(4)]
    slow = record(4, 4.0, 6.001, 6.101)
    targets = [parse_target("p50_ttft<=150ms"), parse_target("p99_ttft<=1s"), parse_target("p50_normalized<=2s")]
    summary = summarise(load(*quick, slow), targets)
    assert (summary.req_s, summary.output_tok_s, summary.input_tok_s) == (0.5, 1.0, 5.0)
    assert summary.goodput_req_s == 0.4 and summary.offered_req_s == 1.0
    assert [verdict.met for verdict in summary.targets] == [True, False, True]
    assert summary.ttft_ms.p50 == pytest.approx(100) and summary.ttft_ms.most == pytest.approx(2000)
    assert summary.events_per_token == 1.0 and summary.generator.warning is None
    assert json.loads(json.dumps(summary.as_json()))["ttft_ms"]["p99"] == pytest.approx(2000)


def test_failures_are_counted_and_shown() -> None:
    failed = [record(i, 0.0, error="HTTP 429") for i in range(3)]
    failed[0].detail = "slow down"
    summary = summarise(load(record(3, 0.0, 0.1), *failed, record(4, 0.0, error="the stream broke")), [])
    assert summary.errors == {"HTTP 429": 3, "the stream broke": 1} and summary.whole == 1
    text = "\n".join(lines(summary))
    assert "FAILED      3 x HTTP 429: slow down" in text and "1 whole of 5 sent" in text


@pytest.mark.parametrize("records", [[], [record(0, 0.0, error="HTTP 500")]])
def test_nothing_measured(records: list[Record]) -> None:
    summary = summarise(load(*records), [parse_target("p50_itl<=1s")])
    assert summary.targets[0].measured is None and not summary.targets[0].met
    assert "nothing measured, NOT met" in "\n".join(lines(summary))


def test_one_token_meets_any_target_between_tokens() -> None:
    summary = summarise(load(record(0, 0.0, 0.1)), [parse_target("p99_itl<=1ms")])
    assert summary.goodput_req_s == 0.1 and not summary.targets[0].met  # of the run nothing is known


def test_other_lengths_than_asked_for_are_said() -> None:
    short = record(0, 0.0, 0.1, 0.2)
    short.output_tokens, short.input_tokens = 1, 12
    summary = summarise(load(short), [])
    assert summary.odd_lengths == 1
    text = "\n".join(lines(summary))
    assert "1 requests have another number of output tokens" in text and "+20.0% input tokens" in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("late", "it sent late by 500 ms"),
        ("lag", "its event loop was late by 300 ms"),
        ("busy", "it took 95% of a core"),
    ],
)
def test_a_generator_that_spoils_the_result_says_so(change: str, says: str) -> None:
    run = load(record(0, 0.0, 0.1, 0.2, 0.3))
    if change == "late":
        run.records[0].sent = 0.5
    elif change == "lag":
        run.lags[:] = [0.3] * 10
    else:
        run.cpu_seconds = 9.5
    warning = summarise(run, []).generator.warning
    assert warning is not None and says in warning
    assert any(line.startswith("WARNING") and says in line for line in lines(summarise(run, [])))


def test_rows() -> None:
    found = json.loads(json.dumps(row(record(7, 1.0, 1.5, 2.0))))
    assert found["index"] == 7 and found["token_times"] == [1.5, 2.0] and found["error"] is None
    assert (found["due"], found["end"], found["wanted_input"], found["input_tokens"]) == (1.0, 2.0, 10, 10)
