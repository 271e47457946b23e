"""Summary: a run's figures, as an object for programs and as lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from orcaserve.evaluation.latency import quantile
from orcaserve.evaluation.load.generator import Load
from orcaserve.evaluation.load.record import Record
from orcaserve.evaluation.targets import Metric, Target

SHARES = (0.5, 0.9, 0.99)
# What the generator may do before it is said that it spoils the result.
LATE_MS, LATE_SHARE = 10.0, 0.1  # p99 of its lateness: this, or this share of the median ttft, whichever is more
LAG_MS, LAG_SHARE = 10.0, 0.2  # p99 of its lag, likewise of the median itl
BUSY = 0.7  # of a core


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds; of nothing, None."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    most: float | None

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        if not seconds:
            return cls(None, None, None, None, None)
        ordered = sorted(seconds)
        values = [fmean(ordered), *(quantile(ordered, share) for share in SHARES), ordered[-1]]
        return cls(*(round(value * 1e3, 3) for value in values))


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target: what the whole run came to, in seconds, and whether that is within."""

    target: str
    measured: float | None
    met: bool


@dataclass(frozen=True, slots=True)
class GeneratorFacts:
    """How well the generator itself did. lateness_ms: from when a request was due to when it was sent. lag_ms: of its
    event loop, which is how much too late it may have seen a token. cpu_share: of one core. warning: None if all is
    well."""

    lateness_ms: Spread
    lag_ms: Spread
    cpu_share: float
    warning: str | None


@dataclass(frozen=True, slots=True)
class Summary:
    """Latencies and rates are of the requests that are whole; `errors` counts the others by cause.

    seconds: from the first request to the last answer. offered_req_s: arrivals a second between the first and the last.
    goodput_req_s: of requests that meet every target, each alone; None without targets. odd_lengths: whole requests
    with another number of output tokens than asked for. events_per_token: below 1 where pieces of text hold several.
    """

    sent: int
    whole: int
    errors: dict[str, int]
    details: dict[str, str]
    seconds: float
    offered_req_s: float | None
    req_s: float
    output_tok_s: float
    input_tok_s: float
    goodput_req_s: float | None
    targets: list[Verdict]
    ttft_ms: Spread
    itl_ms: Spread
    e2e_ms: Spread
    normalized_ms: Spread
    input_tokens: int
    output_tokens: int
    wanted_input_tokens: int
    odd_lengths: int
    events_per_token: float | None
    generator: GeneratorFacts

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def summarise(load: Load, targets: Sequence[Target]) -> Summary:
    whole = [record for record in load.records if record.whole]
    failed = [record for record in load.records if not record.whole]
    seconds = max(load.seconds, 1e-9)
    latencies = {metric: [value for record in whole for value in record.latencies(metric)] for metric in Metric}
    dues = [record.due for record in load.records]
    span = dues[-1] - dues[0] if dues else 0.0
    n_output = sum(record.n_output for record in whole)
    n_input = sum(_n_input(record) for record in whole)
    good = sum(all(record.meets(target) for target in targets) for record in whole)
    return Summary(
        sent=len(load.records),
        whole=len(whole),
        errors=dict(Counter(str(record.error) for record in failed).most_common()),
        details={str(record.error): record.detail for record in reversed(failed) if record.detail},
        seconds=round(seconds, 3),
        offered_req_s=round((len(dues) - 1) / span, 3) if span > 0 else None,
        req_s=round(len(whole) / seconds, 3),
        output_tok_s=round(n_output / seconds, 1),
        input_tok_s=round(n_input / seconds, 1),
        goodput_req_s=round(good / seconds, 3) if targets else None,
        targets=[_verdict(target, latencies[target.metric]) for target in targets],
        ttft_ms=Spread.of(latencies[Metric.TTFT]),
        itl_ms=Spread.of(latencies[Metric.ITL]),
        e2e_ms=Spread.of(latencies[Metric.E2E]),
        normalized_ms=Spread.of(latencies[Metric.NORMALIZED]),
        input_tokens=n_input,
        output_tokens=n_output,
        wanted_input_tokens=sum(record.arrival.n_input for record in whole),
        odd_lengths=sum(record.n_output != record.arrival.n_output for record in whole),
        events_per_token=round(sum(len(record.events) for record in whole) / n_output, 3) if n_output else None,
        generator=_generator_facts(load, seconds, latencies),
    )


def _n_input(record: Record) -> int:
    return record.arrival.n_input if record.input_tokens is None else record.input_tokens


