"""Ids of requests, and cancelling by them; methods every path takes; odd names of models."""

from __future__ import annotations

import json
import threading
from typing import Any
from urllib.parse import quote

import httpx
import openai
import pytest


def started(server: Any, **fields: Any) -> tuple[threading.Thread, list[httpx.Response]]:
    """A request under way, on a thread, and where its answer goes."""
    answers: list[httpx.Response] = []
    headers = fields.pop("headers", {})
    body = {"model": "tiny", "prompt": "the", "max_tokens": 100, "temperature": 0, **fields}
    thread = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", body, **headers)))
    n = len(server.engine.seen)
    thread.start()
    server.wait_until(lambda: len(server.engine.seen) == n + body.get("n", 1))
    return thread, answers


def cancel(server: Any, name: str) -> httpx.Response:
    answer: httpx.Response = server.http.post(f"/v1/requests/{quote(name, safe='')}/cancel")
    return answer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_what_there_is_by_then_is_the_answer(server: Any, stream: bool, n: int) -> None:
    server.engine.seconds_per_token = 0.02
    thread, answers = started(server, stream=stream, n=n, headers={"x-request-id": "job/7:a"})
    server.wait_until(lambda: min(len(request.output) for request in server.engine.seen) >= 3)
    said = cancel(server, "job/7:a")
    assert said.status_code == 200 and said.json() == {"id": "job/7:a", "object": "request", "cancelled": True}
    thread.join(10)
    [answer] = answers
    assert answer.status_code == 200 and answer.headers["x-request-id"] == "job/7:a"
    if stream:
        frames = answer.text.split("\n\n")
        assert frames[-2:] == ["data: [DONE]", ""]
        events = [json.loads(frame[6:])["choices"][0] for frame in frames[:-2]]
        texts = {i: "".join(e["text"] for e in events if e["index"] == i) for i in range(n)}
        ends = [e["finish_reason"] for e in events if e["finish_reason"]]
    else:
        texts = {choice["index"]: choice["text"] for choice in answer.json()["choices"]}
        ends = [choice["finish_reason"] for choice in answer.json()["choices"]]
        usage = answer.json()["usage"]
        assert 3 * n <= usage["completion_tokens"] < 100 * n
    assert ends == ["abort"] * n
    known = server.tokenizer.decode([server.script_ids[i % len(server.script_ids)] for i in range(100)])
    assert all(text and known.startswith(text) for text in texts.values())
    assert server.engine.n_open == 0 and len(server.engine.cancelled) == n
    assert cancel(server, "job/7:a").status_code == 404


def test_by_the_id_of_a_stream(server: Any) -> None:
    server.engine.seconds_per_token = 0.02
    with openai.OpenAI(base_url=f"{server.base}/v1", api_key="x") as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        with client.chat.completions.create(model="tiny", messages=messages, stream=True, max_tokens=90) as stream:
            first = next(stream)
            client.post(f"/requests/{first.id}/cancel", cast_to=object)
            rest = list(stream)
    assert rest[-1].choices[0].finish_reason == "abort"


def test_before_it_has_begun(server: Any) -> None:
    """While nothing of it has run, and while its body is still on its way."""
    server.engine.pause = True
    thread, answers = started(server, headers={"x-request-id": "early"})
    assert cancel(server, "early").status_code == 200
    thread.join(10)
    assert answers[0].json()["choices"][0] == {"index": 0, "text": "", "logprobs": None, "finish_reason": "abort"}
    body = json.dumps({"model": "tiny", "prompt": "the", "max_tokens": 3}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-request-id: slow\r\ncontent-length: {len(body)}\r\n"
    with server.connection() as raw:
        raw.sendall(head.encode() + b"content-type: application/json\r\n\r\n")
        server.wait_until(lambda: cancel(server, "slow").status_code == 200)
        raw.sendall(body)
        answer = b""
        while b'"finish_reason":"abort"' not in answer:
            part = raw.recv(65536)
            assert part, answer
            answer += part


@pytest.mark.parametrize("name", ["nobody", "cmpl-0", "a b", "%", "ü", "x" * 200])
def test_unknown_ids(server: Any, name: str) -> None:
    answer = cancel(server, name)
    error = answer.json()["error"]
    assert answer.status_code == 404 and error["code"] == "request_not_found" and error["param"] == "id"
    assert name not in error["message"]


def test_whoever_cancels_is_not_what_is_cancelled(server: Any) -> None:
    answer = server.http.post("/v1/requests/me/cancel", headers={"x-request-id": "me"})
    assert answer.status_code == 404


@pytest.mark.parametrize(
    ("given", "good"),
    [
        ("abc-1", True), ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True), ("a.b_c~d:e@f/g+h=", True),
        ("x" * 128, True), ("x" * 129, False), ("", False), ("a b", False), ('a"b', False), ("a;b", False),
        ("<script>", False), ("ä", False), ("a,b", False),
    ],
)  # fmt: skip
def test_a_clients_own_id(server: Any, given: str, good: bool) -> None:
    answer = server.http.get("/live", headers={"x-request-id": given.encode()})
    assert (answer.headers["x-request-id"] == given) is good
    assert good or answer.headers["x-request-id"].startswith("req-")
    refused = server.http.get("/nowhere", headers={"x-request-id": given.encode()})
    assert (refused.headers["x-request-id"] == given) is good


