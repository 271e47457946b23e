"""HTTP: content types, bodies that are no JSON object, models and routes that are not there; at every POST route."""

from __future__ import annotations

import gzip
import json
import socket
from typing import Any

import pytest
from case_server import CHAT, COMPLETIONS, MESSAGES, SECRET, Server, refused

BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"model": "M", "prompt": "count", "max_tokens": 2},
    CHAT: {"model": "M", "messages": MESSAGES, "max_tokens": 2},
    "/tokenize": {"prompt": "count"},
    "/detokenize": {"tokens": [5]},
}
POST_ROUTES = sorted(BODIES)


def raw_body(path: str, **fields: Any) -> bytes:
    return json.dumps({**BODIES[path], **fields}).encode()


@pytest.mark.parametrize("path", POST_ROUTES)
@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "application/JSON",
                                  'APPLICATION/json ;charset="UTF-8"'])  # fmt: skip
def test_b33_json_in_any_spelling(gpt2: Server, path: str, kind: str) -> None:
    answer = gpt2.http.post(path, content=raw_body(path), headers={"content-type": kind})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", POST_ROUTES)
@pytest.mark.parametrize("kind", [None, "", "text/plain", "application/json; charset=utf-16", "text/json",
                                  "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])  # fmt: skip
def test_b33_other_types(gpt2: Server, path: str, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    refused(gpt2.http.post(path, content=raw_body(path, user=SECRET), headers=headers), None, 415)


NO_OBJECTS = {
    "empty": b"", "blank": b" ", "list": b"[]", "null": b"null", "number": b"1", "string": b'"sesame-open-7f3a"',
    "true": b"true", "truncated": b'{"model":"M","prompt":"sesame-open-7f3a"', "two": b'{"a":1} {"b":2}',
    "duplicate key": b'{"model":"M","prompt":"a","prompt":"sesame-open-7f3a"}',
    "duplicate within": b'{"model":"M","logit_bias":{"1":1,"1":2}}', "deep list": b"[" * 20_000,
    "deep object": b'{"a":' * 1000 + b"1" + b"}" * 1000, "no UTF-8": b'{"model":"M","prompt":"\xff\xfe"}',
    "BOM": b'\xef\xbb\xbf{"model":"M"}', "UTF-16": '{"model":"M"}'.encode("utf-16"),
    "compressed": gzip.compress(b'{"model":"M"}'), "single quotes": b"{'model':'M'}", "comma": b'{"model":"M",}',
    "comment": b'{"model":"M"/* sesame-open-7f3a */}', "long number": b'{"n":' + b"9" * 5000 + b"}", "NUL": b"\x00",
    "form": b"model=sesame-open-7f3a",
}  # fmt: skip


@pytest.mark.parametrize("path", POST_ROUTES)
@pytest.mark.parametrize("kind", NO_OBJECTS)
def test_b34_bodies_that_are_no_object(gpt2: Server, path: str, kind: str) -> None:
    refused(gpt2.send(NO_OBJECTS[kind], path), None)


def test_b34_compression_that_is_declared(gpt2: Server) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    refused(gpt2.http.post(COMPLETIONS, content=gzip.compress(raw_body(COMPLETIONS)), headers=headers), None, 415)


def test_b34_the_depth_that_is_allowed(gpt2: Server) -> None:
    """64 with the body itself; brackets inside of strings do not count."""
    good = b'{"model":"M","prompt":"[[[{{{","max_tokens":1,"x":' + b"[" * 63 + b"]" * 63 + b"}"
    assert gpt2.send(good).status_code == 200
    refused(gpt2.send(good.replace(b"[" * 63 + b"]" * 63, b"[" * 64 + b"]" * 64)), None)


def test_b34_one_byte_over_the_limit(gpt2: Server) -> None:
    """4 MiB, for every route; the body just as long is read and checked."""
    limit = 4 * 2**20
    for path in POST_ROUTES:
        short = raw_body(path, pad="")
        exact = short.replace(b'"pad": ""', b'"pad": "' + b"a" * (limit - len(short)) + b'"')
        assert len(exact) == limit
        assert gpt2.send(exact, path).status_code == 200
        error = refused(gpt2.send(exact + b" ", path), None, 413)
        assert error["code"] == "body_too_large"


def spoken(server: Server, sent: bytes) -> bytes:
    """What the server says to these bytes until it closes."""
    host, port = server.base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(sent)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


HEAD = "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{length}\r\n\r\n"


@pytest.mark.parametrize("path", POST_ROUTES)
def test_b34_a_gigabyte_is_refused_before_it_comes(gpt2: Server, path: str) -> None:
    answer = spoken(gpt2, HEAD.format(path=path, length=f"content-length: {2**30}").encode() + b"{")
    assert answer.startswith(b"HTTP/1.1 413 ") and b"connection: close" in answer.lower()


def test_b34_chunks_without_end(gpt2: Server) -> None:
    """Refused as soon as they are too many."""
    chunks = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
    answer = spoken(gpt2, HEAD.format(path=COMPLETIONS, length="transfer-encoding: chunked").encode() + chunks * 70)
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_b34_a_length_that_is_wrong(gpt2: Server) -> None:
    body = raw_body(COMPLETIONS)
    head = HEAD.format(path=COMPLETIONS, length=f"content-length: {len(body) - 5}\r\nconnection: close").encode()
    answer = spoken(gpt2, head + body)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1
    for length in ("-5", "5\r\ncontent-length: 6", "5\r\ntransfer-encoding: chunked", "0x10", "1e3"):
        head = HEAD.format(path=COMPLETIONS, length=f"content-length: {length}").encode()
        assert spoken(gpt2, head + b"hello").startswith(b"HTTP/1.1 400 ")


UNKNOWN_MODELS = [SECRET, "nope", "", 5, 1.5, None, [], {}, True, "m", "M ", SECRET + "x" * 2**20, ...]


@pytest.mark.parametrize("model", UNKNOWN_MODELS, ids=lambda model: repr(model)[:10])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_b36_unknown_models(gpt2: Server, path: str, model: Any) -> None:
    for stream in (False, True):
        error = refused(gpt2.ask(path, model=model, stream=stream), "model", 404)
        assert error["code"] == "model_not_found"
    assert gpt2.answer(path)["model"] == "M"
    assert gpt2.http.get(f"/v1/models/{SECRET}").status_code == 404


def test_b36_the_model_is_named_in_every_event(gpt2: Server) -> None:
    for path in (COMPLETIONS, CHAT):
        frames = gpt2.ask(path, stream=True).text.split("\n\n")[:-2]
        assert {json.loads(frame.removeprefix("data: "))["model"] for frame in frames} == {"M"}


@pytest.mark.parametrize("path", POST_ROUTES)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH"])
def test_b36_another_method(gpt2: Server, method: str, path: str) -> None:
    answer = gpt2.http.request(method, path)
    allowed = answer.headers["allow"].split(", ")
    assert answer.status_code == 405 and allowed == ["POST", "OPTIONS"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/M", "/health", "/live", "/ready", "/metrics", "/docs"])
def test_b36_a_post_where_there_is_none(gpt2: Server, path: str) -> None:
    answer = gpt2.send(raw_body(COMPLETIONS, user=SECRET), path)
    assert answer.status_code == 405 and "GET" in answer.headers["allow"]


@pytest.mark.parametrize(
    "path", ["/web/", "/v1", "/v1/", "/v1/completions/", f"/{SECRET}", "/etc/passwd", "/V1/MODELS"]
)
def test_b36_unknown_paths(gpt2: Server, path: str) -> None:
    assert gpt2.http.get(path).status_code == gpt2.send(raw_body(COMPLETIONS), path).status_code == 404


def test_b36_unknown_fields_are_named_in_a_header(gpt2: Server) -> None:
    for path in (COMPLETIONS, CHAT):
        answer = gpt2.ask(path, frobnicate=SECRET)
        assert answer.status_code == 200 and "frobnicate" in answer.headers["x-orcaserve-ignored-fields"]
        assert SECRET not in str(answer.headers)
