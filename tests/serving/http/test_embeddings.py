"""Embeddings, scores and rerankings at the edge: forms, limits, errors, and what the engine is asked."""

from __future__ import annotations

import base64
import json
import math
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from orcaserve.core import Pooling
from orcaserve.serving import embeddings, pooled
from orcaserve.serving.pooled import shorten
from orcaserve.text.tokenizer import Tokenizer

SIZE = 8


def embed(server: Any, input: Any = "the", **fields: Any) -> httpx.Response:
    answer: httpx.Response = server.post("/v1/embeddings", {"model": "tiny", "input": input, **fields})
    return answer


def good(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def vectors(answer: httpx.Response) -> list[list[float]]:
    return [entry["embedding"] for entry in good(answer)["data"]]


def raw(server: Any, number: int = 0) -> list[float]:
    """What the engine has given the number-th request of those seen."""
    return list(struct.unpack(f"<{SIZE}f", server.pooled_of(server.engine.seen[number])))


def unit(vector: list[float]) -> list[float]:
    return [x / math.hypot(*vector) for x in vector]


def refused(answer: httpx.Response, param: str, *words: str, code: str | None = None) -> None:
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), answer.text
    assert all(word in error["message"] for word in words), error["message"]
    assert code is None or error["code"] == code


def test_as_openai_has_it(server: Any) -> None:
    body = good(embed(server, ["the fox", "a"], user="me", priority=2))
    assert body.keys() == {"object", "data", "model", "usage"}
    assert body["object"] == "list" and body["model"] == "tiny"
    assert [(entry["object"], entry["index"]) for entry in body["data"]] == [("embedding", 0), ("embedding", 1)]
    ids = [server.tokenizer.encode(text) for text in ("the fox", "a")]
    n = sum(map(len, ids))
    assert body["usage"] == {"prompt_tokens": n, "total_tokens": n}
    for i, request in enumerate(server.engine.seen):
        assert request.input_ids == ids[i] and request.params.max_tokens == 0 and not request.stop_ids
        assert request.params.pooling is Pooling.LAST
        assert (request.terms.client, request.terms.priority) == ("me", 2)
        assert body["data"][i]["embedding"] == pytest.approx(unit(raw(server, i)), rel=1e-6)
    assert len(server.engine.seen) == 2


def test_the_python_client_with_its_own_choice_of_an_encoding(server: Any) -> None:
    with openai.OpenAI(base_url=f"{server.base}/v1", api_key="x", max_retries=0) as client:
        answer = client.embeddings.create(model="tiny", input=["the", "fox"])
        assert [entry.index for entry in answer.data] == [0, 1] and answer.usage.total_tokens > 0
        numbers = client.embeddings.create(model="tiny", input=["the", "fox"], encoding_format="float")
        short = client.embeddings.create(model="tiny", input="the", dimensions=3).data[0].embedding
    for entry, same in zip(answer.data, numbers.data, strict=True):
        assert math.hypot(*entry.embedding) == pytest.approx(1, abs=1e-6)
        assert [struct.pack("f", x) for x in entry.embedding] == [struct.pack("f", x) for x in same.embedding]
    assert short == pytest.approx(unit(numbers.data[0].embedding[:3]), rel=1e-6)


@pytest.mark.parametrize("form", ["text", "ids", "texts", "lists"])
def test_forms_of_input(server: Any, form: str) -> None:
    ids = server.tokenizer.encode("the fox")
    given = {"text": "the fox", "ids": ids, "texts": ["the fox"], "lists": [ids]}[form]
    [vector] = vectors(embed(server, given))
    assert server.engine.seen[0].input_ids == ids
    assert vector == pytest.approx(unit(raw(server)), rel=1e-6)


def test_base64_is_the_bytes_of_float32(server: Any) -> None:
    [numbers] = vectors(embed(server))
    [text] = vectors(embed(server, encoding_format="base64"))
    assert base64.b64decode(str(text), validate=True) == struct.pack(f"<{SIZE}f", *numbers)
    assert vectors(embed(server, encoding_format=None)) == [numbers]


def test_dimensions_and_normalising(server: Any) -> None:
    [vector] = vectors(embed(server, normalize=False))
    assert vector == pytest.approx(raw(server), rel=1e-7)
    assert vectors(embed(server, normalize=False, dimensions=3)) == [vector[:3]]
    [short] = vectors(embed(server, dimensions=3))
    assert short == pytest.approx(unit(vector[:3]), rel=1e-6)
    assert vectors(embed(server, dimensions=SIZE)) == vectors(embed(server))
    for bad in (0, -1, SIZE + 1, 10**30):
        refused(embed(server, dimensions=bad), "dimensions", f"1 to {SIZE}")
    for bad in (True, "3", 2.5, []):
        refused(embed(server, dimensions=bad), "dimensions", "integer", code="invalid_type")


