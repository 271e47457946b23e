"""Embeddings over real processes: models cut into parts, policies, bounded iterations, engines that die."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from disturbed import Alive, Within, replaced, serving
from engine_runs import Running, settings
from server_process import BYTES

from orcaserve.config import EngineConfig, SchedulerConfig
from orcaserve.core import FinishReason, Pooling, Request
from orcaserve.core import SamplingParams as Params

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

PROMPTS = [list(range(1, 40)), [5], [9, 8, 7] * 6, [200, 3], list(range(100, 117)), [5]]
KINDS = [Pooling.MEAN, Pooling.LAST, Pooling.LAST, None, Pooling.MEAN, Pooling.MEAN]


def some_requests() -> list[Request]:
    """Of both kinds, and one that generates text."""
    return [
        Request(i, prompt, Params(max_tokens=0 if kind else 6, temperature=0, pooling=kind))
        for i, (prompt, kind) in enumerate(zip(PROMPTS, KINDS, strict=True))
    ]


def run(config: EngineConfig) -> dict[int, Any]:
    """The embedding of each request, or its tokens."""
    found: dict[int, Any] = {i: [] for i, kind in enumerate(KINDS) if kind is None}
    with Running(config) as engine:
        requests = some_requests()
        engine.host.submit(requests)
        n_live = len(requests)
        while n_live:
            report = engine.news.get(timeout=60)
            assert not isinstance(report, str), report
            for news in report.progress:
                assert news.error is None, news.error
                if KINDS[news.request_id] is None:
                    assert news.embedding is None
                    found[news.request_id].append(news.token)
                else:
                    assert news.finish_reason is FinishReason.LENGTH and news.token is None
                    assert news.embedding is not None and news.request_id not in found
                    found[news.request_id] = np.frombuffer(news.embedding, "<f4")
                n_live -= news.finish_reason is not None
    return found


def check_same(found: dict[int, Any], expected: dict[int, Any]) -> None:
    assert found.keys() == expected.keys()
    for i, own in expected.items():
        if isinstance(own, list):
            assert found[i] == own
        else:
            assert np.linalg.norm(found[i] - own) < 1e-4 * np.linalg.norm(own)


@pytest.fixture(scope="module")
def states(odd_model: Path) -> Any:
    """A text's hidden states after the last norm, by transformers in float32."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModel

    model = AutoModel.from_pretrained(odd_model, dtype=torch.float32).eval()

    def of(ids: Sequence[int]) -> Any:
        with torch.inference_mode():
            return model(torch.tensor([list(ids)])).last_hidden_state[0].double().numpy()

    return of


@pytest.fixture(scope="module")
def expected(odd_model: Path, states: Any) -> dict[int, Any]:
    """What one process does, which is what transformers does."""
    found = run(settings(odd_model))
    for i, kind in enumerate(KINDS):
        if kind is not None:
            own = states(PROMPTS[i])
            own = own.mean(axis=0) if kind is Pooling.MEAN else own[-1]
            assert np.linalg.norm(found[i] - own) < 1e-4 * np.linalg.norm(own)
    return found


@pytest.mark.parametrize(("p", "t"), [(2, 1), (1, 2), (1, 3), (2, 2), (3, 3)])
def test_cut_into_parts_it_gives_what_one_process_does(
    p: int, t: int, odd_model: Path, expected: dict[int, Any]
) -> None:
    check_same(run(settings(odd_model, p, t)), expected)


