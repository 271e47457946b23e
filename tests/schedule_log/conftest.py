"""Logs of real runs: a tiny model's engine, requests that come while others run, and some that leave."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest

from orcaserve.config import EngineConfig, KVConfig, ModelConfig, ScheduleLogConfig, SchedulerConfig
from orcaserve.core import USUAL, IterationReport, Pooling, Request, SamplingParams, Terms
from orcaserve.engine.host import EngineHost

LONGEST = 64
Run = Callable[..., Path]


@pytest.fixture(scope="session")
def run_logged(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    def run(
        settings: SchedulerConfig,
        n_requests: int = 60,
        n_slots: int = 512,
        part_bytes: int = 2**20,
        n_files: int = 4,
        seed: int = 0,
        pauses: float = 0.1,
        only_read: float = 0.0,
        terms: Callable[[random.Random], Terms] = lambda rng: USUAL,
    ) -> Path:
        path = tmp_path_factory.mktemp("log") / "run.log"
        config = EngineConfig(
            ModelConfig(tiny_model, "tiny", dtype="float32", threads=1, max_model_len=LONGEST),
            KVConfig(n_slots=n_slots),
            settings,
            schedule_log=ScheduleLogConfig(path, part_bytes, n_files),
        )
        rng, news = random.Random(seed), SimpleQueue[IterationReport]()
        host = EngineHost.load(config, news.put)
        n_ended = 0
        try:
            for i in range(n_requests):
                params = SamplingParams(max_tokens=rng.randint(1, 20), temperature=1.0)
                if only_read and rng.random() < only_read:
                    wish = rng.choice([{"prompt_logprobs": 1}, {"pooling": Pooling.MEAN}, {"pooling": Pooling.LAST}])
                    params = SamplingParams(max_tokens=0, **wish)  # type: ignore[arg-type]
                prompt = [rng.randrange(256) for _ in range(rng.randint(1, 30))]
                host.submit([Request(i, prompt, params, frozenset(range(2, 12)), seed=i, terms=terms(rng))])
                if rng.random() < 0.1:
                    host.cancel([rng.randint(0, i)])
                if rng.random() < pauses:  # else they come in bursts
                    time.sleep(0.002)
            while n_ended < n_requests:
                n_ended += sum(each.finish_reason is not None for each in news.get(timeout=60).progress)
        finally:
            host.close()
        return path

    return run
