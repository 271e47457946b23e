"""The client of the HTTP benchmarks, against a server that says what it is told."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from stream_client import StreamClient

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = b'data: {"choices":[{"text":"a"}],"usage":null}\n\n'
LAST = b'data: {"choices":[],"usage":{"completion_tokens":7}}\n\n' + b"data: [DONE]\n\n"
Start = Callable[[Sequence[bytes]], str]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


WHOLE = HEAD + chunk(EVENTS) + chunk(EVENTS[:20]) + chunk(EVENTS[20:] + LAST) + b"0\r\n\r\n"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server that answers its one request with these parts, one after the other, and closes."""
    threads = []

    def start(parts: Sequence[bytes]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            with listener, listener.accept()[0] as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                assert connection.recv(65536).startswith(b"POST /v1/completions HTTP/1.1")
                for part in parts:
                    connection.sendall(part)
                    time.sleep(0.003)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for thread in threads:
        thread.join(5)


def ask(base: str) -> int:
    with StreamClient(base, 1) as client:
        seconds, [answer] = client.run("/v1/completions", [{"stream": True}])
    assert 0 < seconds < 5
    return answer.usage()


@pytest.mark.parametrize("cut", [len(WHOLE), len(WHOLE) - 1, len(WHOLE) - 4, len(HEAD) + 2])
def test_a_whole_stream_however_it_is_cut(start: Start, cut: int) -> None:
    assert ask(start([WHOLE[:cut], WHOLE[cut:]])) == 7


def test_the_end_byte_by_byte(start: Start) -> None:
    assert ask(start([WHOLE[:-6], *(WHOLE[i : i + 1] for i in range(len(WHOLE) - 6, len(WHOLE)))])) == 7


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        HEAD + chunk(EVENTS),
        HEAD + chunk(EVENTS) + b"0\r\n\r\n",
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}",
    ],
    ids=["nothing", "cut", "not done", "refused"],
)
def test_anything_else_is_noticed(start: Start, answer: bytes) -> None:
    with pytest.raises(ValueError):
        ask(start([answer]))