@pytest.mark.parametrize(("p", "t"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_in_pytorch_too(p: int, t: int, odd_model: Path, expected: dict[int, Any]) -> None:
    pytest.importorskip("torch")
    config = settings(odd_model, p, t)
    check_same(run(replace(config, model=replace(config.model, device="reference"))), expected)


@pytest.mark.parametrize("policy", ["request-level", "cellular", "overcommit"])
def test_under_other_policies(policy: Any, odd_model: Path, expected: dict[int, Any]) -> None:
    """In pieces and held back; preempted, for there is room for two or three requests only."""
    scheduler = SchedulerConfig(4, policy)
    config = replace(settings(odd_model, n_slots=160), scheduler=scheduler)
    if policy == "request-level":
        config = replace(settings(odd_model, n_slots=320), scheduler=scheduler)
        config = replace(config, model=replace(config.model, max_model_len=64))
    check_same(run(config), expected)


@pytest.mark.parametrize("n_tokens", [4, 7, 64])
def test_in_bounded_iterations_it_is_the_same_to_the_bit(
    n_tokens: int, odd_model: Path, expected: dict[int, Any]
) -> None:
    config = settings(odd_model)
    config = replace(config, scheduler=SchedulerConfig(4, max_num_batched_tokens=n_tokens, prefix_caching=True))
    found = run(config)
    for i, own in expected.items():
        assert found[i] == own if isinstance(own, list) else found[i].tobytes() == own.tobytes()


TEXTS = ["a whale", "whales, and how they sing", "x", "ab" * 60, "a tax form", "whales, and how they swim"] * 3
EXACT = (
    "--dtype",
    "float32",
    "--quantization",
    "none",
    "--kv-cache-dtype",
    "float32",
    "--max-num-batched-tokens",
    "24",
)


def oracle(states: Any, text: str) -> Any:
    """The normalised mean, by transformers, of the tokenizer's ids: single bytes."""
    mean = states([BYTES + byte for byte in text.encode()]).mean(axis=0)
    return mean / np.linalg.norm(mean)


def test_a_server_and_openais_client(
    served_odd_model: Path, states: Any, folder: Path, alive: Alive, within: Within
) -> None:
    """Beside streams, in pieces, through the loss of the engine: the same to the bit, and what transformers gives."""
    with serving(served_odd_model, ("--pooling", "mean", *EXACT), folder, alive, within) as serve:
        client = openai.OpenAI(base_url=f"{serve.base}/v1", api_key="x", max_retries=0, timeout=60)
        with client:
            alone = [client.embeddings.create(model=serve.model, input=text).data[0].embedding for text in TEXTS]
            for text, vector in zip(TEXTS, alone, strict=True):
                assert np.linalg.norm(np.array(vector) - oracle(states, text)) < 1e-4
            streams = [
                threading.Thread(target=serve.stream, args=("abc" * n,), kwargs={"max_tokens": 120})
                for n in range(1, 9)
            ]
            for stream in streams:
                stream.start()
            together = client.embeddings.create(model=serve.model, input=TEXTS)
            for stream in streams:
                stream.join(60)
            assert [entry.index for entry in together.data] == list(range(len(TEXTS)))
            assert [entry.embedding for entry in together.data] == alone
            n_tokens = sum(len(text) for text in TEXTS)
            assert together.usage.prompt_tokens == together.usage.total_tokens == n_tokens
            short = client.embeddings.create(model=serve.model, input=TEXTS[0], dimensions=7).data[0].embedding
            assert short == pytest.approx(np.array(alone[0][:7]) / math.hypot(*alone[0][:7]), rel=1e-5)
            with pytest.raises(openai.BadRequestError, match="dimensions must be an integer from 1 to 64"):
                client.embeddings.create(model=serve.model, input="x", dimensions=65)
            with pytest.raises(openai.BadRequestError, match="is the most"):
                client.embeddings.create(model=serve.model, input=[[5] * 4097])

            engine = serve.engine_pid
            found: list[Any] = []
            asking = threading.Thread(
                target=lambda: found.append(client.embeddings.create(model=serve.model, input=TEXTS * 20))
            )
            asking.start()
            assert within(20, lambda: serve.http.get("/v1/requests").json()["total"] > 0)
            os.kill(engine, signal.SIGKILL)
            asking.join(60)
            assert [entry.embedding for entry in found[0].data] == alone * 20
            assert within(20, lambda: replaced(serve, engine))

        scores = serve.post("/v1/score", text_1=TEXTS[1], text_2=[TEXTS[5], TEXTS[4], TEXTS[1]]).json()["data"]
        expected = [float(np.dot(alone[1], alone[i])) for i in (5, 4, 1)]
        assert [entry["score"] for entry in scores] == pytest.approx(expected, abs=1e-6)
        ranked = serve.post("/v1/rerank", query=TEXTS[1], documents=[TEXTS[4], TEXTS[5], TEXTS[1]], top_n=2).json()
        assert [result["index"] for result in ranked["results"]] == [2, 1]
        assert ranked["results"][0]["relevance_score"] == pytest.approx(1, abs=1e-6)


def test_a_cut_model_is_served_by_its_own_files(
    served_odd_model: Path, states: Any, folder: Path, tmp_path: Path, alive: Alive, within: Within
) -> None:
    """What 1_Pooling says holds without a flag; what is not served is refused by name, and text comes as ever."""
    import shutil

    model = shutil.copytree(served_odd_model, tmp_path / "model")
    (model / "1_Pooling").mkdir()
    config = {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (model / "1_Pooling" / "config.json").write_text(json.dumps(config))
    with serving(model, ("-pp", "2", "-tp", "2", *EXACT), folder, alive, within) as serve:
        answer = serve.post("/v1/embeddings", input=TEXTS)
        assert answer.status_code == 200, answer.text
        for text, entry in zip(TEXTS, answer.json()["data"], strict=True):
            assert np.linalg.norm(np.array(entry["embedding"]) - oracle(states, text)) < 1e-4
    config |= {"pooling_mode_cls_token": True}
    (model / "1_Pooling" / "config.json").write_text(json.dumps(config))
    with serving(model, (), folder, alive, within) as serve:
        error = serve.post("/v1/embeddings", input="x").json()["error"]
        assert error["code"] == "embeddings_not_supported" and "cls_token and mean_tokens" in error["message"]
        assert serve.text(max_tokens=3)