def _verdict(target: Target, latencies: Sequence[float]) -> Verdict:
    if not latencies:
        return Verdict(str(target), None, False)
    measured = quantile(latencies, target.share)
    return Verdict(str(target), round(measured, 6), measured <= target.bound)


def _generator_facts(load: Load, seconds: float, latencies: Mapping[Metric, Sequence[float]]) -> GeneratorFacts:
    lateness = Spread.of([record.lateness for record in load.records])
    lag = Spread.of(load.lags)
    share = load.cpu_seconds / seconds
    troubles = []
    if _past(lateness, LATE_MS, LATE_SHARE, latencies[Metric.TTFT]):
        troubles.append(f"it sent late by {lateness.p99:.0f} ms")
    if _past(lag, LAG_MS, LAG_SHARE, latencies[Metric.ITL]):
        troubles.append(f"its event loop was late by {lag.p99:.0f} ms")
    if share > BUSY:
        troubles.append(f"it took {share:.0%} of a core")
    warning = None
    if troubles:
        warning = f"the load generator may have spoilt the result: {', '.join(troubles)}; give it a core of its own"
    return GeneratorFacts(lateness, lag, round(share, 4), warning)


def _past(spread: Spread, least_ms: float, share: float, latencies: Sequence[float]) -> bool:
    of_median = share * quantile(latencies, 0.5) * 1e3 if latencies else 0.0
    return spread.p99 is not None and spread.p99 > max(least_ms, of_median)


def lines(summary: Summary) -> Iterable[str]:
    """For people."""
    offered = f", offered {summary.offered_req_s:.2f} req/s" if summary.offered_req_s else ""
    yield f"requests    {summary.whole} whole of {summary.sent} sent in {summary.seconds:.1f} s{offered}"
    for error, n in summary.errors.items():
        detail = f": {summary.details[error]}" if error in summary.details else ""
        yield f"FAILED      {n} x {error}{detail}"
    yield (
        f"throughput  {summary.req_s:.2f} req/s, {summary.output_tok_s:.0f} output tokens/s, "
        f"{summary.input_tok_s:.0f} input tokens/s"
    )
    yield f"{'ms':<26}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'most':>10}"
    for name, spread in (
        ("first token (ttft)", summary.ttft_ms),
        ("between tokens (itl)", summary.itl_ms),
        ("end to end (e2e)", summary.e2e_ms),
        ("per token (normalized)", summary.normalized_ms),
    ):
        yield f"{name:<26}" + "".join(_cell(value) for value in asdict(spread).values())
    for verdict in summary.targets:
        measured = "nothing measured" if verdict.measured is None else f"{verdict.measured * 1e3:.1f} ms"
        yield f"target      {verdict.target}: {measured}, {'met' if verdict.met else 'NOT met'}"
    if summary.goodput_req_s is not None:
        what = "the target" if len(summary.targets) == 1 else "all targets"
        yield f"goodput     {summary.goodput_req_s:.2f} req/s meet {what}"
    yield from _remarks(summary)


def _remarks(summary: Summary) -> Iterable[str]:
    if summary.odd_lengths:
        yield f"note        {summary.odd_lengths} requests have another number of output tokens than asked for"
    if summary.whole and summary.input_tokens != summary.wanted_input_tokens:
        share = summary.input_tokens / summary.wanted_input_tokens - 1
        yield f"note        the server counts {share:+.1%} input tokens against those wanted"
    facts = summary.generator
    late = "-" if facts.lateness_ms.p99 is None else f"{facts.lateness_ms.p99:.1f}"
    lag = "-" if facts.lag_ms.p99 is None else f"{facts.lag_ms.p99:.1f}"
    yield f"generator   sent late by {late} ms, event loop late by {lag} ms (p99); {facts.cpu_share:.0%} of a core"
    if facts.warning:
        yield f"WARNING     {facts.warning}"


def _cell(value: float | None) -> str:
    return f"{'-':>10}" if value is None else f"{value:>10.1f}"


def row(record: Record) -> dict[str, object]:
    """One request, for --rows. Times are seconds since the run began."""
    times = [round(time, 6) for time in record.events]
    rounded = {name: None if time is None else round(time, 6) for name, time in
               (("due", record.due), ("sent", record.sent), ("end", record.end))}  # fmt: skip
    return {
        "index": record.index, **rounded, "error": record.error, "detail": record.detail,
        "wanted_input": record.arrival.n_input, "wanted_output": record.arrival.n_output,
        "input_tokens": record.input_tokens, "output_tokens": record.output_tokens, "token_times": times,
    }  # fmt: skip
