"""An engine in this process, over workers of its own, and what it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

from orcaserve.config import EngineConfig, KVConfig, ModelConfig, ParallelConfig, SchedulerConfig
from orcaserve.core import IterationReport, Request
from orcaserve.core import SamplingParams as Params
from orcaserve.engine.host import EngineHost


def settings(model: Path, p: int = 1, t: int = 1, n_slots: int = 160, **parallel: object) -> EngineConfig:
    return EngineConfig(
        ModelConfig(model, "cut", dtype="float32", quantization="none", threads=1),
        KVConfig(n_slots=n_slots, dtype="float32"),
        SchedulerConfig(max_bs=2),
        ParallelConfig(p, t, **parallel),  # type: ignore[arg-type]
    )


class Running:
    """An engine of this process, and its news."""

    def __init__(self, config: EngineConfig) -> None:
        self.news: SimpleQueue[IterationReport | str] = SimpleQueue()
        self.host = EngineHost.load(config, self.news.put, self.news.put)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.host.close()

    def run(self, requests: Sequence[Request]) -> dict[int, list[int]]:
        """Their tokens, once all have ended well."""
        tokens: dict[int, list[int]] = {request.id: [] for request in requests}
        n_live = len(tokens)
        self.host.submit(requests)
        while n_live:
            report = self.news.get(timeout=60)
            assert not isinstance(report, str), report
            for news in report.progress:
                assert news.error is None, news.error
                if news.token is not None:
                    tokens[news.request_id].append(news.token)
                n_live -= news.finish_reason is not None
        return tokens

    def until_failure(self) -> str:
        while not isinstance(report := self.news.get(timeout=60), str):
            pass
        return report


def some_requests() -> list[Request]:
    """More than fit a batch, and more than fit the K/V region: pages are given back and used anew."""
    greedy = Params(max_tokens=12, temperature=0)
    seeded = Params(max_tokens=10, temperature=0.9, top_p=0.95, repetition_penalty=1.2, presence_penalty=0.4,
                    frequency_penalty=0.2, logit_bias={7: 1.5})  # fmt: skip
    prompts = [list(range(1, 40)), [5], [9, 8, 7] * 6, [200, 3], list(range(100, 117)), [11] * 30, [250]]
    return [
        Request(i, prompt, replace(greedy if i % 2 == 0 else seeded), frozenset({2}), seed=1000 + i)
        for i, prompt in enumerate(prompts)
    ]
