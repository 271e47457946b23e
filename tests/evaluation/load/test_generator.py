"""The generator: when it sends, how many at once, and with which prompts."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from scripted_server import DONE, always, plain, scripted, stream, text_event, usage_event

from orcaserve.core.errors import ConfigError
from orcaserve.evaluation.load.generator import Generator
from orcaserve.evaluation.load.prompts import TokenIds, Words, choose_prompts
from orcaserve.evaluation.load.record import UNFINISHED
from orcaserve.evaluation.load.server import ServerError
from orcaserve.workload import Arrival

OK = stream(text_event("a"), text_event("b"), usage_event(4, 2), DONE)


class Watcher:
    """Answers after `seconds`; notes bodies and how many were running at once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.bodies: list[dict[str, Any]] = []
        self.running = self.most = 0

    async def __call__(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.bodies.append(body)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        writer.write(OK)


def run(
    watcher: Any, arrivals: list[Arrival], concurrency: int | None = None, within: float | None = None
) -> Generator:
    async def main() -> Generator:
        async with scripted(watcher) as server:
            generator = Generator(server, TokenIds(100, 999), {"model": "m"}, 0, len(arrivals))
            going = (
                generator.open_loop(arrivals) if concurrency is None else generator.closed_loop(arrivals, concurrency)
            )
            try:
                async with asyncio.timeout(within):
                    await going
            except TimeoutError:
                pass
            return generator

    return asyncio.run(main())


def test_an_open_loop_does_not_wait_for_answers() -> None:
    watcher = Watcher(0.3)
    load = run(watcher, [Arrival(0.02 * i, 4, 2) for i in range(8)]).load
    assert watcher.most == 8
    assert all(record.whole and record.lateness >= 0 for record in load.records)
    assert [record.due for record in load.records] == [0.02 * i for i in range(8)]
    assert load.n_over == 8 and load.n_events == 16 and load.lags and load.seconds > 0.3


def test_a_closed_loop_has_so_many_at_once() -> None:
    watcher = Watcher(0.02)
    load = run(watcher, [Arrival(0.0, 4, 2)] * 9, concurrency=3).load
    assert watcher.most == 3 and len(watcher.bodies) == 9
    assert all(record.lateness == 0 for record in load.records)


def test_prompts_differ_and_repeat_with_the_seed() -> None:
    watcher = Watcher(0.0)
    arrivals = [Arrival(0.0, n, 2) for n in (5, 5, 9)]
    run(watcher, arrivals)
    prompts = [body["prompt"] for body in watcher.bodies]
    assert sorted(map(len, prompts)) == [5, 5, 9]
    assert len({tuple(prompt[:3]) for prompt in prompts}) == 3
    assert all(100 <= token <= 999 for prompt in prompts for token in prompt)
    again = Watcher(0.0)
    run(again, arrivals)
    assert sorted(prompts) == sorted(body["prompt"] for body in again.bodies)


def test_what_is_cut_short_is_unfinished() -> None:
    load = run(Watcher(30.0), [Arrival(0.0, 4, 2), Arrival(20.0, 4, 2)], within=0.2).load
    assert [record.error for record in load.records] == [UNFINISHED]
    assert load.n_running == 1 and load.n_failed == 0


def test_failures_do_not_stop_the_others() -> None:
    async def moody(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(OK if len(body["prompt"]) > 4 else plain(429, b"{}"))

    load = run(moody, [Arrival(0.0, n, 2) for n in (4, 5, 4, 6)]).load
    assert [record.error for record in load.records] == ["HTTP 429", None, "HTTP 429", None]
    assert load.n_failed == 2


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (plain(200, b'{"choices": []}'), "the answer is no event stream"),
        (stream(DONE), "the answer has no token"),
        (stream(usage_event(4, 0), DONE), "the answer has no token"),
    ],
)
def test_answers_without_tokens_are_failures(answer: bytes, says: str) -> None:
    (record,) = run(always(answer), [Arrival(0.0, 4, 2)]).load.records
    assert record.error == says


def choose(script: Any, endpoint: str = "completions", kind: str = "auto") -> Any:
    async def main() -> Any:
        async with scripted(script, endpoint) as server:
            return await choose_prompts(server, {"model": "m"}, endpoint == "chat", kind)

    return asyncio.run(main())


class Counting:
    """A server that knows `vocabulary` ids (None: takes none), and counts words as `per_word` tokens and 7 more."""

    def __init__(self, vocabulary: int | None, per_word: int = 2) -> None:
        self.vocabulary, self.per_word = vocabulary, per_word

    async def __call__(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        if isinstance(prompt, str):
            n = len(prompt.split()) * self.per_word + 7
        elif self.vocabulary is None or max(prompt) >= self.vocabulary:
            writer.write(plain(400, b'{"error": {"message": "no such id"}}'))
            return
        else:
            n = len(prompt)
        writer.write(plain(200, b'{"usage": {"prompt_tokens": %d}}' % n))


@pytest.mark.parametrize(("vocabulary", "most"), [(49152, 30_000), (2048, 1_000), (256, 200)])
def test_ids_of_any_vocabulary(vocabulary: int, most: int) -> None:
    prompts = choose(Counting(vocabulary))
    assert isinstance(prompts, TokenIds)
    ids = prompts.fields(5000, random.Random(0))["prompt"]
    assert len(ids) == 5000 and max(ids) <= most < vocabulary


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_words_where_ids_are_not_taken(endpoint: str) -> None:
    prompts = choose(Counting(None), endpoint)
    assert isinstance(prompts, Words) and "2.000 tokens each and 7 around" in prompts.how
    fields = prompts.fields(107, random.Random(0))
    text = fields["messages"][0]["content"] if endpoint == "chat" else fields["prompt"]
    assert len(text.split()) == 50


def test_what_cannot_be_had() -> None:
    with pytest.raises(ConfigError, match="--prompts: chat takes no token ids"):
        choose(Counting(256), "chat", "ids")
    with pytest.raises(ServerError, match="takes no token ids: HTTP 400 no such id"):
        choose(Counting(None), "completions", "ids")
    with pytest.raises(ServerError, match="refuses a prompt of 40 words: HTTP 500 broken"):
        choose(always(plain(500, b'{"error": "broken"}')))


def test_a_server_that_counts_nothing_gets_a_word_for_a_token() -> None:
    prompts = choose(always(plain(200, b"{}")), "chat")
    assert len(prompts.fields(12, random.Random(0))["messages"][0]["content"].split()) == 12
