"""The endpoint as an application of somebody else's server: its life is that server's `lifespan`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray_cluster import children

from orcaserve.config import EngineConfig, KVConfig, ModelConfig, ServingConfig
from orcaserve.serving.hosted import HostedEndpoint

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


class Life:
    """A server's side of `lifespan`."""

    def __init__(self, app: HostedEndpoint) -> None:
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}}
        self._task = asyncio.create_task(app(scope, self._to_app.get, self._from_app.put))

    async def say(self, what: str) -> dict[str, Any]:
        """Returns the answer."""
        await self._to_app.put({"type": f"lifespan.{what}"})
        return await asyncio.wait_for(self._from_app.get(), 60)

    async def end(self) -> None:
        await asyncio.wait_for(self._task, 30)


def hosted(model: Path) -> HostedEndpoint:
    config = ModelConfig(model, "tiny", dtype="float32", quantization="none", threads=1)
    return HostedEndpoint(ServingConfig(), EngineConfig(config, KVConfig(n_slots=320)))


def engines() -> list[int]:
    return children(os.getpid(), "orcaserve: engine")


async def test_it_serves_between_startup_and_shutdown(served_model: Path, alive: Callable[[int], bool]) -> None:
    app = hosted(served_model)
    assert (app.n_tokens, app.n_slots, app.why_not_healthy) == (0, 0, None)
    life = Life(app)
    assert (await life.say("startup"))["type"] == "lifespan.startup.complete"
    assert (app.n_tokens, app.n_slots, app.why_not_healthy) == (0, 320, None)
    (engine,) = engines()
    body = {"model": "tiny", "prompt": "ab", "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        asking = asyncio.create_task(http.post("/v1/completions", json=body))
        while not app.n_tokens:
            assert not asking.done() or asking.result().status_code == 200
            await asyncio.sleep(0)
        assert app.n_tokens == 32, "prompt and output"
        whole = (await asking).json()["choices"][0]["text"]
        streamed = (await http.post("/v1/completions", json={**body, "stream": True})).text
    assert len(whole) > 5
    assert streamed.endswith("data: [DONE]\n\n")
    assert app.n_tokens == 0
    assert (await life.say("shutdown"))["type"] == "lifespan.shutdown.complete"
    await life.end()
    assert not alive(engine)


async def test_a_model_that_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    life = Life(hosted(tmp_path))
    answer = await life.say("startup")
    assert answer["type"] == "lifespan.startup.failed"
    assert answer["message"]
    await life.end()
    assert not engines()
