"""The real application under the real HTTP server on a loopback port, over an engine that plays a script."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from orcaserve.config import ServingConfig
from orcaserve.control_plane.token_stream import TokenStream
from orcaserve.core import (
    Began,
    EngineFacts,
    EngineStatus,
    FinishReason,
    IterationReport,
    LiveRequest,
    LiveRequests,
    LiveState,
    Logprobs,
    Pooling,
    Progress,
    Request,
    TokenLogprobs,
)
from orcaserve.serving.app import App
from orcaserve.serving.endpoint import HttpServer, _loop_factory
from orcaserve.serving.service import Service
from orcaserve.text.tokenizer import Tokenizer

MODEL = "tiny"
CONTEXT = 128
EMBEDDING_SIZE = 8
Script = Callable[[Request, int], int]  # the n-th token of a request


def told_of(position: int, token: int, n_top: int, vocab_size: int) -> TokenLogprobs:
    """What this engine says of a token at that position of the text: 1/8 off per step, the likeliest ones from 0 down.

    Every third token is not among the likeliest.
    """
    beside = token % 3 == 0
    ids = [(token + i + beside) % vocab_size for i in range(n_top)]
    logprob = -(position % 5) / 8 - 4 * beside
    return TokenLogprobs(logprob, 1 + 30 * beside, ids, [-(position % 5) / 8 - i / 8 for i in range(n_top)])


TOLD = {"of": told_of}  # what engines say


def _logprobs(request: Request, token: int) -> Logprobs | None:
    params, ids = request.params, request.input_ids
    if params.logprobs is None and params.prompt_logprobs is None:
        return None
    at = len(ids) + len(request.output)
    own = None
    if params.logprobs is not None and params.max_tokens:
        own = TOLD["of"](at + request.seed % 7, token, params.logprobs, 420)
    prompt = []
    if params.prompt_logprobs is not None and not request.output:
        prompt = [TOLD["of"](i, ids[i], params.prompt_logprobs, 420) for i in range(1, len(ids))]
    return Logprobs(own, prompt)


def pooled_of(request: Request) -> bytes:
    """What this engine makes of a text's tokens and the kind of pooling."""
    assert request.params.pooling is not None and request.params.max_tokens == 0
    turn = sum(request.input_ids) + (request.params.pooling is Pooling.MEAN)
    return struct.pack(f"<{EMBEDDING_SIZE}f", *(3 * math.cos(turn * (i + 1)) for i in range(EMBEDDING_SIZE)))


