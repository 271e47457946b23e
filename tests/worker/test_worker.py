"""The worker on a tiny model: one iteration at a time, and what is wrong with one request stays with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest

from orcaserve.config import EngineConfig, KVConfig, ModelConfig, SchedulerConfig
from orcaserve.core import Batch, BatchEntry, ConfigError, EngineFacts, IterationResult, ModelNotFound, Phase
from orcaserve.core import SamplingParams as Params
from orcaserve.worker.worker import Worker

GREEDY = Params(max_tokens=100, temperature=0)


DEVICES = ("cpu", "reference")


class Rig:
    """A worker with 8 pages of 16 slots, and the numbering of its iterations."""

    def __init__(self, model: Path, device: str) -> None:
        config = ModelConfig(model, "tiny", device=device, threads=1)
        self.worker = Worker.load(EngineConfig(config, KVConfig(n_slots=128), SchedulerConfig(8)))
        self._iterations = count(1)

    def run(self, *entries: BatchEntry, drops: Sequence[int] = ()) -> IterationResult:
        batch = Batch(next(self._iterations), entries, tuple(drops))
        result = self.worker.run(batch)
        assert result.iteration == batch.iteration
        assert len(result.tokens) == len(entries)
        return result

    def alone(self, id: int, prompt: Sequence[int], n: int) -> list[int]:
        """n greedy tokens of a request that has the worker to itself."""
        tokens = list(self.run(first(id, prompt)).tokens)
        while len(tokens) < n:
            tokens += self.run(later(id, tokens[-1], len(prompt) + len(tokens) - 1)).tokens
        return tokens


@pytest.fixture(scope="module", params=DEVICES)
def new_rig(request: pytest.FixtureRequest, tiny_model: Path) -> Callable[[], Rig]:
    return lambda: Rig(tiny_model, request.param)


@pytest.fixture(scope="module")
def rig(new_rig: Callable[[], Rig]) -> Rig:
    return new_rig()


def first(id: int, prompt: Sequence[int], params: Params = GREEDY) -> BatchEntry:
    return BatchEntry(id, Phase.INITIATION, prompt, 0, params)


def later(id: int, token: int, position: int) -> BatchEntry:
    return BatchEntry(id, Phase.INCREMENT, [token], position)


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.3, "presence_penalty": 1, "min_tokens": 9}])
def test_a_request_of_a_worker_that_is_gone_goes_on(new_rig: Callable[[], Rig], options: dict[str, float]) -> None:
    prompt, params = [3, 4, 5], Params(max_tokens=100, repetition_penalty=1.2, **options)
    before, after = new_rig(), new_rig()
    text = list(before.run(first(1, prompt, params)).tokens)
    while len(text) < 12:
        text += before.run(later(1, text[-1], len(prompt) + len(text) - 1)).tokens
    kept = text[:5]
    again = list(after.run(BatchEntry(1, Phase.INITIATION, prompt + kept, 0, params, n_output=5)).tokens)
    while len(kept) + len(again) < 12:
        again += after.run(later(1, again[-1], len(prompt) + 5 + len(again) - 1)).tokens
    assert kept + again == text


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.3, "presence_penalty": 1, "min_tokens": 9}])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1, 1), (4, 2), (5, 1), (1, 3, 2)])
def test_an_initiation_in_pieces(new_rig: Callable[[], Rig], options: dict[str, float], sizes: Sequence[int]) -> None:
    """The token after the last piece is that of an initiation at once, penalties and carried output included; the ones
    before mean nothing. Beside it others go on."""
    text, n_output, params = [3, 4, 5, 9, 3, 8], 3, Params(max_tokens=100, repetition_penalty=1.2, **options)
    whole, cut = new_rig(), new_rig()
    expected = list(whole.run(BatchEntry(1, Phase.INITIATION, text, 0, params, n_output=n_output)).tokens)
    while len(expected) < 6:
        expected += whole.run(later(1, expected[-1], len(text) + len(expected) - 1)).tokens
    other = cut.alone(2, [7, 7], 1)
    at, tokens = 0, []
    for size in sizes:
        settings = (params, frozenset[int](), 0, n_output) if at + size == len(text) else ()
        n_to_come = len(text) - at - size
        piece = BatchEntry(1, Phase.INITIATION, text[at : at + size], at, *settings, n_to_come=n_to_come)
        tokens = list(cut.run(piece, later(2, other[-1], 1 + len(other))).tokens)
        at += size
        other.append(tokens[1])
    tokens.pop()
    while len(tokens) < 6:
        tokens += cut.run(later(1, tokens[-1], len(text) + len(tokens) - 1)).tokens
    assert tokens == expected
    assert other == new_rig().alone(2, [7, 7], len(other))


def test_pieces_alone_and_a_request_that_is_dropped_amid_them(rig: Rig) -> None:
    piece = BatchEntry(50, Phase.INITIATION, [1, 2], 0, n_to_come=3)
    assert list(rig.run(piece).tokens) == [0]
    lost = BatchEntry(50, Phase.INITIATION, [1, 2, 3], 0, GREEDY)
    assert list(rig.run(lost, drops=[50]).tokens) == rig.alone(51, [1, 2, 3], 1)
    rig.run(first(52, [1]), drops=[50, 51])
    rig.run(first(53, [1]), drops=[52])
    rig.worker.run(Batch(999, (first(54, [1]),), (53,)))


def test_facts(rig: Rig) -> None:
    assert rig.worker.facts == EngineFacts("tiny", 256, 4096, 128, 8, 1, frozenset({2}), embedding_size=32)


def test_a_mixed_batch_gives_what_each_request_gets_alone(rig: Rig) -> None:
    a, b = rig.alone(1, [3, 4, 5], 3), rig.alone(2, [7] * 20, 2)
    start = rig.run(first(3, [3, 4, 5]), drops=[1, 2])
    assert start.tokens == a[:1]
    mixed = rig.run(later(3, a[0], 3), first(4, [7] * 20))
    assert mixed.tokens == [a[1], b[0]]
    assert rig.run(later(3, a[1], 4), later(4, b[0], 20)).tokens == [a[2], b[1]]
    assert mixed.failures == {} and 0 < mixed.seconds < 10
    rig.run(first(5, [1]), drops=[3, 4])
    rig.run(first(6, [1]), drops=[5])
    rig.run(first(7, [1]), drops=[6, 7])


def test_what_is_dropped_is_free_for_the_same_batch(new_rig: Callable[[], Rig]) -> None:
    rig = new_rig()
    rig.run(first(1, [5] * 127))
    result = rig.run(first(2, [6] * 127), drops=[1])
    assert result.failures == {}
    with pytest.raises(AssertionError, match="without a reservation"):
        rig.run(first(3, [7] * 16))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (first(9, [1, 256]), "outside 0..255"),
        (first(9, [-1]), "outside 0..255"),
        (first(9, [1] * 4097), "context length of 4096"),
        (BatchEntry(9, Phase.INITIATION, [1], 5, GREEDY), "lost"),
        (later(9, 1, 4), "lost"),
        (first(9, [1], Params(temperature=0, logit_bias={256: 1.0})), "256|255"),
    ],
    ids=["past the vocabulary", "negative", "too long", "a gap", "unknown request", "bias"],
)
def test_an_entry_that_cannot_be_run_fails_alone(new_rig: Callable[[], Rig], bad: BatchEntry, says: str) -> None:
    rig = new_rig()
    expected = rig.alone(1, [3, 4, 5], 3)
    rig.run(first(2, [3, 4, 5]), drops=[1])
    result = rig.run(bad, later(2, expected[0], 3))
    assert list(result.failures) == [9]
    assert says.split("|")[-1] in result.failures[9]
    assert result.tokens == [0, expected[1]]
    assert rig.run(later(2, expected[1], 4), drops=[9]).tokens == [expected[2]]


def test_a_batch_of_which_nothing_can_be_run(rig: Rig) -> None:
    result = rig.run(first(9, [999]))
    assert (result.tokens, list(result.failures)) == ([0], [9])


def test_the_default_region_holds_no_more_than_requests_could_fill(tiny_model: Path) -> None:
    config = EngineConfig(ModelConfig(tiny_model, "tiny", max_model_len=100), scheduler=SchedulerConfig(3))
    facts = Worker.load(config).facts
    assert (facts.context_length, facts.n_slots) == (100, 304)


def test_settings_that_do_not_suit(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--max-model-len: the model was trained for 4096 tokens, not 4097"):
        Worker.load(EngineConfig(ModelConfig(tiny_model, "tiny", max_model_len=4097)))
    with pytest.raises(ConfigError, match="--n-slots"):
        Worker.load(EngineConfig(ModelConfig(tiny_model, "tiny"), KVConfig(n_slots=2**40)))
    with pytest.raises(ModelNotFound):
        Worker.load(EngineConfig(ModelConfig(tmp_path / "none", "tiny")))
