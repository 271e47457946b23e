"""Runs that print throughput rows, ours and other engines', and a table of what they said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from orcaserve.checkpoint.locate import locate_model, model_name
from orcaserve.config import PAGE_SIZE, EngineConfig, KVConfig, ModelConfig, SchedulerConfig

FIGURES = ("prefill_tok_s", "decode_tok_s")


@dataclass(frozen=True, slots=True)
class Work:
    """Requests of one shape: prompt and generated tokens, and how many at once."""

    batch: tuple[int, ...]
    prompt: int
    gen: int

    @property
    def flags(self) -> list[str]:
        return ["--batch", *map(str, self.batch), "--prompt", str(self.prompt), "--gen", str(self.gen)]


@dataclass(frozen=True, slots=True)
class Subject:
    """An engine with weights in some form."""

    engine: str
    form: str

    def __str__(self) -> str:
        return f"{self.engine} {self.form}"


@dataclass(slots=True)
class Results:
    """Every row that was measured, by subject, batch and prompt length; runs that failed."""

    rows: dict[tuple[Subject, int, int], list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    failures: list[str] = field(default_factory=list)

    def run(self, command: Sequence[str]) -> None:
        """Run a command that prints rows as JSON lines, and keep them."""
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for row in rows:
            print(json.dumps(row), flush=True)
            self.rows[Subject(row["engine"], row["form"]), row["batch"], row["prompt"]].append(row)
        if done.returncode or not rows:
            print(f"failed: {' '.join(command)}\n{done.stderr[-2000:]}", file=sys.stderr, flush=True)
            last = (done.stderr.strip().splitlines() or ["without a word"])[-1]
            self.failures.append(f"`{_shown(command)}` ended with {done.returncode}: {last[:200]}")

    def figure(self, subject: Subject, batch: int, prompt: int, name: str) -> float | None:
        """The median over runs of one of FIGURES; None if it was not measured."""
        found = [row[name] for row in self.rows.get((subject, batch, prompt), ()) if row[name] is not None]
        return median(found) if found else None

    @property
    def subjects(self) -> list[Subject]:
        return list(dict.fromkeys(subject for subject, _, _ in self.rows))

    def table_rows(self) -> list[list[object]]:
        shown = sorted(self.rows.items(), key=lambda item: (item[0][2], item[0][1], str(item[0][0])))
        return [[*key, *(_rounded(self.figure(*key, name)) for name in FIGURES), len(rows)] for key, rows in shown]


COLUMNS = ["engine, weights", "batch", "prompt", "prompt tokens/s", "decoded tokens/s", "runs"]


def ours(form: str, kv_cache_dtype: str, work: Work, *more: str) -> list[str]:
    """The command that measures OrcaServe. form: float32, bfloat16, int8 or int4."""
    command = [sys.executable, "-m", "orcaserve", "bench", "throughput", "--json", *work.flags]
    return [*command, *form_flags(form, kv_cache_dtype), *more]


def form_flags(form: str, kv_cache_dtype: str) -> list[str]:
    """Flags of every verb that loads a model."""
    floats = form in ("float32", "bfloat16")
    weights = ["--quantization", "none", "--dtype", form] if floats else ["--quantization", form]
    return [*weights, "--kv-cache-dtype", kv_cache_dtype]


def engine_config(model: str | None, form: str, kv_cache_dtype: str, batch: int, tokens: int) -> EngineConfig:
    """Of an engine in this process, with room for `batch` requests of `tokens` tokens each."""
    floats = form in ("float32", "bfloat16")
    weights = {"dtype": form, "quantization": "none"} if floats else {"quantization": form}
    return EngineConfig(
        ModelConfig(locate_model(model), model_name(model), **weights),
        KVConfig(n_slots=batch * -(-tokens // PAGE_SIZE) * PAGE_SIZE, dtype=kv_cache_dtype),
        SchedulerConfig(batch),
    )


def _rounded(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _shown(command: Sequence[str]) -> str:
    return " ".join(part.rsplit("/", 1)[-1] for part in command)
