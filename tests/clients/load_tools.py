"""Load tools, called as their users call them; what their reports say is checked against what was asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import Bench, Finished
from outcome import Step
from spoken import PROGRAMS

N_REQUESTS = 8  # of each strategy, or in all


def vllm_bench(bench: Bench) -> list[Step]:
    """128 tokens for each of the random prompts of 1,024."""
    finished = bench.call(
        "vllm", "bench", "serve", "--backend", "openai", "--base-url", bench.base, "--endpoint", "/v1/completions",
        "--model", bench.model, "--dataset-name", "random", "--num-prompts", str(N_REQUESTS), "--request-rate", "2",
        "--ignore-eos", through=PROGRAMS / "vllm_command.py",
    )  # fmt: skip
    what = f"{N_REQUESTS} random prompts of 1,024 tokens, 128 tokens each"
    said = dict(re.findall(r"^([A-Z][^:\n]*):\s+([\d.]+)\s*$", finished.out, re.MULTILINE))
    wanted = {
        "Successful requests": N_REQUESTS,
        "Total input tokens": N_REQUESTS * 1024,
        "Total generated tokens": N_REQUESTS * 128,
    }
    return [_judged(what, finished, said, wanted)]


def guidellm_run(bench: Bench) -> list[Step]:
    """A sweep: one at a time, all at once, and eight rates between."""
    finished = bench.call(
        "guidellm", "run", "--backend", f"kind=openai_http,target={bench.base}", "--profile", "kind=sweep",
        "--data", "kind=synthetic_text,prompt_tokens=256,output_tokens=128",
        "--constraint", f"kind=max_requests,count={N_REQUESTS}", "--output", "kind=json,path=guidellm.json",
    )  # fmt: skip
    metrics = [benchmark["metrics"] for benchmark in _find(bench.work, "guidellm.json").get("benchmarks", [])]
    totals = [entry["request_totals"] for entry in metrics]
    lengths = [entry["output_token_count"]["successful"] for entry in metrics]
    said = {
        "strategies": len(metrics),
        "strategies with answers": sum(entry["successful"] > 0 for entry in totals),
        "errors": sum(entry["errored"] + entry["incomplete"] for entry in totals),
        "shortest answer": min((entry["min"] for entry in lengths), default=0),
        "longest answer": max((entry["max"] for entry in lengths), default=0),
    }
    wanted = {
        "strategies": 10, "strategies with answers": 10, "errors": 0, "shortest answer": 128, "longest answer": 128,
    }  # fmt: skip
    return [_judged(f"a sweep of 10 strategies, {N_REQUESTS} chats of 256 + 128 tokens each", finished, said, wanted)]


def aiperf_profile(bench: Bench) -> list[Step]:
    """Ten chats, as many as it makes of 4 at a time, and the server's metrics beside them."""
    finished = bench.call(
        "aiperf", "profile", "--model", bench.model, "--url", bench.address, "--endpoint-type", "chat", "--streaming",
        "--concurrency", "4",
    )  # fmt: skip
    report = _find(bench.work / "artifacts", "profile_export_aiperf.json")
    errors = report.get("error_request_count") or {"avg": 0}
    said = {"requests": report.get("request_count", {}).get("avg"), "errors": errors["avg"]}
    metrics = _find(bench.work / "artifacts", "server_metrics_export.json").get("metrics", {})
    read = {name: int(name in metrics) for name in ("vllm:num_requests_running", "vllm:time_to_first_token_seconds")}
    return [
        _judged("10 chats of 550 tokens, streamed, 4 at a time", finished, said, {"requests": 10, "errors": 0}),
        _judged("reads the server's metrics", finished, read, dict.fromkeys(read, 1)),
    ]


def inference_perf(bench: Bench) -> list[Step]:
    """One request a second for eight seconds."""
    finished = bench.call(
        "inference-perf", "--server.type", "vllm", "--server.base_url", bench.base, "--data.type", "random",
        "--load.type", "constant", "--load.stages", '[{"rate": 1, "duration": 8}]', "--api.streaming", "true",
        "--data.input_distribution.max", "256", "--data.input_distribution.mean", "128",
        "--data.input_distribution.std_dev", "32", "--data.output_distribution.max", "64",
        "--data.output_distribution.mean", "32", "--data.output_distribution.std_dev", "8",
    )  # fmt: skip
    report = _find(bench.work, "summary_lifecycle_metrics.json")
    said = {name: report.get(name, {}).get("count") for name in ("successes", "failures")}
    return [_judged("8 random prompts, one a second, streamed", finished, said, {"successes": 8, "failures": 0})]


def _judged(what: str, finished: Finished, said: dict[str, Any], wanted: dict[str, Any]) -> Step:
    """Did the tool end well, and does its report say what was asked for?"""
    differences = list(_differences(said, wanted))
    return Step(what, finished.problem or ("; ".join(differences) or None))


def _differences(said: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    for name, value in wanted.items():
        found = said.get(name)
        if found is None or float(found) != float(value):
            yield f"{name} {found}, expected {value}"


def _find(folder: Path, pattern: str) -> dict[str, Any]:
    """The first report of this name; empty if there is none."""
    for file in sorted(folder.rglob(pattern)):
        report: dict[str, Any] = json.loads(file.read_text())
        return report
    return {}
