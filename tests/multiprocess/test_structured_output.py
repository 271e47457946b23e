"""Structured output by real servers: every whole answer validates, streamed or not, whoever dies meanwhile."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from disturbed import Alive, Within, outcomes, replaced, run_all, serving
from server_process import Serve

sys.path.insert(0, str(Path(__file__).parents[1] / "text"))
from schemas import HARD
from walks import check

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

CUTS = [(), ("-pp", "2"), ("-tp", "2")]
# Such as come to an end whatever the model is.
SHORT = (
    "person",
    "nested",
    "enum",
    "pattern",
    "date-time",
    "ref",
    "anyOf",
    "unicode",
    "prefixItems",
    "names like keywords",
)


def asks_for(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


def constrained_bodies(max_tokens: int) -> list[dict[str, Any]]:
    return [
        {
            "prompt": f"{i} " * (1 + i % 5),
            "max_tokens": max_tokens,
            "temperature": i % 3,
            "seed": i,
            "ignore_eos": False,
            **asks_for(HARD[SHORT[i % len(SHORT)]]),
        }
        for i in range(20)
    ]


@pytest.fixture(params=CUTS, ids=["whole", "2x1", "1x2"])
def serve(
    request: pytest.FixtureRequest, served_odd_model: Path, folder: Path, alive: Alive, within: Within
) -> Iterator[Serve]:
    with serving(served_odd_model, request.param, folder, alive, within) as serve:
        yield serve


def test_every_answer_validates_and_streams_are_the_same(serve: Serve) -> None:
    wanted = constrained_bodies(700)
    streams = run_all(serve, wanted, lambda: None)
    assert [stream.error for stream in streams] == [None] * len(wanted)
    n_whole = 0
    for body, stream in zip(wanted, streams, strict=True):
        whole = serve.complete(**body)["choices"][0]
        assert (whole["text"], whole["finish_reason"]) == (stream.text, stream.reason)
        if stream.reason == "stop":
            check(stream.text, body["response_format"]["json_schema"]["schema"])
            n_whole += 1
    assert n_whole >= 12


def test_engines_are_killed_and_no_text_changes(serve: Serve, within: Within) -> None:
    wanted = constrained_bodies(300)
    started = time.monotonic()
    undisturbed = outcomes(run_all(serve, wanted, lambda: None))
    took = time.monotonic() - started
    rng = random.Random(1)
    for _ in range(2):
        engine = serve.engine_pid

        def kill(engine: int = engine) -> None:
            time.sleep(rng.uniform(0.2, 0.7) * took)
            os.kill(engine, signal.SIGKILL)

        streams = run_all(serve, wanted, kill)
        assert [stream.error for stream in streams] == [None] * len(wanted)
        assert outcomes(streams) == undisturbed
        assert within(20, lambda engine=engine: replaced(serve, engine))  # type: ignore[misc]


def test_the_process_that_compiles_ends_with_the_endpoint(served_model: Path, alive: Alive, within: Within) -> None:
    for signum in (signal.SIGTERM, signal.SIGKILL):
        serve = Serve(str(served_model), "--port", "0", "--n-slots", "2048", "-t", "1")
        assert serve.grammar_pids == [], "nobody asked for a grammar yet"
        assert re.fullmatch("[ab]{3}", serve.text(structured_outputs={"regex": "[ab]{3}"}, ignore_eos=False))
        (pid,) = serve.grammar_pids
        serve.stop(signum)
        assert within(5, lambda pid=pid: not alive(pid))  # type: ignore[misc]


def test_the_default_model(default_model: Path) -> None:
    """With a sense of its own: it writes what it is asked for, within the bounds."""
    serve = Serve(str(default_model), "--port", "0", "--n-slots", "16384")
    try:
        question = [{"role": "user", "content": "Tell me about a person who lives by the sea, as JSON."}]
        jobs = [(name, temperature) for name in SHORT for temperature in (0, 1, 2)]

        def ask(job: tuple[str, int]) -> dict[str, Any]:
            name, temperature = job
            body = {"messages": question, "max_tokens": 400, "temperature": temperature, "seed": 5}
            answer = serve.post("/v1/chat/completions", **body, **asks_for(HARD[name]))
            assert answer.status_code == 200, answer.text
            choice: dict[str, Any] = answer.json()["choices"][0]
            return choice

        with ThreadPoolExecutor(len(jobs)) as pool:
            choices = list(pool.map(ask, jobs))
        n_whole = 0
        for (name, _), choice in zip(jobs, choices, strict=True):
            if choice["finish_reason"] == "stop":
                check(choice["message"]["content"], HARD[name])
                n_whole += 1
        assert n_whole >= len(jobs) * 0.8
        # It has no token with the byte that this character begins with.
        known = serve.text(max_tokens=8)
        for body in (
            {"structured_outputs": {"regex": "a\U00040000"}},
            {"structured_outputs": {"choice": ["a\U00040000"]}},
            asks_for({"enum": ["a\U00040000"]}),
        ):
            answer = serve.post("/v1/chat/completions", messages=question, **body)
            assert answer.status_code == 400 and "cannot write" in answer.json()["error"]["message"]
            assert answer.json()["error"]["code"] == "invalid_grammar"
        # What is found out on the way ends that request alone, whatever runs beside it.
        odd = {"structured_outputs": {"grammar": r"start: /a\x{40000}/"}}
        with ThreadPoolExecutor(6) as pool:
            bodies = [odd, {}] * 3
            answers = list(
                pool.map(lambda own: serve.post("/v1/completions", prompt="The", max_tokens=8, **own), bodies)
            )
        for answer in answers[::2]:
            assert answer.status_code == 500 and "cannot write" in answer.json()["error"]["message"]
        assert [answer.status_code for answer in answers[1::2]] == [200] * 3
        assert serve.text(max_tokens=8) == known
        picked = serve.post("/v1/chat/completions", messages=question, structured_outputs={"choice": ["sea", "land"]})
        assert picked.json()["choices"][0]["message"]["content"] in ("sea", "land")
    finally:
        serve.stop()
