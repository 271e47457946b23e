"""Low-rank adapters in real processes: cut models, and a server that loads and unloads them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from disturbed import serving
from engine_runs import Running, settings
from server_process import Serve

from orcaserve.config import AdaptersConfig, EngineConfig
from orcaserve.core import AdapterSource, Request
from orcaserve.core import SamplingParams as Params

sys.path.insert(0, str(Path(__file__).parents[1]))
from lora_files import linears, write_adapter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

Alive = Callable[[int], bool]
Within = Callable[[float, Callable[[], bool]], bool]
PROMPT = [(7 * i + i * i) % 90 + 3 for i in range(40)]


@pytest.fixture(scope="module")
def adapters(odd_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[AdapterSource]:
    folder, shapes = tmp_path_factory.mktemp("adapters"), linears(odd_model)
    return [
        AdapterSource(n, f"a{n}", write_adapter(folder / f"a{n}", shapes, n, rank=3 + n, size=0.3)) for n in (1, 2, 3)
    ]


def wide(model: Path, p: int = 1, t: int = 1) -> EngineConfig:
    """With room for a batch of many."""
    config = settings(model, p, t, n_slots=800)
    return replace(config, scheduler=replace(config.scheduler, max_bs=7))


def requests(first: int = 0) -> list[Request]:
    """With three adapters and none, on one prompt and on others."""
    params = Params(max_tokens=8, temperature=0.7)
    return [
        Request(first + i, PROMPT[: 40 - 2 * (i // 4)], params, seed=i % 2, adapter=i % 4) for i in range(12)
    ]  # fmt: skip


def tokens_of(config: EngineConfig, adapters: list[AdapterSource]) -> dict[int, list[int]]:
    config = replace(config, adapters=AdaptersConfig(tuple(adapters)))
    with Running(config) as engine:
        return engine.run(requests())


@pytest.fixture(scope="module")
def expected(odd_model: Path, adapters: list[AdapterSource]) -> dict[int, list[int]]:
    """Of one process, each request alone."""
    config = replace(wide(odd_model), adapters=AdaptersConfig(tuple(adapters)))
    with Running(config) as engine:
        alone: dict[int, list[int]] = {}
        for request in requests():
            alone |= engine.run([request])
        return alone


def test_adapters_change_what_is_said(expected: dict[int, list[int]]) -> None:
    assert len({tuple(expected[i]) for i in range(4)}) == 4


@pytest.mark.parametrize(("p", "t"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_a_mixed_batch_gives_everybody_his_own_tokens(
    odd_model: Path, adapters: list[AdapterSource], expected: dict[int, list[int]], p: int, t: int
) -> None:
    assert tokens_of(wide(odd_model, p, t), adapters) == expected


def test_prefixes_are_not_shared_across_adapters(
    odd_model: Path, adapters: list[AdapterSource], expected: dict[int, list[int]]
) -> None:
    config = replace(wide(odd_model), adapters=AdaptersConfig(tuple(adapters)))
    config = replace(config, scheduler=replace(config.scheduler, prefix_caching=True))
    with Running(config) as engine:
        for first in (0, 100):
            for request in requests(first):
                own = engine.run([request])
                assert own[request.id] == expected[request.id - first]
        assert engine.host._status.n_cached > 0


@pytest.mark.parametrize(("p", "t"), [(1, 1), (2, 2)])
def test_adapters_come_and_go_while_the_engine_runs(
    odd_model: Path, adapters: list[AdapterSource], expected: dict[int, list[int]], p: int, t: int
) -> None:
    def ask(verb: Callable[[Callable[[str | None], None]], None]) -> str | None:
        told: list[str | None] = []
        over = threading.Event()

        def answer(error: str | None) -> None:
            told.append(error)
            over.set()

        verb(answer)
        assert over.wait(60)
        return told[0]

    with Running(wide(odd_model, p, t)) as engine:
        host = engine.host
        for adapter in adapters:
            assert ask(lambda answer, adapter=adapter: host.load_adapter(adapter, answer)) is None
        assert engine.run(requests()) == expected
        wrong = AdapterSource(9, "wrong", adapters[0].path, "another digest")
        assert "have changed" in (ask(lambda answer: host.load_adapter(wrong, answer)) or "")
        assert ask(lambda answer: host.unload_adapter(2, answer)) is None
        with pytest.raises(AssertionError, match="not loaded"):
            engine.run([Request(50, PROMPT, Params(max_tokens=2), adapter=2)])
        again = engine.run([request for request in requests(200) if request.adapter != 2])
        assert again == {200 + i: tokens for i, tokens in expected.items() if i % 4 != 2}


@pytest.fixture
def served_adapters(served_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, shapes = tmp_path_factory.mktemp("adapters"), linears(served_model)
    return {name: write_adapter(folder / name, shapes, seed, size=0.4) for seed, name in enumerate(("sql", "poet"))}


@pytest.fixture
def serve(
    served_model: Path, served_adapters: dict[str, Path], folder: Path, alive: Alive, within: Within
) -> Iterator[Serve]:
    flags = ("--lora-modules", f"sql={served_adapters['sql']}", "--max-loras", "2", "--enable-runtime-lora-updating")
    with serving(served_model, flags, folder, alive, within) as serve:
        yield serve


def chat(serve: Serve, model: str, **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 12, **fields}
    return serve.http.post("/v1/chat/completions", json={"model": model, **body})


def said(serve: Serve, model: str) -> str:
    answer = chat(serve, model)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    return str(answer.json()["choices"][0]["message"]["content"])


def load(serve: Serve, name: str, path: object) -> Any:
    return serve.http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)})


def unload(serve: Serve, name: str) -> Any:
    return serve.http.post("/v1/unload_lora_adapter", json={"lora_name": name})


def test_a_name_selects_an_adapter(
    serve: Serve, served_adapters: dict[str, Path], alive: Alive, within: Within
) -> None:
    base, sql = said(serve, serve.model), said(serve, "sql")
    assert base != sql
    models = {each["id"]: each for each in serve.http.get("/v1/models").json()["data"]}
    assert models["sql"]["parent"] == serve.model and models[serve.model]["parent"] is None
    assert serve.http.get("/v1/models/sql").json() == models["sql"]
    assert chat(serve, "poet").status_code == 404
    # One more is loaded while it runs, and a third has no room.
    answer = load(serve, "poet", served_adapters["poet"])
    assert answer.status_code == 200, answer.text
    poet = said(serve, "poet")
    assert poet not in (base, sql)
    assert load(serve, "poet", served_adapters["poet"]).json()["error"]["code"] == "already_loaded"
    assert load(serve, "third", served_adapters["poet"]).json()["error"]["code"] == "too_many_adapters"
    assert unload(serve, "nobody").status_code == 404
    # An engine that follows has what was loaded.
    os.kill(serve.engine_pid, signal.SIGKILL)
    assert within(60, lambda: said(serve, "poet") == poet)
    assert said(serve, "sql") == sql
    # Unloaded, its name is free: for another adapter, whose keys and values are not those of the first.
    assert unload(serve, "sql").status_code == 200
    assert chat(serve, "sql").status_code == 404
    assert within(10, lambda: load(serve, "sql", served_adapters["poet"]).status_code == 200)
    assert said(serve, "sql") == poet
    assert said(serve, serve.model) == base


def test_what_cannot_be_loaded_is_said(serve: Serve, served_adapters: dict[str, Path], tmp_path: Path) -> None:
    assert load(serve, "x", tmp_path / "none").status_code == 404
    wrong = write_adapter(tmp_path / "wrong", {"model.layers.0.self_attn.q_proj": (32, 48)}, 1)
    answer = load(serve, "x", wrong)
    assert answer.status_code == 400 and "made for another model" in answer.json()["error"]["message"]
    large = write_adapter(tmp_path / "large", {"model.layers.0.self_attn.q_proj": (32, 32)}, 1, rank=65)
    answer = load(serve, "x", large)
    assert answer.status_code == 400 and "--max-lora-rank is 64" in answer.json()["error"]["message"]
    assert load(serve, "a b", wrong).json()["error"]["param"] == "lora_name"
    assert [each["id"] for each in serve.http.get("/v1/models").json()["data"]] == [serve.model, "sql"]


def test_an_unloaded_adapter_is_there_until_its_requests_have_ended(
    serve: Serve, served_adapters: dict[str, Path], within: Within
) -> None:
    expected = serve.http.post(
        "/v1/completions",
        json={"model": "sql", "prompt": "ab", "max_tokens": 400, "temperature": 0, "ignore_eos": True},
    ).json()["choices"][0]["text"]
    text: list[str] = []

    def run() -> None:
        body = {"model": "sql", "prompt": "ab", "max_tokens": 400, "temperature": 0, "ignore_eos": True}
        text.append(serve.http.post("/v1/completions", json=body).json()["choices"][0]["text"])

    thread = threading.Thread(target=run)
    thread.start()
    assert within(20, lambda: serve.http.get("/v1/requests").json()["total"] > 0 or bool(text))
    assert unload(serve, "sql").status_code == 200
    thread.join()
    assert text == [expected]


def test_without_the_flag_nothing_is_loaded(
    served_model: Path, served_adapters: dict[str, Path], folder: Path, alive: Alive, within: Within
) -> None:
    with serving(served_model, ("--lora-modules", f"sql={served_adapters['sql']}"), folder, alive, within) as serve:
        assert load(serve, "poet", served_adapters["poet"]).status_code == 403
        assert unload(serve, "sql").status_code == 403
        assert said(serve, "sql")