class FakeEngine:
    """Stands for the Supervisor: gives each live request one token a tick, by a script, as an engine would.

    pause: no ticks while set. admit: requests wait unanswered while False. cancelled: ids the endpoint gave up.
    """

    def __init__(self, vocab_size: int, script: Script) -> None:
        self.facts = EngineFacts(MODEL, vocab_size, CONTEXT, 512, 8, 1, frozenset({0}), embedding_size=EMBEDDING_SIZE)
        self.status = EngineStatus()
        self.last_report = time.monotonic()
        self.closed = asyncio.Event()
        self.on_report: Callable[[IterationReport], None] | None = None
        self.on_restart: Callable[[], None] = lambda: None
        self.present = True
        self.script = script
        self.seconds_per_token = 0.001
        self.pause = False
        self.refuse: str | None = None
        self.fail_after: int | None = None
        self.seen: list[Request] = []
        self.cancelled: list[int] = []
        self.listener: Callable[[bytes], None] | None = None
        self.n_watches = 0  # how often a header was asked for
        self.n_left_out = 0
        self._live: dict[int, tuple[Request, TokenStream]] = {}

    def watch(self, listener: Callable[[bytes], None] | None) -> None:
        self.listener = listener
        if listener is not None:
            self.n_watches += 1
            listener(b'{"kind":"orcaserve-schedule","part":%d}\n' % self.n_watches)

    async def describe(self) -> LiveRequests:
        live = [
            LiveRequest(i, LiveState.INCREMENT, 0.5, r.n_input, len(r.output), 32, r.n_input)
            for i, (r, _) in self._live.items()
        ]
        return LiveRequests(live, self.n_left_out)

    @property
    def replicas(self) -> list[FakeEngine]:
        return [self]

    @property
    def n_open(self) -> int:
        return len(self._live)

    def submit(self, request: Request) -> TokenStream:
        stream = TokenStream(request.id)
        self.seen.append(request)
        self._live[request.id] = (request, stream)
        return stream

    def cancel(self, request_id: int) -> None:
        self.cancelled.append(request_id)
        if request_id in self._live:
            self._end(request_id, FinishReason.CANCELLED)

    def _end(self, request_id: int, reason: FinishReason, error: str | None = None, token: int | None = None) -> None:
        _, stream = self._live.pop(request_id)
        stream.put(Progress(request_id, token, reason, error))

    async def run(self) -> None:
        self.iteration = 0
        while True:
            await asyncio.sleep(self.seconds_per_token)
            if self.pause or not self._live:
                continue
            self.iteration += 1
            batch = list(self._live.items())
            for request_id, (request, stream) in batch:
                if self.refuse is not None:
                    self._end(request_id, FinishReason.ERROR, self.refuse)
                    continue
                if self.fail_after is not None and len(request.output) >= self.fail_after:
                    self._end(request_id, FinishReason.ERROR, "the worker was lost")
                    continue
                logprobs = _logprobs(request, token := self.script(request, len(request.output)))
                if request.params.max_tokens == 0:
                    del self._live[request_id]
                    began = Began(0.0)
                    embedding = pooled_of(request) if request.params.pooling else None
                    stream.put(Progress(request_id, None, FinishReason.LENGTH, None, logprobs, began, embedding))
                    continue
                began = None if request.output else Began(0.0)
                request.output.append(token)
                reason = request.finish_reason_after(token)
                if reason is not None:
                    del self._live[request_id]
                stream.put(Progress(request_id, token, reason, logprobs=logprobs, began=began))
            live = len(self._live)
            self.status = EngineStatus(
                self.iteration, len(batch), 0, live, 16 * live, 8 * live, len(batch), 0, 0.001, 0.001
            )
            self.last_report = time.monotonic()
            if self.on_report is not None:
                self.on_report(IterationReport([], self.status))


