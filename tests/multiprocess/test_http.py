"""`orcaserve serve` as users run it: endpoint, engine and worker in real processes, spoken to over HTTP."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from server_process import BYTES, Serve


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


def test_b01_forced_characters(serve: Serve) -> None:
    for character in ("Ď", "汉", "👩‍🚀"):
        ids = [BYTES + b for b in character.encode()]
        shown = ""
        for n, token in enumerate(ids):
            bias = {str(token): 100}
            prompt = [BYTES + 65, *ids[:n]]
            streamed = "".join(serve.stream(prompt, max_tokens=1, logit_bias=bias))
            assert streamed == serve.text(prompt, max_tokens=1, logit_bias=bias)
            shown += streamed
        # A prompt that ends inside a character: what completes it is shown, what only goes on waits for its end
        assert shown.replace("\ufffd", "") == character


def test_b02_prompt_ends_inside_a_character(serve: Serve) -> None:
    start, middle, end = (BYTES + b for b in "汉".encode())
    prompt = [BYTES + b for b in b"Hello world "]
    assert serve.text([*prompt, start, middle], max_tokens=1, logit_bias={str(end): 100}) == "汉"
    assert serve.text([*prompt, start], max_tokens=1, logit_bias={str(BYTES + 65): 100}) == "A"
    assert serve.text([*prompt, start, middle], max_tokens=4) == "".join(
        serve.stream([*prompt, start, middle], max_tokens=4)
    )


def test_streams_equal_whole_texts(serve: Serve) -> None:
    for seed in range(4):
        fields = {"temperature": 1.5, "seed": seed, "max_tokens": 60}
        assert "".join(serve.stream(**fields)) == serve.text(**fields)


def test_b08_b09_stop(serve: Serve) -> None:
    whole = serve.text(max_tokens=40)
    stop = whole[10:13]
    cut = serve.complete(max_tokens=40, stop=[stop])["choices"][0]
    assert cut["text"] == whole[: whole.index(stop)] and cut["finish_reason"] == "stop"
    shown = serve.text(max_tokens=40, stop=[stop], include_stop_str_in_output=True)
    assert (
        shown
        == whole[: whole.index(stop) + len(stop)]
        == "".join(serve.stream(max_tokens=40, stop=[stop], include_stop_str_in_output=True))
    )
    first = serve.complete(max_tokens=40, stop=[whole[0]])
    assert first["choices"][0]["text"] == "" and first["usage"]["completion_tokens"] >= 1


def test_b13_streams_beside_bad_requests(serve: Serve) -> None:
    fields = {"max_tokens": 120}
    quiet = serve.stream(**fields)
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(serve.stream, **fields) for _ in range(4)]
        for token in (-1, 256, 2**31, 2**63, 2**64):
            assert serve.post("/v1/completions", prompt=[token]).status_code == 400
        assert {"".join(r.result()) for r in running} == {"".join(quiet)}


def test_b15_the_last_slot_of_the_context(serve: Serve) -> None:
    full = serve.complete([5] * 511, max_tokens=None)
    counts = [full["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    assert counts == [511, 1, 512]
    assert serve.post("/v1/completions", prompt=[5] * 512).status_code == 400
    chat = serve.post("/v1/chat/completions", messages=[{"role": "user", "content": "a"}], ignore_eos=True)
    assert chat.json()["usage"]["total_tokens"] == 512


def test_b17_control_characters(serve: Serve) -> None:
    assert serve.complete("\u0000 \u0001", max_tokens=2)["usage"]["prompt_tokens"] == 3


def test_b18_tiny_temperatures_are_greedy(serve: Serve) -> None:
    for temperature in (1e-4, 1e-5, 1e-6, 1e-7, 1e-38, 5e-324, 0, -0.0):
        assert serve.text(temperature=temperature, max_tokens=8) == serve.known  # type: ignore[attr-defined]


def test_b18_tiny_temperatures_are_greedy_in_bfloat16(served_model: Path) -> None:
    flags = ("--port", "0", "--n-slots", "1024", "-t", "1", "--dtype", "bfloat16", "--kv-cache-dtype", "bfloat16")
    serve = Serve(str(served_model), *flags)
    greedy = serve.text(temperature=0, max_tokens=7)
    for temperature in (1e-4, 1e-5, 1e-6, 1e-7, 1e-38, 5e-324, -0.0):
        assert serve.text(temperature=temperature, max_tokens=7) == greedy
    for temperature in (2.01, -1):
        assert serve.post("/v1/completions", prompt="ab", temperature=temperature).status_code == 400
    assert serve.text(temperature=2, seed=1, max_tokens=7) == serve.text(temperature=2, seed=1, max_tokens=7)
    assert serve.stop() == 0


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


def test_b40_the_same_request_alone_and_among_others(serve: Serve) -> None:
    prompts = ["ab", "x" * 200, "q", "once upon a time " * 5]
    alone = [serve.text(p, max_tokens=64) for p in prompts]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda p: serve.text(p, max_tokens=64), prompts * 4))
    assert together == alone * 4


def test_b46_end_of_text(serve: Serve) -> None:
    ended = serve.complete(max_tokens=9, ignore_eos=False, logit_bias={"2": 100})["choices"][0]
    assert ended["text"] == "" and ended["finish_reason"] == "stop"
    past = serve.complete(max_tokens=9, ignore_eos=True, logit_bias={"2": 100})
    assert past["choices"][0]["finish_reason"] == "length" and past["usage"]["completion_tokens"] == 9


def test_b37_early_disconnects_leave_nothing(serve: Serve, within: Callable[[float, Callable[[], bool]], bool]) -> None:
    host, port = serve.base.removeprefix("http://").split(":")
    for i in range(120):
        body = {"model": serve.model, "prompt": "ab", "max_tokens": 400, "ignore_eos": True, "stream": i % 3 != 0}
        raw = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}"
        )
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(head.encode() + b"\r\n\r\n" + raw)
            if i % 3 == 1:
                connection.recv(4096)
            if i % 2:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert within(3, lambda: serve.metric("orcaserve_kv_slots_reserved") == 0)
    started, ends = serve.metric("orcaserve_requests_started_total"), serve.http.get("/metrics").text
    assert started == sum(float(v) for v in re.findall(r"^orcaserve_requests_finished_total{.*} (\S+)$", ends, re.M))


def test_openai_client(serve: Serve) -> None:
    with openai.OpenAI(base_url=f"{serve.base}/v1", api_key="none") as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        whole = client.chat.completions.create(model=serve.model, messages=messages, max_tokens=9, temperature=0)
        with client.chat.completions.create(
            model=serve.model, messages=messages, max_tokens=9, temperature=0, stream=True
        ) as stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == whole.choices[0].message.content


def finish_order(serve: Serve) -> list[str]:
    """A long request, and a short one that comes when the long one has begun: who ends first?"""
    order: list[str] = []

    def run(name: str, max_tokens: int) -> None:
        serve.text(max_tokens=max_tokens)
        order.append(name)

    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(run, "long", 4000)
        while serve.metric("orcaserve_kv_slots_reserved") == 0:
            assert not long.done()
        pool.submit(run, "short", 4).result()
        long.result()
    return order


def test_scheduling_is_per_iteration(served_model: Path) -> None:
    """With room for two, the later request joins the running one's batch and ends first; with room for one it waits."""
    flags = [str(served_model), "--port", "0", "--n-slots", "8192", "-t", "1", "--max-num-seqs"]
    two = Serve(*flags, "2")
    assert finish_order(two) == ["short", "long"]
    two.stop()
    one = Serve(*flags, "1")
    assert finish_order(one) == ["long", "short"]
    one.stop()


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
    serve = Serve(str(served_model), "--port", "0", "--n-slots", "4096", "-t", "1")
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
