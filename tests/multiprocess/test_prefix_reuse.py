"""Prefix reuse in real processes: cut models, a server and what it tells, and engines that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from disturbed import serving
from engine_runs import Running, settings
from server_process import Serve

from orcaserve.config import EngineConfig
from orcaserve.core import Request, Terms
from orcaserve.core import SamplingParams as Params

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

Alive = Callable[[int], bool]
Within = Callable[[float, Callable[[], bool]], bool]
SYSTEM = [(7 * i + i * i) % 90 + 3 for i in range(70)]


def rounds() -> list[list[Request]]:
    """Some that begin alike together; then some that begin like those, in pages and amid them."""
    params = Params(max_tokens=6, temperature=0.7)
    first = [Request(i, SYSTEM + [5 + i] * (3 + 5 * i), params, seed=i) for i in range(4)]
    second = [Request(10 + i, SYSTEM[: 40 + 9 * i] + [80 - i] * 8, params, seed=i) for i in range(4)]
    alone = Request(20, SYSTEM, params, seed=3, terms=Terms(cache_salt="mine"))
    return [first, [*second, alone], [first_again(first[3])]]


def first_again(request: Request) -> Request:
    return Request(30, request.input_ids, request.params, seed=request.seed)


def run(config: EngineConfig) -> tuple[list[dict[int, list[int]]], int]:
    with Running(config) as engine:
        tokens = [engine.run(requests) for requests in rounds()]
        return tokens, engine.host._status.n_cached


def sharing(config: EngineConfig) -> EngineConfig:
    return replace(config, scheduler=replace(config.scheduler, max_bs=4, prefix_caching=True))


@pytest.mark.parametrize(("p", "t"), [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)])
def test_a_cut_model_gives_the_tokens_of_one_process_without_reuse(odd_model: Path, p: int, t: int) -> None:
    expected, none = run(settings(odd_model, n_slots=800))
    tokens, n_cached = run(sharing(settings(odd_model, p, t, n_slots=800)))
    assert tokens == expected
    assert none == 0 and n_cached >= 300


def test_a_cut_model_with_few_slots(odd_model: Path) -> None:
    expected, _ = run(settings(odd_model, n_slots=800))
    tokens, n_cached = run(sharing(settings(odd_model, 2, 1, n_slots=160)))
    assert tokens == expected and n_cached > 0


@pytest.fixture
def serve(
    request: pytest.FixtureRequest, served_model: Path, folder: Path, alive: Alive, within: Within
) -> Iterator[Serve]:
    with serving(served_model, getattr(request, "param", ()), folder, alive, within) as serve:
        yield serve


def cached(answer: dict[str, dict[str, dict[str, int]]]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_what_a_server_tells(serve: Serve) -> None:
    prompt = "a conversation that begins like another one does, " * 2
    first = serve.complete(prompt, max_tokens=5)
    n = first["usage"]["prompt_tokens"]
    second = serve.complete(prompt, max_tokens=5)
    assert cached(first) == 0
    assert cached(second) == (n - 1) // 16 * 16 or cached(second) == n - 1
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    assert cached(serve.complete(prompt, max_tokens=5, echo=True, logprobs=0)) == 0
    both = serve.complete([prompt, prompt + "!"], max_tokens=5, n=2)
    assert (n - 1) // 16 * 32 <= cached(both) < both["usage"]["prompt_tokens"]
    body = {"prompt": prompt, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}
    events = serve.post("/v1/completions", **body).text.split("\n\n")
    assert cached(json.loads(events[-3].removeprefix("data: "))) > 0
    names = ("orcaserve_prefix_cached_tokens_total", "vllm:prefix_cache_hits_total", "orcaserve_kv_slots_kept")
    told = [serve.metric(name) for name in names]
    assert told[0] == told[1] > 0 and told[2] > 0
    assert serve.metric("vllm:prefix_cache_queries_total") > told[1]


@pytest.mark.parametrize("serve", [("--no-enable-prefix-caching",)], indirect=True, ids=["off"])
def test_it_can_be_turned_off(serve: Serve) -> None:
    answers = [serve.complete("the same words, more than a page of them", max_tokens=3) for _ in range(2)]
    assert [cached(answer) for answer in answers] == [0, 0]
    assert serve.metric("orcaserve_kv_slots_kept") == 0


def test_an_engine_is_killed_while_prefixes_are_shared(serve: Serve) -> None:
    """The texts go on in the new engine, which knows nothing of what was kept."""
    prompt = "all of these begin alike, for a page and more of text. "
    wanted = [serve.complete(prompt + str(i), max_tokens=150, seed=i, temperature=0.9)["choices"] for i in range(6)]
    found: dict[int, object] = {}

    def ask(i: int) -> None:
        found[i] = serve.complete(prompt + str(i), max_tokens=150, seed=i, temperature=0.9)["choices"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    os.kill(serve.engine_pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(6)] == wanted
    assert serve.metric("orcaserve_engine_restarts_total") == 1


def test_systems_to_compare_with_share_nothing(served_model: Path) -> None:
    command = [sys.executable, "-m", "orcaserve", "serve", str(served_model), "--port", "0"]
    command += ["--scheduling-policy", "orca-max", "--enable-prefix-caching"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "--enable-prefix-caching" in done.stderr and "only iteration-level" in done.stderr
