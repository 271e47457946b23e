"""`orcaserve serve` as users run it: endpoint, engine and worker in real processes, spoken to over HTTP."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

import openai
import pytest
from server_process import BYTES, Serve

from orcaserve.schedule_log.format import HandedOut
from orcaserve.schedule_log.reader import read_log


@pytest.fixture(scope="module")
def shared(served_model: Path) -> Iterator[Serve]:
    serve = Serve(str(served_model), "--port", "0", "--n-slots", "8192", "-t", "1", "--max-model-len", "512")
    serve.known = serve.text(max_tokens=8)  # type: ignore[attr-defined]
    yield serve
    assert serve.stop() == 0
    assert not any("Traceback" in line for line in serve.log)


@pytest.fixture
def serve(shared: Serve, within: Callable[[float, Callable[[], bool]], bool]) -> Iterator[Serve]:
    """The server, checked after each case: healthy, its known text unchanged, all slots free again."""
    yield shared
    assert shared.http.get("/health").status_code == 200
    assert shared.text(max_tokens=8) == shared.known  # type: ignore[attr-defined]
    assert within(5, lambda: shared.metric("orcaserve_kv_slots_reserved") == 0)


def test_streams_equal_whole_texts(serve: Serve) -> None:
    for seed in range(4):
        fields = {"temperature": 1.5, "seed": seed, "max_tokens": 60}
        assert "".join(serve.stream(**fields)) == serve.text(**fields)


def test_b15_the_last_slot_of_the_context(serve: Serve) -> None:
    full = serve.complete([5] * 511, max_tokens=None)
    counts = [full["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    assert counts == [511, 1, 512]
    assert serve.post("/v1/completions", prompt=[5] * 512).status_code == 400
    chat = serve.post("/v1/chat/completions", messages=[{"role": "user", "content": "a"}], ignore_eos=True)
    assert chat.json()["usage"]["total_tokens"] == 512


def test_b22_bias_removes_and_selects(serve: Serve) -> None:
    token = BYTES + serve.text(max_tokens=1).encode()[0]
    assert serve.text(max_tokens=1, logit_bias={str(token): -100}) != serve.text(max_tokens=1)
    assert serve.text(max_tokens=3, logit_bias={str(BYTES + 90): 100}) == "ZZZ"
    assert serve.post("/v1/completions", prompt="a", logit_bias={"256": 5}).status_code == 400
    assert serve.post("/v1/completions", prompt="a", stop_token_ids=[256]).status_code == 400
    stopped = serve.complete(max_tokens=9, logit_bias={str(BYTES + 90): 100}, stop_token_ids=[BYTES + 90])
    assert stopped["choices"][0] == {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}


def test_b24_choices_and_seeds(serve: Serve) -> None:
    fields = {"n": 4, "temperature": 1.5, "max_tokens": 20}
    first, again = (serve.complete(["a", "b", "c"], seed=5, **fields)["choices"] for _ in range(2))
    assert first == again and [c["index"] for c in first] == list(range(12))
    assert len({c["text"] for c in first}) == 12
    assert [c["text"] for c in first] != [c["text"] for c in serve.complete(["a", "b", "c"], **fields)["choices"]]


def test_b46_end_of_text(serve: Serve) -> None:
    ended = serve.complete(max_tokens=9, ignore_eos=False, logit_bias={"2": 100})["choices"][0]
    assert ended["text"] == "" and ended["finish_reason"] == "stop"
    past = serve.complete(max_tokens=9, ignore_eos=True, logit_bias={"2": 100})
    assert past["choices"][0]["finish_reason"] == "length" and past["usage"]["completion_tokens"] == 9


def test_openai_client(serve: Serve) -> None:
    with openai.OpenAI(base_url=f"{serve.base}/v1", api_key="none") as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        whole = client.chat.completions.create(model=serve.model, messages=messages, max_tokens=9, temperature=0)
        with client.chat.completions.create(
            model=serve.model, messages=messages, max_tokens=9, temperature=0, stream=True
        ) as stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == whole.choices[0].message.content


def batches(model: Path, log: Path, max_bs: int) -> list[Sequence[int]]:
    """Of a long request, and a short one that comes when the long one has begun: ids of each batch, once in a row."""
    flags = (str(model), "--port", "0", "--n-slots", "8192", "-t", "1", "-np", str(max_bs), "--schedule-log", str(log))
    serve = Serve(*flags)
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(serve.text, max_tokens=4000)
        while serve.metric("orcaserve_kv_slots_reserved") == 0:
            assert not long.done()
        serve.text(max_tokens=4)
        long.result()
    assert serve.stop() == 0
    handed_out = [event.ids for event in read_log(log).events if isinstance(event, HandedOut)]
    return [ids for ids, _ in groupby(handed_out)]


def test_scheduling_is_per_iteration(served_model: Path, tmp_path: Path) -> None:
    """With room for two, the later request joins the running one's batch and ends first; with room for one it waits."""
    first, both, last = batches(served_model, tmp_path / "two.log", 2)
    assert first == last and len(first) == 1 and len(both) == 2 and both[0] == first[0]
    long, short = batches(served_model, tmp_path / "one.log", 1)
    assert len(long) == len(short) == 1 and long != short


