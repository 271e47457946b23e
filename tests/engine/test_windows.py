"""A model with sliding windows on a real engine: texts far longer than the K/V region, and transformers' tokens."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from orcaserve.config import POLICY_NAMES, EngineConfig, KVConfig, ModelConfig, ParallelConfig, SchedulerConfig
from orcaserve.core import CannotFit, IterationReport, Request, SamplingParams
from orcaserve.core.admission import check_request
from orcaserve.engine.host import EngineHost

WINDOW, PAGE, CONTEXT = 24, 16, 1024
STEADY, MOST = 3 * PAGE, 4 * PAGE  # slots that a request keeps, and that its initiation may have
N_SLOTS = 10 * PAGE
GREEDY = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def mistral() -> Any:
    """A random MistralForCausalLM whose window is far shorter than its context."""
    import transformers

    config = transformers.MistralConfig(
        vocab_size=131, hidden_size=96, intermediate_size=160, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, sliding_window=WINDOW, eos_token_id=3,
    )  # fmt: skip
    model = transformers.MistralForCausalLM._from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in name else 0.15 * noise)
    return model.eval()


@pytest.fixture(scope="module")
def model(mistral: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mistral")
    mistral.save_pretrained(path)
    return path


def settings(
    model: Path, scheduler: SchedulerConfig, device: str = "reference", n_slots: int = N_SLOTS, p: int = 1
) -> EngineConfig:
    return EngineConfig(
        ModelConfig(model, "tiny", dtype="float32", quantization="none", device=device, threads=1),
        KVConfig(n_slots=n_slots, dtype="float32", page_size=PAGE),
        scheduler,
        ParallelConfig(p),
    )


def run(config: EngineConfig, requests: Sequence[Request]) -> tuple[dict[int, list[int]], list[IterationReport]]:
    """The tokens of every request, and all reports."""
    news: SimpleQueue[IterationReport] = SimpleQueue()
    host = EngineHost.load(config, news.put)
    tokens: dict[int, list[int]] = {request.id: [] for request in requests}
    reports = []
    try:
        assert host.facts.longest_request == CONTEXT
        host.submit(requests)
        n_live = len(requests)
        while n_live:
            reports.append(report := news.get(timeout=120))
            for each in report.progress:
                assert each.error is None, each.error
                if each.token is not None:
                    tokens[each.request_id].append(each.token)
                n_live -= each.finish_reason is not None
    finally:
        host.close()
    return tokens, reports


def text(seed: int, n: int) -> list[int]:
    return random.Random(seed).choices(range(4, 131), k=n)


def some_requests(sizes: Sequence[tuple[int, int]]) -> list[Request]:
    """sizes: input tokens and output tokens."""
    return [Request(i, text(i, n), SamplingParams(max_tokens=m, **GREEDY)) for i, (n, m) in enumerate(sizes)]  # type: ignore[arg-type]


def assert_greedy(mistral: Any, requests: Sequence[Request], tokens: Mapping[int, Sequence[int]]) -> None:
    """Every token is the best one after all before it, by transformers' own attention; without windows it is not."""
    n_other = 0
    for request in requests:
        ids = torch.tensor([[*request.input_ids, *tokens[request.id]]])
        with torch.no_grad():
            logits = mistral(ids).logits[0, request.n_input - 1 : -1]
            mistral.config.sliding_window = None
            unlimited = mistral(ids).logits[0, request.n_input - 1 : -1].argmax(-1)
            mistral.config.sliding_window = WINDOW
        chosen = ids[0, request.n_input :]
        lacking = logits.max(-1).values - logits.gather(-1, chosen[:, None])[:, 0]
        assert len(chosen) == request.params.max_tokens and lacking.max() < 1e-3
        n_other += int((unlimited != chosen).sum())
    assert n_other > 50, "without windows the tokens would be the same, so this shows nothing"


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_texts_longer_than_the_region(device: str, mistral: Any, model: Path) -> None:
    """1,200 tokens of six requests in 160 slots; one prompt alone is longer than that."""
    requests = some_requests([(200, 150), (7, 250), (60, 100), (25, 200), (3, 20), (180, 5)])
    tokens, reports = run(settings(model, SchedulerConfig(4), device), requests)
    assert_greedy(mistral, requests, tokens)
    for report in reports:
        status = report.status
        assert status.n_used <= status.n_reserved <= N_SLOTS
        assert status.n_reserved <= MOST * (status.n_live - status.n_waiting)
    assert max(report.status.n_running for report in reports) >= 3, "three windows fit at once"
    assert reports[-1].status.n_used == reports[-1].status.n_reserved == 0


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_under_every_policy(policy: str, mistral: Any, model: Path) -> None:
    """With request-level all that have ended are computed on to the end of the context: the fewer, the better."""
    requests = some_requests([(90, 40), (5, 60), (200, 10)] if policy != "request-level" else [(170, 8), (40, 80)])
    limit = {"max_num_batched_tokens": 40} if policy == "iteration-level" else {}
    tokens, reports = run(settings(model, SchedulerConfig(3, policy, **limit)), requests)  # type: ignore[arg-type]
    assert_greedy(mistral, requests, tokens)
    assert all(report.status.n_reserved <= N_SLOTS for report in reports)


def test_preempted_requests_start_anew_from_texts_longer_than_the_region(mistral: Any, model: Path) -> None:
    requests = some_requests([(20, 120), (20, 120), (20, 120), (20, 120)])
    tokens, reports = run(settings(model, SchedulerConfig(4, "overcommit"), n_slots=5 * PAGE), requests)
    assert_greedy(mistral, requests, tokens)
    assert reports[-1].status.n_preempted > 0


def test_a_request_that_an_engine_before_has_begun(mistral: Any, model: Path) -> None:
    """Its initiation is all of its text so far, which does not fit into the region."""
    (request,) = some_requests([(100, 150)])
    tokens, _ = run(settings(model, SchedulerConfig(2)), [request])
    carried = Request(0, request.input_ids, request.params, output=tokens[0][:100])
    rest, _ = run(settings(model, SchedulerConfig(2)), [carried])
    assert_greedy(mistral, [request], {0: [*tokens[0][:100], *rest[0]]})


def test_prefixes_are_shared_by_those_who_stay_within_the_window(model: Path) -> None:
    short = [Request(i, text(1, 17), SamplingParams(max_tokens=5, **GREEDY)) for i in range(3)]  # type: ignore[arg-type]
    long = [Request(i, text(1, 17), SamplingParams(max_tokens=90, **GREEDY)) for i in range(3)]  # type: ignore[arg-type]
    cached = [
        run(settings(model, SchedulerConfig(1, prefix_caching=True)), requests)[1][-1].status.n_cached
        for requests in (short, long)
    ]
    assert cached == [2 * PAGE, 0]


def test_what_the_region_has_to_hold(model: Path) -> None:
    """Below a window's pages nothing is ever released: then the region is the limit, as it is without windows."""
    for n_slots, longest in ((STEADY, CONTEXT), (STEADY - PAGE, STEADY - PAGE)):
        host = EngineHost.load(settings(model, SchedulerConfig(1), n_slots=n_slots), lambda report: None)
        try:
            assert host.facts.longest_request == longest
            check_request([5] * 10, SamplingParams(max_tokens=longest - 10), host.facts)
            with pytest.raises(CannotFit):
                check_request([5] * 10, SamplingParams(max_tokens=longest - 9), host.facts)
        finally:
            host.close()
