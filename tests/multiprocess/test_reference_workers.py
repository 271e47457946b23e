"""A model in PyTorch, cut over real processes, gives what one gives; on the CPU, with the code that GPUs run too."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from engine_runs import Running, settings, some_requests
from server_process import workers

from orcaserve.config import EngineConfig, KVConfig
from orcaserve.core import FinishReason, Progress, Request
from orcaserve.core import SamplingParams as Params

pytest.importorskip("torch")
import torch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def reference(model: Path, p: int = 1, t: int = 1, device: str = "reference", **parallel: object) -> EngineConfig:
    config = settings(model, p, t, **parallel)
    return replace(config, model=replace(config.model, device=device))


@pytest.fixture(scope="module")
def expected(odd_model: Path) -> dict[int, list[int]]:
    with Running(reference(odd_model)) as one:
        return one.run(some_requests())


@pytest.mark.parametrize(("p", "t"), [(2, 1), (1, 3), (2, 2), (3, 2)])
def test_cut_into_parts_it_gives_the_tokens_of_one_process(
    p: int, t: int, odd_model: Path, expected: dict[int, list[int]], alive: Callable[[int], bool]
) -> None:
    with Running(reference(odd_model, p, t)) as engine:
        pids = workers(os.getpid())
        assert set(pids) == {f"s{stage}r{shard}" for stage in range(p) for shard in range(t)}
        assert engine.run(some_requests()) == expected
    assert not any(alive(pid) for pid in pids.values())


def test_a_timeline_with_layers_as_asked_for(odd_model: Path, expected: dict[int, list[int]], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with Running(reference(odd_model, 2, layer_split=(4, 1), timeline=path)) as engine:
        assert engine.run(some_requests()) == expected
    work = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "compute"]
    by_stage = [{e["args"]["iteration"]: e for e in work if e["tid"] == stage} for stage in (0, 1)]
    assert set(by_stage[1]) == set(range(1, len(by_stage[1]) + 1))
    for number, first in by_stage[0].items():
        assert by_stage[1][number]["ts"] >= first["ts"] + first["dur"], "a stage computes after the one before it"


def test_a_request_that_cannot_run_ends_alone(odd_model: Path) -> None:
    """Its rows are missing at both stages alike, be it the whole of its batch or a part of it."""
    good = [Request(i, list(range(i + 1, 2 * i + 4)), Params(max_tokens=6, temperature=0)) for i in range(3)]
    with Running(reference(odd_model, 2)) as engine:
        engine.host._check = lambda request: None  # type: ignore[method-assign]  # the door that would refuse it
        expected = engine.run([replace(request, output=[]) for request in good])
        for first, company in ((10, []), (20, good)):
            bad = Request(first, [1, 99_999, 3], Params(max_tokens=4))
            requests = [bad, *(replace(request, id=first + 1 + request.id, output=[]) for request in company)]
            tokens: dict[int, list[int]] = {request.id: [] for request in requests}
            ends: dict[int, Progress] = {}
            engine.host.submit(requests)
            while len(ends) < len(requests):
                report = engine.news.get(timeout=60)
                assert not isinstance(report, str), report
                for news in report.progress:
                    if news.token is not None:
                        tokens[news.request_id].append(news.token)
                    if news.finish_reason is not None:
                        ends[news.request_id] = news
            assert ends[first].finish_reason is FinishReason.ERROR and "outside 0..250" in str(ends[first].error)
            assert [tokens[request.id] for request in requests[1:]] == [expected[request.id] for request in company]


def test_a_worker_that_is_killed_ends_the_engine_by_name(odd_model: Path, alive: Callable[[int], bool]) -> None:
    with Running(reference(odd_model, 1, 2, n_slots=4096)) as engine:
        pids = workers(os.getpid())
        engine.host.submit([Request(1, [1, 2, 3], Params(max_tokens=1000, temperature=0))])
        engine.news.get(timeout=60)
        os.kill(pids["s0r1"], signal.SIGKILL)
        assert engine.until_failure() == f"worker s0r1 (process {pids['s0r1']}) was ended by SIGKILL"
    assert not any(alive(pid) for pid in pids.values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_user_reads_one_line(default_model: Path) -> None:
    command = [sys.executable, "-m", "orcaserve", "generate", "--model", str(default_model), "--prompt", "x"]
    ended = subprocess.run([*command, "-pp", "2", "--device", "cuda"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr == "orcaserve: --device: PyTorch finds no cuda here\n"


def test_windows_release_the_same_pages_at_all_stages(odd_model: Path, tmp_path: Path) -> None:
    """Texts longer than the K/V region, and no message says what is released."""
    model = tmp_path / "windowed"
    shutil.copytree(odd_model, model)
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 24}
    (model / "config.json").write_text(json.dumps(config))
    requests = [
        Request(i, list(range(1, n)), Params(max_tokens=m, temperature=0))
        for i, (n, m) in enumerate([(80, 60), (9, 100), (200, 4), (30, 30)])
    ]
    tokens = []
    for p, t in ((1, 1), (2, 1), (2, 2)):
        with Running(replace(reference(model, p, t), kv=KVConfig(n_slots=144, dtype="float32"))) as engine:
            assert engine.host.facts.window == 24 and engine.host.facts.longest_request > 144
            tokens.append(engine.run([replace(request, output=[]) for request in requests]))
    assert tokens[0] == tokens[1] == tokens[2]
    assert [len(output) for output in tokens[0].values()] == [60, 100, 4, 30]