def test_the_process_and_its_end(served_model: Path, alive: Callable[[int], bool]) -> None:
    serve = Serve(str(served_model), "--port", "0", "--n-slots", "1024", "-t", "1")
    title = Path(f"/proc/{serve.process.pid}/cmdline").read_bytes().rstrip(b"\0").decode()
    assert title == "orcaserve: endpoint"
    assert not any("Traceback" in line for line in serve.log) and len(serve.log) <= 4
    assert any("max_bs" in line and "n_slots 1024" in line.replace("(K/V tokens) ", "") for line in serve.log)
    maps = Path(f"/proc/{serve.process.pid}/maps").read_text()
    assert "libtorch" not in maps
    port = serve.base.rsplit(":", 1)[1]
    taken = subprocess.run(
        [sys.executable, "-m", "orcaserve", "serve", str(served_model), "--port", port],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert taken.returncode == 2 and taken.stderr.count("\n") == 1 and f"{port} is in use" in taken.stderr
    engine = serve.engine_pid
    assert serve.stop(signal.SIGINT) == 0
    assert not alive(engine)
    with socket.create_server(("127.0.0.1", int(port))):
        pass  # the port is free at once


def test_two_signals_cut_what_runs_and_say_so(served_model: Path) -> None:
    serve = Serve(str(served_model), "--port", "0", "--n-slots", "4096", "-t", "1", "--shutdown-grace", "0")
    body = {"model": serve.model, "prompt": "ab", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    half = socket.create_connection(("127.0.0.1", int(serve.base.rsplit(":", 1)[1])))
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    half.sendall(head.encode())
    lines = []
    with half, serve.http.stream("POST", "/v1/completions", json=body) as answer:
        for line in filter(None, answer.iter_lines()):
            lines.append(line)
            if len(lines) == 3:
                serve.process.send_signal(signal.SIGTERM)
                refused = half.recv(4096)  # at once, long before the time for a body is over
                while b"}}" not in refused:
                    refused += half.recv(4096)
                serve.process.send_signal(signal.SIGTERM)
    assert b" 503 " in refused and b'"code":"stopping"' in refused
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "stopping"
    assert serve.process.wait(20) == 1, "a request was cut"
    with contextlib.suppress(ProcessLookupError):
        serve.stop()
    log = "".join(serve.log)
    assert "have up to 5 s to finish" in log and "requests were cut" in log and "Traceback" not in log


@pytest.mark.parametrize("flags", [["no/such/model"], ["--port", "70000"], ["--api-key", ""]])
def test_wrong_settings_are_one_line(flags: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orcaserve", "serve", *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (2, 3) and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_a_model_that_cannot_be_loaded(served_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(served_model, broken)
    (broken / "model.safetensors").write_bytes(b"\0" * 100)
    done = subprocess.run(
        [sys.executable, "-m", "orcaserve", "serve", str(broken), "--port", "0"],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr


PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "1, 2, 3, 4,",
    "Once upon a time, in a village by the sea, there lived a",
    "汉字 and 🦙:",
    "Q: Why is the sky blue?\nA:",
    "Dear Sir or Madam,\n\nI am writing to you " + "about the noise of the trains at night " * 4,
    "word " * 90,
)


def test_the_default_model(default_model: Path) -> None:
    """A real model: streamed and whole alike; 32 clients at once each get exactly what they get alone."""
    serve = Serve("--port", "0", "--n-slots", "8192", "-t", "1")
    try:
        with openai.OpenAI(base_url=f"{serve.base}/v1", api_key="none") as client:
            messages: Any = [{"role": "user", "content": "What is the capital of Japan?"}]
            ask: Any = {"model": serve.model, "messages": messages, "max_tokens": 12, "temperature": 0}
            whole = client.chat.completions.create(**ask)
            assert "Tokyo" in (whole.choices[0].message.content or "")
            with client.chat.completions.create(**ask, stream=True) as stream:
                text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            assert text == whole.choices[0].message.content
        work = [(prompt, 8 + 4 * (i % 5)) for i, prompt in enumerate(PROMPTS)]
        alone = [serve.text(prompt, max_tokens=n) for prompt, n in work]
        assert len(set(alone)) == len(alone)

        def ask_again(i: int) -> str:
            prompt, n = work[i % len(work)]
            if i // len(work) % 2:
                return serve.text(prompt, max_tokens=n)
            return "".join(serve.stream(prompt, max_tokens=n))

        with ThreadPoolExecutor(32) as pool:
            assert list(pool.map(ask_again, range(32))) == alone * 4
    finally:
        assert serve.stop() == 0
