"""What do masks cost when every request of a batch is constrained?

The same engine, in one process and one run, generates the same number of tokens after the same prompts: with a grammar
and without one, in turns. Each pair gives a ratio of tokens a second, from when all requests have their first token;
the median of the pairs is the answer. Grammars are such that a text can go on for as many tokens.

    python benchmarks/structured_output.py [--batch 32] [--prompt 128] [--gen 256] [--pairs 7] [--out FILE]
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from typing import Any

import report

from orcaserve.checkpoint.locate import locate_model, model_name
from orcaserve.config import EngineConfig, KVConfig, ModelConfig, SchedulerConfig
from orcaserve.core import Grammar
from orcaserve.evaluation.measured_engine import MeasuredEngine

GOAL_PERCENT = 5.0

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "role": {"enum": ["engineer", "writer", "sailor", "none of these"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "score": {"type": "number"},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "since": {"type": "string", "format": "date"}},
            "required": ["street", "since"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "role", "tags", "score", "address"],
    "additionalProperties": False,
}
GRAMMARS = {
    "JSON schema: list of records": Grammar.json_schema({"type": "array", "items": PERSON, "minItems": 1000}),
    "JSON schema: list of anything": Grammar.json_schema({"type": "array", "minItems": 1000}),
    "regular expression": Grammar.regex(r"([A-Z][a-z]+ [a-z ]{4,40}[.!?] ){200}"),
}


@dataclass(frozen=True)
class Row:
    grammar: str
    temperature: float
    free: float  # tokens a second, median
    constrained: float
    cost_percent: float  # of the median pair

    def cells(self) -> list[object]:
        return [
            self.grammar,
            f"{self.temperature:g}",
            f"{self.free:.0f}",
            f"{self.constrained:.0f}",
            f"{self.cost_percent:.1f} %",
        ]


def measure(engine: MeasuredEngine, name: str, temperature: float, args: argparse.Namespace) -> Row:
    def speed(prompts: list[list[int]], grammar: Grammar | None) -> float:
        run = engine.run(prompts, args.gen, temperature, grammar)
        return args.batch * (args.gen - 1) / run.decode_seconds

    grammar = GRAMMARS[name]
    for each in (None, grammar):  # memory is touched, code is warm, and the grammar compiled
        engine.run(engine.random_prompts(args.batch, args.prompt), 16, temperature, each)
    frees, constraineds = [], []
    for pair in range(args.pairs):
        prompts = engine.random_prompts(args.batch, args.prompt)
        order = (None, grammar) if pair % 2 else (grammar, None)
        for each in order:
            (frees if each is None else constraineds).append(speed(prompts, each))
    ratio = statistics.median(ours / free for ours, free in zip(constraineds, frees, strict=True))
    return Row(name, temperature, statistics.median(frees), statistics.median(constraineds), 100 * (1 - ratio))


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of masks for each iteration.")
    parser.add_argument("--model", default=None)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--gen", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--grammars", nargs="+", default=list(GRAMMARS), choices=list(GRAMMARS))
    parser.add_argument("--out", metavar="FILE")
    args = parser.parse_args()
    n_slots = args.batch * (args.prompt + args.gen + 16)
    config = EngineConfig(
        ModelConfig(locate_model(args.model), model_name(args.model)), KVConfig(n_slots), SchedulerConfig(args.batch)
    )
    with MeasuredEngine(config) as engine:
        rows = [measure(engine, name, t, args) for name in args.grammars for t in args.temperatures]
    schemas = [row for row in rows if row.grammar.startswith("JSON")]
    worst = max((row.cost_percent for row in schemas), default=0.0)
    columns = ["all requests with", "temperature", "free, tokens/s", "constrained, tokens/s", "cost"]
    passed = report.mark(worst < GOAL_PERCENT)
    report.write(
        report.heading("Structured output", __doc__)
        + f"{args.batch} requests at once, {args.prompt} prompt tokens and {args.gen} generated each, "
        f"{args.pairs} pairs; {config.model.name}\n\n"
        + report.table(columns, [row.cells() for row in rows])
        + f"\nA JSON schema costs at most {worst:.1f} % (goal: below {GOAL_PERCENT:g} %): {passed}\n",
        args.out,
    )
    return 0 if worst < GOAL_PERCENT else 1


if __name__ == "__main__":
    raise SystemExit(main())