class Server:
    """A running endpoint, used from the test's thread."""

    def __init__(self, tokenizer: Tokenizer, script: Script, **settings: Any) -> None:
        self.tokenizer = tokenizer
        self._started = threading.Event()
        self._settings = settings
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        self.base = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(10)
        self.http = httpx.Client(base_url=self.base, timeout=20)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        traces = self._settings.pop("traces", None)
        self.app = App(ServingConfig(**self._settings), traces)
        self.engine = FakeEngine(self.tokenizer.vocab_size, self._script)
        self.app.service = self.service = Service(self.engine, self.tokenizer, MODEL, self.app.config)
        self._server = HttpServer(self.app, self.app.config.write_timeout)
        engine = asyncio.create_task(self.engine.run())
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started:  # noqa: ASYNC110  (uvicorn has no event for it)
            await asyncio.sleep(0.01)
        self._started.set()
        await serving
        self.app.drain()
        await self.app.close()
        engine.cancel()

    def close(self) -> None:
        self.http.close()
        self.engine.pause = False
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """`body`: bytes as they are, anything else as JSON."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(path, content=raw, headers={"content-type": "application/json", **headers})

    def complete(self, **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"model": MODEL, "prompt": "the", "temperature": 0, **fields})

    def chat(self, *messages: Any, **fields: Any) -> httpx.Response:
        listed = list(messages) or [{"role": "user", "content": "hi"}]
        return self.post("/v1/chat/completions", {"model": MODEL, "messages": listed, **fields})

    def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a stream, without [DONE], which must come last and once."""
        response = self.post(path, {"model": MODEL, **body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        frames = [frame for frame in response.text.split("\n\n") if frame]
        assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
        assert frames[-1] == "data: [DONE]" and "data: [DONE]" not in frames[:-1]
        return [json.loads(frame[6:]) for frame in frames[:-1]]

    @contextlib.contextmanager
    def connection(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as raw:
            yield raw

    def send_raw(self, data: bytes, *, wait: bool = True) -> bytes:
        """Send bytes, return everything the server says until it closes (or is silent for long)."""
        with self.connection() as raw:
            raw.sendall(data)
            answer = b""
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while wait and (part := raw.recv(65536)):
                    answer += part
            return answer

    def wait_until(self, condition: Callable[[], bool], seconds: float = 5.0) -> float:
        start = time.monotonic()
        while not condition():
            assert time.monotonic() - start < seconds, "it did not happen"
            time.sleep(0.005)
        return time.monotonic() - start

    def on_loop(self, work: Callable[[], Any]) -> Any:
        """Call something on the server's event loop, and wait for what it gives."""

        async def call() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(10)

    def check_well(self) -> None:
        """What must hold after every case: healthy, nothing left running, a known request gives its known text."""
        self.wait_until(lambda: self.engine.n_open == 0)
        assert self.http.get("/health").status_code == 200
        answer = self.complete(max_tokens=6)
        assert answer.status_code == 200 and answer.json()["choices"][0]["text"] == self.known_text


@pytest.fixture(scope="session")
def served_tokenizer(byte_level_metadata: dict[str, Any]) -> Tokenizer:
    from orcaserve.text.gguf_tokenizer import tokenizer_from_metadata

    template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
        "<|user|>{{ m.role }}:{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|user|>{% endif %}"
    )
    return tokenizer_from_metadata({**byte_level_metadata, "tokenizer.chat_template": template})


def make_server(tokenizer: Tokenizer, **settings: Any) -> Server:
    loop = tokenizer.encode(" the quick fox 汉 dog")

    def script(request: Request, n: int) -> int:
        return loop[n % len(loop)]

    server = Server(tokenizer, script, **settings)
    server.known_text = tokenizer.decode(loop[:6])
    server.script_ids, server.told, server.pooled_of = loop, TOLD, pooled_of
    return server


@pytest.fixture(scope="module")
def shared_server(served_tokenizer: Tokenizer) -> Iterator[Server]:
    server = make_server(served_tokenizer, body_timeout=1.0, max_body_bytes=100_000, write_timeout=1.0)
    yield server
    server.close()


@pytest.fixture(scope="module")
def large(served_tokenizer: Tokenizer) -> Iterator[Server]:
    """A server with the usual limits."""
    server = make_server(served_tokenizer)
    yield server
    server.close()


@pytest.fixture(scope="module")
def strict(served_tokenizer: Tokenizer) -> Iterator[Server]:
    server = make_server(served_tokenizer, strict=True)
    yield server
    server.close()


@pytest.fixture(scope="module")
def keeping(served_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that keeps files."""
    server = make_server(served_tokenizer, files_dir=tmp_path_factory.mktemp("files"), max_files_bytes=2**20)
    yield server
    server.close()


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The module's server, put back as it was and checked after each test."""
    engine = shared_server.engine
    engine.seen.clear()
    engine.cancelled.clear()
    script = engine.script
    yield shared_server
    engine.pause, engine.refuse, engine.fail_after, engine.script = False, None, None, script
    engine.seconds_per_token = 0.001
    shared_server.check_well()


@pytest.fixture(name="told_of")
def _told_of() -> Callable[..., TokenLogprobs]:
    return told_of


@pytest.fixture
def other_server(served_tokenizer: Tokenizer) -> Iterator[Callable[..., Server]]:
    """Start servers with settings of their own."""
    servers: list[Server] = []

    def start(**settings: Any) -> Server:
        servers.append(make_server(served_tokenizer, **settings))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
