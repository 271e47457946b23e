"""An endpoint without HTTP, for tests that kill it: starts the engine, runs one long request, says what happens.

usage: stand_in_endpoint.py MODEL MAX_TOKENS
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from orcaserve.config import EngineConfig, KVConfig, ModelConfig
from orcaserve.core import Request, SamplingParams
from orcaserve.serving.launcher import EngineProcess


def say(*words: object) -> None:
    print(*words, flush=True)


async def main(model: str, max_tokens: int) -> None:
    engine = EngineProcess(EngineConfig(ModelConfig(Path(model), "tiny"), KVConfig(n_slots=4096)))
    engine.start()
    say("engine", engine.pid)
    say("socket", engine.socket)
    client = await engine.connect(60)
    say("ready")
    stream = client.submit(Request(1, [3, 4, 5], SamplingParams(max_tokens=max_tokens, temperature=0)))
    n_tokens = 0
    async for news in stream:
        n_tokens += len(news)
        if n_tokens == len(news):
            say("running")
    say("end", n_tokens, news[-1].finish_reason.name if news[-1].finish_reason else None)
    await client.close()
    await engine.stop()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
