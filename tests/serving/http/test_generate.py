"""What a well-formed request is answered with: completions and chat, whole and as events, through real clients."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

from orcaserve.core import EngineFacts, EngineStatus, IterationReport
from orcaserve.serving.metrics import Metrics


@dataclass
class Replica:
    """An engine as metrics read it."""

    present: bool = True
    status: EngineStatus = field(default_factory=EngineStatus)


CHAT = [{"role": "user", "content": "hi"}]


def test_completion(server: Any) -> None:
    answer = server.complete(max_tokens=6)
    body = answer.json()
    assert answer.status_code == 200 and body["object"] == "text_completion" and body["model"] == "tiny"
    assert body["id"].startswith("cmpl-") and answer.headers["x-request-id"] == body["id"]
    [choice] = body["choices"]
    assert choice == {"index": 0, "text": server.known_text, "logprobs": None, "finish_reason": "length"}
    n = len(server.tokenizer.encode("the"))
    assert [body["usage"][f"{what}_tokens"] for what in ("prompt", "completion", "total")] == [n, 6, n + 6]
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_stream_equals_whole(server: Any) -> None:
    whole = server.complete(max_tokens=40).json()
    events = server.events("/v1/completions", {"prompt": "the", "max_tokens": 40})
    assert "".join(e["choices"][0]["text"] for e in events) == whole["choices"][0]["text"]
    assert [e["choices"][0]["finish_reason"] for e in events] == [None] * (len(events) - 1) + ["length"]
    assert len({e["id"] for e in events}) == 1 and "usage" not in events[0]
    assert len(events) > 20  # not collected


def test_chat(server: Any) -> None:
    answer = server.chat(max_tokens=6).json()
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": server.known_text, "refusal": None}
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    rendered = server.tokenizer.encode_chat("<|user|>user:hi<|end|><|user|>")
    assert list(server.engine.seen[-1].input_ids) == rendered and rendered[0] == 1


def test_chat_stream(server: Any) -> None:
    events = server.events("/v1/chat/completions", {"messages": CHAT, "max_tokens": 6})
    deltas = [e["choices"][0]["delta"] for e in events]
    assert deltas[0] == {"role": "assistant", "content": ""} and deltas[-1] == {}
    assert "".join(d.get("content", "") for d in deltas) == server.known_text
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert all(e["object"] == "chat.completion.chunk" for e in events)


def test_usage_chunk_only_if_asked(server: Any) -> None:
    body = {"prompt": "the", "max_tokens": 3, "stream_options": {"include_usage": True}}
    events = server.events("/v1/completions", body)
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 3
    assert all(e["usage"] is None for e in events[:-1])
    refused = server.complete(stream_options={"include_usage": True})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "stream_options"


@pytest.mark.parametrize("stream", [False, True])
def test_b24_choices_of_several_prompts(server: Any, stream: bool) -> None:
    body = {"prompt": ["the", "fox dog", "a"], "n": 2, "max_tokens": 4}
    n_prompt = sum(len(server.tokenizer.encode(p)) for p in body["prompt"])
    if stream:
        events = server.events("/v1/completions", {**body, "stream_options": {"include_usage": True}})
        usage = events.pop()["usage"]
        indices = {e["choices"][0]["index"] for e in events}
        ends = [e for e in events if e["choices"][0]["finish_reason"]]
        assert len(ends) == 6
    else:
        answer = server.post("/v1/completions", {"model": "tiny", **body}).json()
        usage, indices = answer["usage"], {c["index"] for c in answer["choices"]}
    assert indices == set(range(6))
    assert [usage[f"{what}_tokens"] for what in ("prompt", "completion", "total")] == [n_prompt, 24, n_prompt + 24]
    prompts = [list(r.input_ids) for r in server.engine.seen]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]  # prompt_index * n + i


def test_seeds(server: Any) -> None:
    server.complete(n=3, seed=7)
    server.complete(n=3, seed=7)
    seeds = [r.seed for r in server.engine.seen]
    assert seeds[:3] == seeds[3:] and len(set(seeds[:3])) == 3 and seeds[0] == 7
    server.complete()
    server.complete()
    drawn = [r.seed for r in server.engine.seen[-2:]]
    assert None not in drawn and drawn[0] != drawn[1]


def test_fields_reach_the_engine(server: Any) -> None:
    fields = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1,
        "repetition_penalty": 1.1, "logit_bias": {"5": -100, "6": 1.5}, "min_tokens": 2, "stop_token_ids": [9],
    }  # fmt: skip
    assert server.complete(max_tokens=3, **fields).status_code == 200
    request = server.engine.seen[-1]
    params = request.params
    assert params.max_tokens == 3 and params.logit_bias == {5: -100, 6: 1.5} and params.top_k == 5
    assert (params.temperature, params.top_p, params.min_p, params.repetition_penalty) == (0.5, 0.9, 0.1, 1.1)
    assert request.stop_ids == {9, 0}  # the model's own end as well
    server.complete(max_tokens=3, ignore_eos=True, stop_token_ids=[9])
    assert server.engine.seen[-1].stop_ids == {9}


@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "n", "stop", "seed", "logit_bias", "stream", "user", "stream_options"]
)
def test_null_is_absent(server: Any, field: str) -> None:
    assert server.complete(**{field: None}).status_code == 200


def test_openai_client(server: Any) -> None:
    with openai.OpenAI(base_url=f"{server.base}/v1", api_key="none") as client:
        assert [m.id for m in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").id == "tiny"
        completion = client.completions.create(model="tiny", prompt="the", max_tokens=6)
        assert completion.choices[0].text == server.known_text
        chat = client.chat.completions.create(model="tiny", messages=CHAT, max_completion_tokens=6)
        assert chat.choices[0].message.content == server.known_text
        with client.chat.completions.create(
            model="tiny", messages=CHAT, max_tokens=6, stream=True, stream_options={"include_usage": True}
        ) as stream:
            chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == server.known_text
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 6
        with pytest.raises(openai.NotFoundError) as caught:
            client.completions.create(model="nope", prompt="x")
        assert caught.value.code == "model_not_found" and caught.value.param == "model"


def test_openai_async_client(server: Any) -> None:
    async def main() -> str:
        async with openai.AsyncOpenAI(base_url=f"{server.base}/v1", api_key="none") as client:
            stream = await client.completions.create(model="tiny", prompt="the", max_tokens=6, stream=True)
            return "".join([c.choices[0].text async for c in stream])

    assert asyncio.run(main()) == server.known_text


def test_tokenize_and_back(server: Any) -> None:
    answer = server.post("/tokenize", {"prompt": "the fox 汉"}).json()
    assert answer["tokens"] == server.tokenizer.encode("the fox 汉") and answer["count"] == len(answer["tokens"])
    assert server.post("/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": "the fox 汉"}
    chat = server.post("/tokenize", {"messages": CHAT, "add_generation_prompt": False}).json()
    assert chat["tokens"] == server.tokenizer.encode_chat("<|user|>user:hi<|end|>")
    for bad in ({"tokens": [-1]}, {"tokens": [10**9]}, {"tokens": "x"}, {"tokens": [True]}, {}):
        assert server.post("/detokenize", bad).status_code == 400


def test_openapi_and_docs(server: Any) -> None:
    document = server.http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1") and "/v1/chat/completions" in document["paths"]
    fields = document["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"prompt", "max_tokens", "logit_bias", "min_p"} <= set(fields["properties"])
    references = [part.split('"')[0] for part in json.dumps(document).split('"#/')[1:]]
    for reference in references:  # each names something that is there
        node = document
        for key in reference.split("/"):
            node = node[key]
    page = server.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html") and "repetition_penalty" in page.text
    assert "http://" not in page.text and "https://" not in page.text and "<script" not in page.text


def test_metrics(server: Any) -> None:
    def read() -> dict[str, float]:
        lines = server.http.get("/metrics").text.splitlines()
        return {key: float(value) for key, _, value in (ln.rpartition(" ") for ln in lines if not ln.startswith("#"))}

    before = read()
    server.complete(max_tokens=5)
    server.complete(max_tokens=-1)
    after = read()
    label = '{model_name="tiny"}'
    grown = {key: after[key] - before.get(key, 0) for key in after}
    assert grown[f"vllm:generation_tokens_total{label}"] == 5 == grown[f"orcaserve_generation_tokens_total{label}"]
    assert grown[f"vllm:prompt_tokens_total{label}"] == len(server.tokenizer.encode("the"))
    assert grown['vllm:request_success_total{finished_reason="length",model_name="tiny"}'] == 1
    assert grown['orcaserve_requests_refused_total{code="invalid_value",model_name="tiny"}'] == 1
    assert grown[f"vllm:time_to_first_token_seconds_count{label}"] == 1
    assert grown[f"vllm:inter_token_latency_seconds_count{label}"] == 4
    assert grown[f"vllm:e2e_request_latency_seconds_count{label}"] == 1
    assert after[f"vllm:num_preemptions_total{label}"] == 0
    assert grown[f"vllm:iteration_tokens_total_count{label}"] >= 5
    for idle in ("vllm:num_requests_running", "orcaserve_requests_running", "vllm:num_requests_waiting"):
        assert after[f"{idle}{label}"] == 0
    assert after[f"vllm:kv_cache_usage_perc{label}"] == 0
    assert grown['orcaserve_client_tokens_total{client="none",kind="generation",model_name="tiny"}'] == 5
    assert grown[f"vllm:request_queue_time_seconds_count{label}"] == 1
    prometheus = (
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1"
    )
    scraped = server.http.get("/metrics", headers={"accept": prometheus})
    assert "vllm:num_requests_running{" in scraped.text, "names are not escaped, whatever is asked for"
    assert scraped.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_metrics_of_a_report_without_an_iteration() -> None:
    """Cancels are reported at once: the scheduler's time for them counts, the last iteration does not again."""
    metrics = Metrics("tiny", EngineFacts("tiny", 10, 10, 10, 1, 1), [Replica()])
    for seconds in (0.25, 0.5):
        metrics.on_report(0, IterationReport([], EngineStatus(iteration=1, batch_tokens=4, scheduler_seconds=seconds)))
    text = metrics.render().decode()
    assert 'orcaserve_scheduler_seconds_total{model_name="tiny"} 0.75' in text
    assert 'orcaserve_iteration_tokens_count{model_name="tiny"} 1.0' in text


