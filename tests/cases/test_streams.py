"""STREAM: what fails before the first byte is an ordinary error; what fails after it is one error event, the last."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from case_server import CHAT, COMPLETIONS, FLOAT32, MESSAGES, SECRET, Server, refused
from reciting import reciting_llama

LONG = 3000  # tokens: some seconds


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    "field", [{"temperature": 9}, {"n": 0}, {"logit_bias": {"x": 1}}, {"stop": ""}, {"max_tokens": -1},
              {"stream_options": SECRET}, {"stop_token_ids": [-1]}, {"seed": SECRET}],
    ids=lambda field: next(iter(field)),
)  # fmt: skip
def test_b30_an_invalid_field_of_a_stream(gpt2: Server, path: str, field: dict[str, Any]) -> None:
    refused(gpt2.ask(path, stream=True, **field), next(iter(field)))


@pytest.fixture
def own(sentencepiece_metadata: dict[str, Any], tmp_path: Path) -> Iterator[Server]:
    """A server whose engine may be killed, and whose texts may be long."""
    server = Server(reciting_llama(tmp_path / "model", sentencepiece_metadata, context=4096), *FLOAT32)
    yield server
    server.process.kill()
    server.stop()


def lose_the_engine(server: Server) -> None:
    os.kill(server.engine_pid, signal.SIGKILL)


def replaced(server: Server, engine: int) -> bool:
    return server.children not in ([], [engine]) and server.http.get("/ready").status_code == 200


def test_b30_a_stream_goes_on_after_its_engine_is_lost(own: Server, within: Any) -> None:
    whole, _ = own.both(max_tokens=LONG)
    engine, frames = own.engine_pid, list[str]()
    with own.http.stream("POST", COMPLETIONS, json=own.body(stream=True, max_tokens=LONG)) as answer:
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))
        for frame in lines:
            frames.append(frame)
            if len(frames) == 3:
                lose_the_engine(own)
    assert frames.pop() == "[DONE]"
    assert "".join(json.loads(frame)["choices"][0]["text"] for frame in frames) == whole
    assert within(30, lambda: replaced(own, engine))
    own.check(within)


def test_b30_a_stream_whose_engines_are_lost_twice(own: Server, within: Any) -> None:
    """One error event, then the end: no finish reason, no [DONE]; the client of OpenAI's raises it."""
    engine, frames = own.engine_pid, list[str]()
    with own.http.stream("POST", COMPLETIONS, json=own.body(stream=True, max_tokens=LONG)) as answer:
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))
        frames += [next(lines) for _ in range(3)]
        lose_the_engine(own)
        assert within(30, lambda: replaced(own, engine))
        engine = own.engine_pid
        lose_the_engine(own)
        frames += list(lines)
    error = json.loads(frames.pop())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["type"]) == ("engine_crashed", "server_error")
    assert all(json.loads(frame)["choices"][0]["finish_reason"] is None for frame in frames)
    assert within(30, lambda: replaced(own, engine))
    own.check(within)


def test_b30_what_the_official_client_makes_of_it(own: Server, within: Any) -> None:
    engine = own.engine_pid
    body = own.body(max_tokens=LONG, ignore_eos=...)
    with (
        openai.OpenAI(base_url=f"{own.base}/v1", api_key="x", max_retries=0) as client,
        client.completions.create(stream=True, extra_body={"ignore_eos": True}, **body) as stream,
        pytest.raises(openai.APIError, match="crashed twice") as raised,
    ):
        for _ in range(3):
            next(stream)
        lose_the_engine(own)
        assert within(30, lambda: replaced(own, engine))
        engine = own.engine_pid
        lose_the_engine(own)
        for _ in stream:
            pass
    assert raised.value.code == "engine_crashed"
    assert within(30, lambda: replaced(own, engine))
    own.check(within)


def test_b30_the_engine_is_lost_before_the_first_byte_and_no_other_comes(own: Server, within: Any) -> None:
    """A plain 5xx, in chat and completions, streamed and whole."""
    with ThreadPoolExecutor(4) as pool:
        os.kill(own.engine_pid, signal.SIGSTOP)
        asked = [
            pool.submit(own.ask, path, stream=stream, **({"messages": MESSAGES} if path == CHAT else {}))
            for path in (COMPLETIONS, CHAT)
            for stream in (False, True)
        ]
        assert within(5, lambda: own.metric("orcaserve_requests_started_total") == 4)
        (own.recited.path / "model.safetensors").write_bytes(b"\0" * 100)
        lose_the_engine(own)
        for answer in asked:
            result = answer.result()
            assert result.status_code in (500, 503), result.text
            assert result.json()["error"]["type"] == "server_error"
    assert own.process.wait(120) == 1
