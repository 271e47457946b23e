"""Triton's, KServe's and TensorFlow Serving's protocols, byte by byte: completions' texts, errors in their form."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import httpx
import pytest

GENERATE = "/v2/models/tiny/generate"
INFER = "/v2/models/tiny/infer"
PREDICT = "/tfs/v1/models/tiny:predict"
GREEDY = {"max_tokens": 6, "temperature": 0}


def error_of(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["error"] and isinstance(body["error"], str) and body["error"]
    text: str = body["error"]
    return text


# Triton's generate extension


@pytest.mark.parametrize("path", [GENERATE, "/v2/models/tiny/versions/1/generate"])
def test_generate(server: Any, path: str) -> None:
    answer = server.post(path, {"text_input": "the", "parameters": GREEDY})
    assert answer.status_code == 200
    assert answer.json() == {"model_name": "tiny", "model_version": "1", "text_output": server.known_text}
    beside = server.post(path, {"id": "a1", "text_input": "the", **GREEDY})
    assert beside.json()["text_output"] == server.known_text and beside.json()["id"] == "a1"


def test_generate_stream(server: Any) -> None:
    whole = server.complete(max_tokens=40).json()["choices"][0]["text"]
    body = {"text_input": "the", "parameters": {"max_tokens": 40, "temperature": 0, "stream": True}}
    answer = server.post("/v2/models/tiny/generate_stream", body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = answer.text.split("\n\n")
    assert frames.pop() == "" and all(frame.startswith("data: {") for frame in frames)  # no [DONE] either
    events = [json.loads(frame[6:]) for frame in frames]
    assert len(events) > 20 and all(set(e) == {"model_name", "model_version", "text_output"} for e in events)
    assert "".join(event["text_output"] for event in events) == whole


def test_generate_takes_tritons_names(server: Any) -> None:
    stop = server.known_text[3:5]
    cut = server.post(GENERATE, {"text_input": "the", "parameters": {**GREEDY, "stop_words": [stop]}}).json()
    assert cut["text_output"] == server.known_text.split(stop)[0]
    assert server.post(GENERATE, {"text_input": "the", **GREEDY, "exclude_input_in_output": True}).status_code == 200
    server.post(GENERATE, {"text_input": "the", "random_seed": 7, "max_tokens": 1})
    server.complete(seed=7, max_tokens=1)
    assert len({request.seed for request in server.engine.seen[-2:]}) == 1


@pytest.mark.parametrize("content_type", [None, "application/json", "application/x-www-form-urlencoded", "text/plain"])
def test_no_content_type_is_asked_for(server: Any, content_type: str | None) -> None:
    """`curl -d` and the clients send others, or none. Of a browser it is: pages of others can make it send those."""
    headers = {} if content_type is None else {"content-type": content_type}
    raw = json.dumps({"text_input": "the", **GREEDY}).encode()
    assert server.http.post(GENERATE, content=raw, headers=headers).status_code == 200
    answer = server.http.post(GENERATE, content=raw, headers={**headers, "origin": "http://evil.example"})
    if content_type == "application/json":
        assert answer.status_code == 200
    else:
        error_of(answer, 415)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({}, 400, "text_input"),
        ({"text_input": 5}, 400, "text_input"),
        ({"text_input": ["a"]}, 400, "text_input"),
        ({"text_input": "a", "id": 5}, 400, "id"),
        ({"text_input": "a", "parameters": 5}, 400, "parameters"),
        ({"text_input": "a", "parameters": {"max_tokens": 0.5}}, 400, "max_tokens"),
        ({"text_input": "a", "parameters": {"temperature": -1}}, 400, "temperature"),
        ({"text_input": "a", "max_tokens": 3, "parameters": {"max_tokens": 3}}, 400, "twice"),
        ({"text_input": "a", "parameters": {"stop": "x", "stop_words": "x"}}, 400, "twice"),
        ({"text_input": "a", "parameters": {"stream": True}}, 400, "generate_stream"),
        ({"text_input": "a", "parameters": {"n": 2}}, 400, "n must be 1"),
        ({"text_input": "a", "parameters": {"logprobs": 2}}, 400, "logprobs"),
        ({"text_input": "a", "parameters": {"model": "tiny"}}, 400, "model"),
        ({"text_input": "a", "parameters": {"exclude_input_in_output": 1}}, 400, "true or false"),
        ({"text_input": "x" * 9000}, 400, "characters"),
        ({"text_input": "a", "max_tokens": 500}, 400, "128"),
        (b"[]", 400, "object"),
        (b"{", 400, "JSON"),
        (b"", 400, "JSON"),
        (b'{"text_input":"a","max_tokens":NaN}', 400, "NaN"),
    ],
)
@pytest.mark.parametrize("path", [GENERATE, "/v2/models/tiny/generate_stream"])
def test_generate_refuses(server: Any, path: str, body: Any, status: int, says: str) -> None:
    if path.endswith("stream") and says == "generate_stream":
        return
    assert says in error_of(server.post(path, body), status)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v2/models/nope/generate", 404), ("POST", "/v2/models/tiny/versions/2/generate", 404),
        ("POST", "/v2/models/nope/infer", 404), ("GET", "/v2/models/nope", 404), ("GET", "/v2/models/nope/ready", 404),
        ("GET", "/v2/models/tiny/versions/7", 404), ("GET", "/v2/models/nope/config", 404), ("GET", "/v2/x", 404),
        ("GET", GENERATE, 405), ("GET", INFER, 405), ("PUT", "/v2", 405), ("DELETE", "/v2/models/tiny", 405),
        ("GET", PREDICT, 405), ("GET", "/tfs/v1/models/nope", 404), ("POST", "/tfs/v1/models/nope:predict", 404),
        ("POST", "/tfs/v1/models/tiny/versions/2:predict", 404), ("GET", "/tfs/x", 404), ("GET", "/tfs/v1/models", 404),
    ],
)  # fmt: skip
def test_wrong_paths_in_their_form(server: Any, method: str, path: str, status: int) -> None:
    body = {
        "text_input": "a",
        "instances": ["a"],
        "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]}],
    }
    error_of(server.http.request(method, path, json=body if method == "POST" else None), status)


def test_a_failure_in_the_engine_in_their_form(server: Any) -> None:
    server.engine.refuse = "it broke"
    assert error_of(server.post(GENERATE, {"text_input": "a"}), 503) == "it broke"
    assert error_of(server.post(PREDICT, {"instances": ["a"]}), 503) == "it broke"
    server.engine.refuse, server.engine.fail_after = None, 3
    answer = server.post("/v2/models/tiny/generate_stream", {"text_input": "a", "max_tokens": 9})
    assert answer.status_code == 200
    *frames, last = [frame for frame in answer.text.split("\n\n") if frame]
    assert json.loads(last[6:]) == {"error": "the worker was lost"} and frames


def test_a_body_that_is_too_large_in_their_form(server: Any) -> None:
    assert "100000" in error_of(server.post(GENERATE, {"text_input": "a" * 200_000}), 413)


def test_cancelled_and_left(server: Any) -> None:
    """They are the requests that all others are: cancelled by id, and when their client leaves."""
    server.engine.seconds_per_token = 0.02
    raw = json.dumps({"text_input": "the", "max_tokens": 100}).encode()
    head = f"POST {GENERATE}_stream HTTP/1.1\r\nhost: x\r\nx-request-id: t1\r\ncontent-length: {len(raw)}\r\n\r\n"
    with server.connection() as connection:
        connection.sendall(head.encode() + raw)
        connection.recv(1000)
        assert server.http.post("/v1/requests/t1/cancel").status_code == 200
        while not connection.recv(65536).endswith(b"0\r\n\r\n"):
            pass
    assert len(server.engine.cancelled) == 1
    with server.connection() as connection:
        connection.sendall(head.encode() + raw)
        connection.recv(1000)
    server.wait_until(lambda: server.engine.n_open == 0)
    assert len(server.engine.cancelled) == 2


# KServe v2


def test_health_and_metadata(server: Any) -> None:
    assert server.http.get("/v2/health/live").status_code == server.http.get("/v2/health/ready").status_code == 200
    about = server.http.get("/v2").json()
    assert about["name"] == "orcaserve" and "binary_tensor_data" in about["extensions"]
    for path in ("/v2/models/tiny", "/v2/models/tiny/versions/1"):
        model = server.http.get(path).json()
        assert model["name"] == "tiny" and model["versions"] == ["1"]
        assert {"name": "text_input", "datatype": "BYTES", "shape": [-1]} in model["inputs"]
        assert model["outputs"] == [{"name": "text_output", "datatype": "BYTES", "shape": [-1]}]
        assert server.http.get(f"{path}/ready").status_code == 200
        assert server.http.get(f"{path}/config").json()["input"][0]["data_type"] == "TYPE_STRING"


def test_not_ready(other_server: Any) -> None:
    server = other_server()
    server.engine.present = False
    for path in ("/v2/health/ready", "/v2/models/tiny/ready"):
        error_of(server.http.get(path), 503)
    assert server.http.get("/v2/health/live").status_code == 200
    assert server.http.get("/tfs/v1/models/tiny").json()["model_version_status"][0]["state"] == "LOADING"
    server.app.service = None
    for path in ("/v2/health/ready", "/v2/models/tiny/ready", "/v2/models/tiny", "/tfs/v1/models/tiny"):
        error_of(server.http.get(path), 503)


def text_tensor(*texts: str, shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": "text_input", "datatype": "BYTES", "shape": shape or [len(texts)], "data": list(texts)}


def number(name: str, datatype: str, value: Any, shape: tuple[int, ...] = (1,)) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": [value]}


SIX = [number("max_tokens", "INT32", 6), number("temperature", "FP32", 0.0)]


def test_infer_as_json(server: Any) -> None:
    answer = server.post(INFER, {"id": "q", "inputs": [text_tensor("the"), *SIX]})
    assert answer.json() == {
        "model_name": "tiny",
        "model_version": "1",
        "id": "q",
        "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [1], "data": [server.known_text]}],
    }
    two = server.post(INFER, {"inputs": [text_tensor("the", "fox", shape=[2, 1])], "parameters": GREEDY}).json()
    assert two["outputs"][0]["shape"] == [2, 1] and len(two["outputs"][0]["data"]) == 2
    nested = {"name": "text_input", "datatype": "BYTES", "shape": [2, 1], "data": [["the"], ["fox"]]}
    assert server.post(INFER, {"inputs": [nested], "parameters": GREEDY}).json()["outputs"] == two["outputs"]
    settings = number("sampling_parameters", "BYTES", json.dumps(GREEDY))
    assert server.post(INFER, {"inputs": [text_tensor("the"), settings]}).json()["outputs"][0]["data"] == [
        server.known_text
    ]


def element(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()


def binary(request: dict[str, Any], *parts: bytes) -> tuple[bytes, dict[str, str]]:
    head = json.dumps(request).encode()
    return head + b"".join(parts), {"inference-header-content-length": str(len(head))}


def binary_tensor(name: str, datatype: str, shape: list[int], size: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


def test_infer_with_bytes(server: Any) -> None:
    texts = element("the") + element("fox ü")
    tensors = [
        binary_tensor("text_input", "BYTES", [2], len(texts)),
        binary_tensor("max_tokens", "INT32", [1], 4),
        binary_tensor("temperature", "FP32", [1, 1], 4),
    ]
    request = {"inputs": tensors, "outputs": [{"name": "text_output", "parameters": {"binary_data": True}}]}
    raw, headers = binary(request, texts, struct.pack("<i", 6), struct.pack("<f", 0))
    answer = server.http.post(INFER, content=raw, headers=headers)
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/octet-stream"
    length = int(answer.headers["inference-header-content-length"])
    said, rest = json.loads(answer.content[:length]), answer.content[length:]
    [output] = said["outputs"]
    assert output["shape"] == [2] and output["parameters"]["binary_data_size"] == len(rest) and "data" not in output
    assert rest.startswith(element(server.known_text))
    # Without named outputs, all of them as the request says; input as JSON
    asked = {"inputs": [text_tensor("the")], "parameters": {**GREEDY, "binary_data_output": True}}
    answer = server.post(INFER, asked)
    assert answer.content[int(answer.headers["inference-header-content-length"]) :] == element(server.known_text)


BAD_INFERENCES: list[tuple[Any, str]] = [
    ({}, "inputs"),
    ({"inputs": []}, "inputs"),
    ({"inputs": 5}, "inputs"),
    ({"inputs": [5]}, "object"),
    ({"inputs": [number("max_tokens", "INT32", 6)]}, "text_input"),
    ({"inputs": [text_tensor("a"), text_tensor("b")]}, "same name"),
    ({"inputs": [{**text_tensor("a"), "datatype": "STRING"}]}, "datatype"),
    ({"inputs": [{**text_tensor("a"), "datatype": "INT32"}]}, "fit its datatype"),
    ({"inputs": [text_tensor("a", shape=[2])]}, "as many elements"),
    ({"inputs": [text_tensor("a", shape=[-1])]}, "shape"),
    ({"inputs": [text_tensor("a", shape=[1] * 9)]}, "shape"),
    ({"inputs": [text_tensor("a", shape=[2**40, 2**40])]}, "at most"),
    ({"inputs": [{**text_tensor(), "shape": [0]}]}, "text_input"),
    ({"inputs": [{**text_tensor("a"), "data": "a"}]}, "list"),
    ({"inputs": [text_tensor("a"), number("max_tokens", "INT32", 6, (2,))]}, "as many"),
    ({"inputs": [text_tensor("a"), number("max_tokens", "INT32", True)]}, "datatype"),
    ({"inputs": [text_tensor("a"), number("sampling_parameters", "BYTES", "[1]")]}, "sampling_parameters"),
    ({"inputs": [text_tensor("a"), number("sampling_parameters", "FP32", 1)]}, "sampling_parameters"),
    ({"inputs": [text_tensor("a"), number("stream", "BOOL", True)]}, "generate_stream"),
    ({"inputs": [text_tensor("a")], "outputs": [{"name": "logits"}]}, "no such output"),
    ({"inputs": [text_tensor("a")], "outputs": [{"name": "text_output"}, {"name": "text_output"}]}, "outputs"),
    ({"inputs": [text_tensor("a")], "parameters": []}, "parameters"),
    ({"inputs": [text_tensor("a")], "id": 4}, "id"),
    ({"inputs": [text_tensor(*["a"] * 1025)]}, "at most"),
    ({"inputs": [binary_tensor("text_input", "BYTES", [1], 5)]}, "past the end"),
    ({"inputs": [binary_tensor("text_input", "BYTES", [1], -5)]}, "binary_data_size"),
    ({"inputs": [{**binary_tensor("text_input", "BYTES", [1], 0), "data": []}]}, "not both"),
]


@pytest.mark.parametrize(("body", "says"), BAD_INFERENCES)
def test_infer_refuses(server: Any, body: Any, says: str) -> None:
    assert says in error_of(server.post(INFER, body), 400)


@pytest.mark.parametrize(
    ("rest", "size", "says"),
    [
        (b"\x03\x00\x00", 3, "length of an element"),
        (b"\x09\x00\x00\x00a", 5, "past its end"),
        (b"\xff\xff\xff\xffa", 5, "past its end"),
        (b"\x02\x00\x00\x00\xff\xfe", 6, "UTF-8"),
        (b"\x01\x00\x00\x00a!", 5, "goes on"),
        (b"\x00\x00\x00\x00" * 3, 12, "as many"),
        (b"\x00\x00\x00\x00" * 2000, 8000, "at most"),
    ],
)
def test_infer_refuses_bytes(server: Any, rest: bytes, size: int, says: str) -> None:
    raw, headers = binary({"inputs": [binary_tensor("text_input", "BYTES", [1], size)]}, rest)
    assert says in error_of(server.http.post(INFER, content=raw, headers=headers), 400)


@pytest.mark.parametrize("length", ["-1", "x", "999999", "1e3", "", "٣"])
def test_infer_refuses_lengths_of_the_json(server: Any, length: str) -> None:
    headers = {"inference-header-content-length": length.encode()}
    answer = server.http.post(INFER, content=json.dumps({"inputs": [text_tensor("a")]}).encode(), headers=headers)
    assert "Inference-Header-Content-Length" in error_of(answer, 400)


def test_numbers_that_are_none(server: Any) -> None:
    raw, headers = binary(
        {"inputs": [text_tensor("a"), binary_tensor("temperature", "FP32", [1], 4)]}, struct.pack("<f", float("nan"))
    )
    assert "NaN" in error_of(server.http.post(INFER, content=raw, headers=headers), 400)


# TensorFlow Serving


def test_status_and_metadata(server: Any) -> None:
    for path in ("/tfs/v1/models/tiny", "/tfs/v1/models/tiny/versions/1"):
        [status] = server.http.get(path).json()["model_version_status"]
        assert status == {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        signatures = server.http.get(f"{path}/metadata").json()["metadata"]["signature_def"]["signature_def"]
        assert list(signatures) == ["serving_default"]


@pytest.mark.parametrize("path", [PREDICT, "/tfs/v1/models/tiny/versions/1:predict"])
def test_predict(server: Any, path: str) -> None:
    def ask(**body: Any) -> Any:
        answer = server.post(path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    known = server.known_text
    row = {"text_input": "the", **GREEDY}
    assert ask(instances=[row]) == {"predictions": [known]}
    assert ask(instances=[row, row], signature_name="serving_default") == {"predictions": [known, known]}
    assert ask(inputs={"text_input": ["the", "the"], **GREEDY}) == {"outputs": [known, known]}
    assert ask(inputs={"text_input": "the", "max_tokens": [6], "temperature": [0]}) == {"outputs": [known]}
    encoded = {"b64": base64.b64encode(b"the").decode()}
    assert ask(instances=[{**row, "text_input": encoded}]) == {"predictions": [known]}
    assert ask(inputs={"text_input": [[encoded]], **GREEDY}) == {"outputs": [known]}
    assert len(ask(instances=["the", encoded])["predictions"]) == len(ask(inputs=["the", "fox"])["outputs"]) == 2
    assert len(ask(inputs="the")["outputs"]) == 1


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "instances"),
        ({"instances": ["a"], "inputs": ["a"]}, "instances"),
        ({"instances": []}, "instances"),
        ({"instances": "a"}, "instances"),
        ({"instances": [5]}, "text_input"),
        ({"instances": [{"max_tokens": 5}]}, "text_input"),
        ({"instances": [{"text_input": "a", "max_tokens": 5}, {"text_input": "a"}]}, "the same"),
        ({"instances": [{"b64": "!"}]}, "b64"),
        ({"instances": [{"b64": "/w=="}]}, "b64"),
        ({"instances": [{"b64": 5}]}, "text_input"),
        ({"inputs": {}}, "text_input"),
        ({"inputs": []}, "text_input"),
        ({"inputs": {"text_input": "a", "max_tokens": [5, 6]}}, "same value"),
        ({"inputs": {"text_input": "a", "max_tokens": "x"}}, "max_tokens"),
        ({"inputs": "a", "signature_name": "other"}, "signature"),
        ({"inputs": "a", "signature_name": 5}, "signature"),
        ({"inputs": {"text_input": "a", "stream": True}}, "no streams"),
        ({"inputs": ["a"] * 1025}, "1024"),
    ],
)
def test_predict_refuses(server: Any, body: Any, says: str) -> None:
    assert says in error_of(server.post(PREDICT, body), 400)