def test_the_answers_id_stays_its_own(server: Any) -> None:
    """Two requests of the same name have two ids."""
    answers = [
        server.post("/v1/completions", {"model": "tiny", "prompt": "a"}, **{"x-request-id": "twice"}) for _ in "ab"
    ]
    assert {answer.headers["x-request-id"] for answer in answers} == {"twice"}
    assert len({answer.json()["id"] for answer in answers}) == 2


@pytest.mark.parametrize(
    "path", ["/live", "/v1/models", "/v1/models/tiny", "/openapi.json", "/docs", "/metrics", "/v2"]
)
def test_head_is_get_without_a_body(server: Any, path: str) -> None:
    whole, head = server.http.get(path), server.http.head(path)
    assert head.status_code == 200 and head.content == b""
    assert head.headers["content-type"] == whole.headers["content-type"]
    if path != "/metrics":
        assert head.headers["content-length"] == str(len(whole.content))


@pytest.mark.parametrize(
    "name", ["owner/name", "a b", "ü🦙", "x?y=z", "a%2Fb", "..", "v1/models", "model.gguf:Q4", "a/ready"]
)
def test_odd_names_of_models(other_server: Any, name: str) -> None:
    server = other_server()
    server.service.name = server.service.adapters.model = name
    for written in {quote(name, safe=""), quote(name, safe=":" if name == "a/ready" else "/:")}:
        if ".." not in written:  # clients and proxies take these for the folder above
            answer = server.http.get(f"/v1/models/{written}")
            assert answer.status_code == 200 and answer.json()["id"] == name
            assert server.http.get(f"/v2/models/{written}").json()["name"] == name
            assert server.http.get(f"/v2/models/{written}/ready").status_code == 200
            assert server.http.get(f"/tfs/v1/models/{written}").status_code == 200
    with openai.OpenAI(base_url=f"{server.base}/v1", api_key="x") as client:
        if name != "..":
            assert client.models.retrieve(name).id == name
        assert client.models.list().data[0].id == name
        assert client.completions.create(model=name, prompt="a", max_tokens=1).model == name


def test_unknown_models_by_path(server: Any) -> None:
    for name in ("nope", "tiny/", "TINY", "tin%79x", "tiny%00", "x" * 5000):
        answer = server.http.get(f"/v1/models/{name}")
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"
        assert answer.json()["error"]["param"] == "model"
    assert server.http.get("/v1/models/tin%79").status_code == 200


def test_tokenize_completely(server: Any) -> None:
    def ask(**fields: Any) -> dict[str, Any]:
        answer = server.post("/tokenize", fields)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    plain = ask(prompt="the fox ü")
    assert set(plain) == {"tokens", "count", "max_model_len", "token_strs"} and plain["token_strs"] is None
    assert plain["count"] == len(plain["tokens"]) and plain["max_model_len"] == 128
    spelled = ask(prompt="the fox ü", return_token_strs=True)["token_strs"]
    assert len(spelled) == plain["count"] and "Ġfox" in spelled
    chat = ask(messages=[{"role": "user", "content": "hi"}], return_token_strs=True)
    assert chat["token_strs"][0] == "<|user|>" and chat["tokens"] == server.tokenizer.encode_chat(
        "<|user|>user:hi<|end|><|user|>"
    )
    ends = ask(messages=[{"role": "user", "content": "hi"}], add_generation_prompt=False)["tokens"]
    assert ends == chat["tokens"][:-1]
    both = server.post("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "hi"}]})
    assert both.status_code == 400 and both.json()["error"]["param"] == "prompt"
    text = server.post("/detokenize", {"tokens": plain["tokens"]}).json()
    assert text == {"prompt": "the fox ü"}