def test_a_vector_without_a_direction_stays_as_it_is(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(type(server.engine).run.__globals__, "pooled_of", lambda request: bytes(4 * SIZE))
    assert vectors(embed(server)) == [[0.0] * SIZE]
    assert good(score(server, "a", "b"))["data"][0]["score"] == 0


@pytest.mark.parametrize("bad", ["", [], [""], ["a", ""], [[]], [[5], []]])
def test_empty_input_is_named(server: Any, bad: Any) -> None:
    refused(embed(server, bad), "input", "empty")


@pytest.mark.parametrize("bad", [None, 5, {}, [None], ["a", 5], [5, "a"], [[1], "a"], [5, True], [[1.5]], True])
def test_input_of_another_kind(server: Any, bad: Any) -> None:
    refused(embed(server, bad), "input", code="invalid_type")


def test_input_with_ids_of_no_token(server: Any) -> None:
    for bad in ([-1], [10**30], [[5], [100_000]]):
        refused(embed(server, bad), "input", "outside 0..")


def test_other_fields(server: Any) -> None:
    refused(embed(server, encoding_format="int8"), "encoding_format", "float or base64")
    refused(embed(server, encoding_format=[]), "encoding_format", "float or base64")
    refused(embed(server, user=5), "user")
    refused(embed(server, normalize="yes"), "normalize")
    refused(embed(server, add_special_tokens=1), "add_special_tokens")
    refused(embed(server, priority="high"), "priority")
    refused(embed(server, timeout=-1), "timeout")
    answer = embed(server, temperature=1)
    assert answer.status_code == 200 and answer.headers["x-orcaserve-ignored-fields"] == "temperature"
    assert server.post("/v1/embeddings", {"model": "nope", "input": "the"}).status_code == 404
    assert server.post("/v1/embeddings", {"input": "the"}).status_code == 404


def test_too_many_and_too_long(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(vectors(embed(server, ["a"] * 20))) == 20
    refused(embed(server, ["a"] * (pooled.MAX_INPUTS + 1)), "input", str(pooled.MAX_INPUTS))
    [alone] = vectors(embed(server, [5] * 128))
    assert len(alone) == SIZE
    refused(embed(server, [5] * 129), "input", "128 is the most", code="context_length_exceeded")
    refused(embed(server, [[5], [5] * 129]), "input", "input[1] has 129 tokens", code="context_length_exceeded")
    refused(embed(server, "the " * 20_000), "input", code="context_length_exceeded")
    monkeypatch.setattr(embeddings, "MAX_NUMBERS", 3 * SIZE)
    assert len(vectors(embed(server, ["a"] * 3))) == 3
    refused(embed(server, ["a"] * 4), "input", f"at most {3 * SIZE}")
    assert len(vectors(embed(server, ["a"] * 4, dimensions=6))) == 4
    monkeypatch.setattr(pooled, "MAX_WORK", 10)
    refused(embed(server, [[5] * 6, [5] * 5]), "input", "at most 10 tokens")
    assert len(vectors(embed(server, [[5] * 11]))) == 1


def test_truncated(server: Any) -> None:
    text = "the quick brown fox jumps over the lazy dog " * 400
    assert vectors(embed(server, text, truncate_prompt_tokens=-1))
    ids = server.tokenizer.encode(text[:2000])
    assert server.engine.seen[-1].input_ids == ids[:128]
    assert vectors(embed(server, [text, "a"], truncate_prompt_tokens=3))
    assert [request.input_ids for request in server.engine.seen[-2:]] == [ids[:3], server.tokenizer.encode("a")]
    assert vectors(embed(server, [[5, 6, 7], [8]], truncate_prompt_tokens=2))
    assert [request.input_ids for request in server.engine.seen[-2:]] == [[5, 6], [8]]
    for bad in (0, -2, 129):
        refused(embed(server, truncate_prompt_tokens=bad), "truncate_prompt_tokens", "128")
    refused(embed(server, truncate_prompt_tokens=1.5), "truncate_prompt_tokens", "integer")


@pytest.mark.parametrize(
    ("ids", "bare", "most", "kept"),
    [
        ([1, 5, 6, 7, 2], [5, 6, 7], 4, [1, 5, 6, 2]),  # a beginning and an end
        ([1, 5, 6, 7], [5, 6, 7], 2, [1, 5]),
        ([5, 6, 7, 2], [5, 6, 7], 3, [5, 6, 2]),
        ([1, 5, 2], [5], 2, [1, 2]),
        ([1, 5, 2], [5], 1, [1]),
        ([2, 5, 2], [2, 5, 2], 2, [2, 5]),
        ([5, 6, 7], [5, 9, 7], 2, [5, 6]),  # what was added cannot be told
    ],
)
def test_what_the_tokenizer_adds_stays(ids: list[int], bare: list[int], most: int, kept: list[int]) -> None:
    assert shorten(ids, bare, most) == kept


def test_special_tokens_are_left_out_if_asked(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = server.tokenizer.encode
    monkeypatch.setattr(
        server.tokenizer,
        "encode",
        lambda text, add_special_tokens=True: [*encode(text, False), *[7] * add_special_tokens],
    )
    assert vectors(embed(server, "the"))
    assert vectors(embed(server, "the", add_special_tokens=False))
    first, second = server.engine.seen
    assert first.input_ids == [*second.input_ids, 7]


def test_a_failed_engine_and_a_request_that_is_cancelled(server: Any) -> None:
    server.engine.refuse = "the worker was lost"
    answer = embed(server, ["a", "b"])
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "engine_error"
    server.engine.refuse, server.engine.pause = None, True
    answers: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(
            server.post("/v1/embeddings", {"model": "tiny", "input": ["a", "b"]}, **{"x-request-id": "mine"})
        )
    )
    thread.start()
    server.wait_until(lambda: server.engine.n_open == 2)
    listed = server.http.get("/v1/requests").json()["data"]
    assert [(entry["endpoint"], entry["choice"]) for entry in listed] == [("/v1/embeddings", 0), ("/v1/embeddings", 1)]
    assert server.http.post("/v1/requests/mine/cancel").status_code == 200
    thread.join(10)
    assert answers[0].status_code == 400 and answers[0].json()["error"]["code"] == "cancelled"
    assert server.engine.n_open == 0 and len(server.engine.cancelled) == 2


def test_a_client_that_leaves_frees_everything(server: Any) -> None:
    server.engine.pause = True
    body = json.dumps({"model": "tiny", "input": ["a"] * 3}).encode()
    with server.connection() as connection:
        head = (
            f"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        )
        connection.sendall(f"{head}\r\n\r\n".encode() + body)
        server.wait_until(lambda: server.engine.n_open == 3)
    server.wait_until(lambda: server.engine.n_open == 0)
    assert len(server.engine.cancelled) == 3


def test_metrics_know_them(server: Any) -> None:
    n = len(server.tokenizer.encode("the fox"))
    prompt_tokens, finished = server.service.metrics.prompt_tokens, server.service.metrics.finished["length"]
    lengths = server.service.door.lengths.expected(100, True)
    good(embed(server, ["the fox"] * 3))
    assert server.service.metrics.prompt_tokens == prompt_tokens + 3 * n
    assert server.service.metrics.finished["length"] == finished + 3
    assert server.service.door.lengths.expected(100, True) == lengths  # they say nothing of texts


# Scores


def score(server: Any, first: Any, second: Any, **fields: Any) -> httpx.Response:
    answer: httpx.Response = server.post("/v1/score", {"model": "tiny", "text_1": first, "text_2": second, **fields})
    return answer


def cosine(server: Any, i: int, j: int) -> float:
    first, second = unit(raw(server, i)), unit(raw(server, j))
    return sum(a * b for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ("the", "fox", [(0, 1)]),
        ("the", ["fox", "the", "a dog"], [(0, 1), (0, 2), (0, 3)]),
        (["the"], ["fox", "a"], [(0, 1), (0, 2)]),
        (["the", "a"], ["fox", "a"], [(0, 2), (1, 3)]),
    ],
)
def test_scores_are_cosines(server: Any, first: Any, second: Any, pairs: list[tuple[int, int]]) -> None:
    body = good(score(server, first, second))
    assert body.keys() == {"id", "object", "created", "model", "data", "usage"} and body["id"].startswith("score-")
    for index, (i, j) in enumerate(pairs):
        entry = body["data"][index]
        assert (entry["index"], entry["object"]) == (index, "score")
        assert entry["score"] == pytest.approx(cosine(server, i, j), abs=1e-6)
    assert len(body["data"]) == len(pairs)
    n = sum(len(request.input_ids) for request in server.engine.seen)
    assert body["usage"] == {"prompt_tokens": n, "total_tokens": n}


def test_wrong_scores(server: Any) -> None:
    refused(score(server, ["a", "b"], ["c"]), "text_1", "as many as text_2")
    refused(score(server, ["a", "b"], "c"), "text_1", "as many as text_2")
    refused(score(server, [], "c"), "text_1", "1 to")
    refused(score(server, "a", []), "text_2", "1 to")
    refused(score(server, "a", 5), "text_2", code="invalid_type")
    refused(score(server, None, "a"), "text_1", code="invalid_type")
    refused(score(server, [[5]], "a"), "text_1", code="invalid_type")
    refused(score(server, "a", ["b", ""]), "text_2", "text_2[1] is empty")
    refused(score(server, "a", "the " * 400), "text_2", "text_2 has", code="context_length_exceeded")
    refused(score(server, "a", ["b"] * pooled.MAX_INPUTS), "text_2", str(pooled.MAX_INPUTS))
    assert good(score(server, "a", "the " * 400, truncate_prompt_tokens=5))


def rerank(server: Any, documents: Any, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "query": "the", "documents": documents, **fields}
    answer: httpx.Response = server.post("/v1/rerank", body)
    return answer


def test_documents_are_put_in_order(server: Any) -> None:
    documents = ["fox", {"text": "the"}, "a dog", "dog"]
    body = good(rerank(server, documents))
    assert body.keys() == {"id", "model", "usage", "results"}
    scores = [cosine(server, 0, i) for i in range(1, 5)]
    order = sorted(range(4), key=lambda i: -scores[i])
    assert order[0] == 1  # itself
    assert [result["index"] for result in body["results"]] == order
    for result in body["results"]:
        assert result["relevance_score"] == pytest.approx(scores[result["index"]], abs=1e-6)
        assert result["document"]["text"] == ["fox", "the", "a dog", "dog"][result["index"]]
    best = good(rerank(server, documents, top_n=1, return_documents=False))["results"]
    assert [result.keys() for result in best] == [{"index", "relevance_score"}] and best[0]["index"] == 1
    assert len(good(rerank(server, documents, top_n=99))["results"]) == 4


def test_wrong_rerankings(server: Any) -> None:
    refused(rerank(server, []), "documents", "1 to")
    refused(rerank(server, ["a"] * pooled.MAX_INPUTS), "documents", "1 to")
    refused(rerank(server, "a"), "documents", code="invalid_type")
    refused(rerank(server, [5]), "documents", code="invalid_type")
    refused(rerank(server, [{"title": "a"}]), "documents", code="invalid_type")
    refused(rerank(server, ["a", ""]), "documents", "documents[1] is empty")
    refused(rerank(server, ["a"], query=""), "query", "empty")
    refused(rerank(server, ["a"], query=["a"]), "query", code="invalid_type")
    for bad in (0, -1, "1", True):
        refused(rerank(server, ["a"], top_n=bad), "top_n", "integer")
    refused(rerank(server, ["a"], return_documents="no"), "return_documents")


# Models that make none, or in another way


@pytest.fixture
def told(server: Any) -> Iterator[Any]:
    """The server, whose model may be told something else."""
    facts, pooling = server.service.facts, server.service._pooling
    yield server
    server.service.facts, server.service._pooling = facts, pooling


def test_a_model_that_makes_none_is_refused_by_name(told: Any) -> None:
    told.service.facts = replace(told.service.facts, embedding_size=0)
    for answer in (embed(told), score(told, "a", "b"), rerank(told, ["a"])):
        refused(answer, "model", "tiny makes no embeddings", code="embeddings_not_supported")
    told.service.facts = replace(told.service.facts, embedding_size=SIZE)
    told.service._pooling = "its files ask for cls pooling"
    refused(embed(told), "model", "tiny makes no embeddings: its files ask for cls", code="embeddings_not_supported")
    with (
        openai.OpenAI(base_url=f"{told.base}/v1", api_key="x", max_retries=0) as client,
        pytest.raises(openai.BadRequestError, match="makes no embeddings"),
    ):
        client.embeddings.create(model="tiny", input="the")
    assert not told.engine.seen


def test_the_mean_if_the_model_is_one_for_that(told: Any) -> None:
    told.service._pooling = Pooling.MEAN
    assert vectors(embed(told))
    assert told.engine.seen[0].params.pooling is Pooling.MEAN


def test_too_much_to_do_is_429(served_tokenizer: Tokenizer, other_server: Any) -> None:
    server = other_server(max_queued_reqs=0, max_queued_tokens=0)
    server.engine.pause = True
    busy = [threading.Thread(target=lambda: server.complete(max_tokens=50)) for _ in range(8)]
    for thread in busy:
        thread.start()
    server.wait_until(lambda: server.engine.n_open == 8)
    answer = embed(server)
    assert answer.status_code == 429 and answer.json()["error"]["code"] == "overloaded"
    assert int(answer.headers["retry-after"]) >= 1
    server.engine.pause = False
    for thread in busy:
        thread.join(10)
