"""Log-probabilities over real processes: models cut into parts, engines that die amid streams."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from disturbed import Alive, Within, replaced, serving
from engine_runs import Running, settings
from server_process import Serve

from orcaserve.config import EngineConfig, SchedulerConfig
from orcaserve.core import Logprobs, Request, TokenLogprobs
from orcaserve.core import SamplingParams as Params

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def some_requests() -> list[Request]:
    """Prompts of several lengths; some want all, some a part, some nothing, one is only read."""
    wishes: list[dict[str, Any]] = [
        {"logprobs": 3, "prompt_logprobs": 2},
        {},
        {"prompt_logprobs": 0},
        {"logprobs": 20},
        {"logprobs": 1, "prompt_logprobs": 1, "max_tokens": 0},
    ]
    prompts = [list(range(1, 40)), [5], [9, 8, 7] * 6, [200, 3], list(range(100, 117))]
    return [
        Request(i, prompt, Params(**{"max_tokens": 6, "temperature": 0, **wish}), frozenset(), seed=i)
        for i, (prompt, wish) in enumerate(zip(prompts, wishes, strict=True))
    ]


Told = dict[int, tuple[list[int], list[TokenLogprobs | None], list[TokenLogprobs]]]


def run(config: EngineConfig) -> Told:
    """Tokens, what is told of each, and of the prompt."""
    told: Told = {request.id: ([], [], []) for request in some_requests()}
    with Running(config) as engine:
        engine.host.submit(some_requests())
        n_live = len(told)
        while n_live:
            report = engine.news.get(timeout=60)
            assert not isinstance(report, str), report
            for news in report.progress:
                assert news.error is None, news.error
                tokens, output, prompt = told[news.request_id]
                own = news.logprobs or Logprobs()
                prompt += own.prompt
                if news.token is not None:
                    tokens.append(news.token)
                    output.append(own.token)
                n_live -= news.finish_reason is not None
    return told


def flat(told: Sequence[TokenLogprobs | None]) -> tuple[list[Any], list[float]]:
    """What is a matter of which token, and what of how much."""
    known = [each for each in told if each is not None]
    ids = [None if each is None else list(each.top_ids) for each in told]
    return ids, [x for each in known for x in (each.logprob, *each.top_logprobs)]


def check_same(told: Told, expected: Told) -> None:
    for number, (tokens, output, prompt) in expected.items():
        assert told[number][0] == tokens
        for own, other in ((told[number][1], output), (told[number][2], prompt)):
            (ids, numbers), (other_ids, other_numbers) = flat(own), flat(other)
            assert ids == other_ids
            assert numbers == pytest.approx(other_numbers, abs=1e-4)


@pytest.fixture(scope="module")
def expected(odd_model: Path) -> Told:
    told = run(settings(odd_model))
    assert [len(prompt) for _, _, prompt in told.values()] == [38, 0, 17, 0, 16]
    assert [[each is not None for each in output] for _, output, _ in told.values()] == [
        [True] * 6, [False] * 6, [False] * 6, [True] * 6, [],
    ]  # fmt: skip
    return told


@pytest.mark.parametrize(("p", "t"), [(2, 1), (1, 2), (1, 3), (2, 2), (3, 3)])
def test_cut_into_parts_it_tells_what_one_process_does(p: int, t: int, odd_model: Path, expected: Told) -> None:
    check_same(run(settings(odd_model, p, t)), expected)


@pytest.mark.parametrize(("p", "t"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_in_pytorch_too(p: int, t: int, odd_model: Path, expected: Told) -> None:
    pytest.importorskip("torch")
    config = settings(odd_model, p, t)
    check_same(run(replace(config, model=replace(config.model, device="reference"))), expected)


@pytest.mark.parametrize("policy", ["request-level", "cellular", "overcommit"])
def test_under_other_policies(policy: Any, odd_model: Path, expected: Told) -> None:
    """In pieces and held back; preempted, for there is room for two or three requests only."""
    scheduler = SchedulerConfig(4, policy)
    config = replace(settings(odd_model, n_slots=160), scheduler=scheduler)
    if policy == "request-level":
        config = replace(settings(odd_model, n_slots=320), scheduler=scheduler)
        config = replace(config, model=replace(config.model, max_model_len=64))
    check_same(run(config), expected)


class Stream:
    """The arrays of one stream, joined."""

    def __init__(self, serve: Serve, body: dict[str, Any]) -> None:
        self.text, self.reason, self.comments = "", None, 0
        self.ids: list[int] = []
        self.arrays: dict[str, list[Any]] = {}
        fields = {"model": serve.model, "ignore_eos": True, "stream": True, "return_token_ids": True, **body}
        with httpx.stream("POST", f"{serve.base}/v1/completions", json=fields, timeout=60) as answer:
            for line in filter(None, answer.iter_lines()):
                if line.startswith("data: {"):
                    self._take(json.loads(line[6:]))
                self.comments += line.startswith(":")

    def _take(self, event: dict[str, Any]) -> None:
        for choice in event["choices"]:
            self.text += choice["text"]
            self.ids += choice["token_ids"]
            self.reason = choice["finish_reason"] or self.reason
            for name, values in (choice["logprobs"] or {}).items():
                self.arrays.setdefault(name, []).extend(values)


def test_engines_die_and_nothing_is_missing_or_told_twice(
    served_model: Path, folder: Path, alive: Alive, within: Within
) -> None:
    rng = random.Random(3)
    wanted = [
        {
            "prompt": f"{i} " * (1 + i % 5),
            "max_tokens": 150 + 20 * (i % 4),
            "logprobs": i % 4,
            **({"echo": True} if i % 2 else {}),
            **({"temperature": 1.1, "seed": i} if i % 3 else {"temperature": 0}),
        }
        for i in range(16)
    ]

    def run_all(serve: Serve, while_running: Callable[[], None]) -> list[Stream]:
        with ThreadPoolExecutor(len(wanted)) as pool:
            running = [pool.submit(Stream, serve, body) for body in wanted]
            while_running()
            return [stream.result() for stream in running]

    with serving(served_model, (), folder, alive, within) as serve:
        started = time.monotonic()
        undisturbed = run_all(serve, lambda: None)
        took = time.monotonic() - started
        n_comments = 0
        for _ in range(3):
            engine = serve.engine_pid

            def kill(engine: int = engine) -> None:
                time.sleep(rng.uniform(0.1, 0.8) * took)
                os.kill(engine, signal.SIGKILL)

            for body, got, expected in zip(wanted, run_all(serve, kill), undisturbed, strict=True):
                assert (got.text, got.ids, got.reason) == (expected.text, expected.ids, expected.reason)
                n_comments += got.comments
                assert len(got.ids) == body["max_tokens"]
                for name in ("tokens", "text_offset"):
                    assert got.arrays[name] == expected.arrays[name]
                assert len(got.arrays["token_logprobs"]) == len(got.arrays["tokens"])
                for own, other in zip(got.arrays["token_logprobs"], expected.arrays["token_logprobs"], strict=True):
                    assert own == other or own == pytest.approx(other, abs=1e-4)
            assert within(20, lambda engine=engine: replaced(serve, engine))  # type: ignore[misc]
        assert n_comments > 0