def test_small_answers(server: Any) -> None:
    assert server.http.get("/live").status_code == server.http.get("/ready").status_code == 200
    assert server.http.get("/version").json()["version"]
    assert server.http.head("/health").status_code == 200
    model = server.http.get("/v1/models/tiny").json()
    assert model["id"] == "tiny" and model["max_model_len"] == 128
    assert server.http.get("/v1/models/other").status_code == 404


def test_metrics_of_several_replicas() -> None:
    """The known names are sums, so that dashboards go on; what concerns one replica has names of its own."""
    statuses = EngineStatus(n_live=3, n_waiting=1, n_reserved=40), EngineStatus(n_live=2, n_reserved=60)
    replicas = [Replica(status=statuses[0]), Replica(present=False, status=statuses[1])]
    metrics = Metrics("tiny", EngineFacts("tiny", 10, 10, 100, 1, 1), replicas)
    for replica, iteration in ((0, 1), (1, 1), (1, 2)):
        lost = EngineStatus(iteration=iteration, n_preempted=iteration, n_recomputed=10 * iteration)
        metrics.on_report(replica, IterationReport([], lost))
    metrics.on_restart(1)
    metrics.on_report(1, IterationReport([], EngineStatus(iteration=1, n_preempted=1, n_recomputed=30)))
    text = metrics.render().decode()
    for line in (
        'orcaserve_requests_running{model_name="tiny"} 4.0',
        'vllm:num_requests_waiting{model_name="tiny"} 1.0',
        'orcaserve_kv_slots{model_name="tiny"} 200.0',
        'vllm:kv_cache_usage_perc{model_name="tiny"} 0.5',
        'orcaserve_iterations_total{model_name="tiny"} 4.0',
        'vllm:num_preemptions_total{model_name="tiny"} 4.0',
        'orcaserve_recomputed_tokens_total{model_name="tiny"} 60.0',
        'orcaserve_replica_present{model_name="tiny",replica="0"} 1.0',
        'orcaserve_replica_present{model_name="tiny",replica="1"} 0.0',
        'orcaserve_replica_kv_slots_reserved{model_name="tiny",replica="1"} 60.0',
    ):
        assert line in text.splitlines()
