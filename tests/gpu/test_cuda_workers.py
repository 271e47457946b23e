"""A model cut over GPUs, through real worker processes, gives what it gives on one of them in one process."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from orcaserve.config import EngineConfig
from orcaserve.core import ConfigError, Request, SamplingParams

torch = pytest.importorskip("torch")
N_GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = pytest.mark.skipif(N_GPUS == 0, reason="there is no GPU")


def on_gpus(n: int) -> pytest.MarkDecorator:
    return pytest.mark.skipif(n > N_GPUS, reason=f"needs {n} GPUs")


def settings(model: Path, p: int = 1, t: int = 1, device: str = "cuda", n_slots: int = 160) -> EngineConfig:
    import engine_runs

    config = engine_runs.settings(model, p, t, n_slots)
    return replace(config, model=replace(config.model, device=device))


@pytest.fixture(scope="module")
def expected(odd_model: Path) -> dict[int, list[int]]:
    from engine_runs import Running, some_requests

    with Running(settings(odd_model)) as one:
        return one.run(some_requests())


@pytest.mark.parametrize(
    ("p", "t", "device"),
    [
        (2, 1, "cuda:0"),
        (1, 2, "cuda:0"),
        (2, 2, "cuda:0"),
        pytest.param(2, 1, "cuda", marks=on_gpus(2)),
        pytest.param(1, 2, "cuda", marks=on_gpus(2)),
        pytest.param(1, 3, "cuda", marks=on_gpus(3)),
        pytest.param(3, 1, "cuda", marks=on_gpus(3)),
        pytest.param(2, 2, "cuda", marks=on_gpus(4)),
        pytest.param(2, 3, "cuda", marks=on_gpus(6)),
        pytest.param(4, 2, "cuda", marks=on_gpus(8)),
    ],
)
def test_cut_into_parts_it_gives_the_tokens_of_one_process(
    p: int, t: int, device: str, odd_model: Path, expected: dict[int, list[int]]
) -> None:
    from engine_runs import Running, some_requests

    with Running(settings(odd_model, p, t, device)) as engine:
        assert engine.run(some_requests()) == expected


@pytest.mark.parametrize(
    ("p", "t", "device"),
    [(2, 1, "cuda:0"), pytest.param(2, 1, "cuda", marks=on_gpus(2)), pytest.param(1, 3, "cuda", marks=on_gpus(3))],
)
def test_the_default_model(p: int, t: int, device: str, default_model: Path) -> None:
    from engine_runs import Running

    requests = [
        Request(0, list(range(1000, 1030)), SamplingParams(max_tokens=12, temperature=0)),
        Request(1, [504, 3575, 314], SamplingParams(max_tokens=12, temperature=0)),
        Request(2, [28, 1743], SamplingParams(max_tokens=12, temperature=0.8, repetition_penalty=1.1), seed=5),
    ]
    with Running(settings(default_model)) as one:
        expected = one.run([replace(request, output=[]) for request in requests])
    with Running(settings(default_model, p, t, device)) as engine:
        assert engine.run(requests) == expected


@pytest.mark.parametrize("device", ["cuda:0", pytest.param("cuda", marks=on_gpus(2))])
def test_a_worker_that_is_killed_ends_the_engine_by_name(device: str, odd_model: Path) -> None:
    """The other one may stand in a sum on its GPU: it is ended all the same."""
    from engine_runs import Running
    from server_process import workers

    with Running(settings(odd_model, 1, 2, device, n_slots=4096)) as engine:
        pids = workers(os.getpid())
        engine.host.submit([Request(1, [1, 2, 3], SamplingParams(max_tokens=1000, temperature=0))])
        engine.news.get(timeout=60)
        os.kill(pids["s0r1"], signal.SIGKILL)
        assert engine.until_failure() == f"worker s0r1 (process {pids['s0r1']}) was ended by SIGKILL"
    assert workers(os.getpid()) == {}


def test_what_does_not_fit_the_gpu_is_refused(odd_model: Path) -> None:
    from engine_runs import Running

    with pytest.raises(ConfigError, match=r"^--n-slots: .* need .* are free"):
        Running(settings(odd_model, 2, 1, "cuda:0", n_slots=2**40))


def test_a_gpu_that_is_not_there_is_named(odd_model: Path) -> None:
    from engine_runs import Running

    words = rf"^--device: PyTorch finds no cuda:{N_GPUS} here: there are {N_GPUS}, numbered from 0$"
    with pytest.raises(ConfigError, match=words):
        Running(settings(odd_model, 2, 1, f"cuda:{N_GPUS}"))
