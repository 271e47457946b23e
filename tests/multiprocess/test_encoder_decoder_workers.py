"""Models with an encoder, cut over real processes, give what one process gives."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from engine_runs import Running, settings
from server_process import workers

from orcaserve.core import Request
from orcaserve.core import SamplingParams as Params

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[1]))
from encoder_decoders import SOURCES, VOCABULARY, add_tokenizer, save

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

KINDS = ("t5 v1.1", "bart scaled, forced", "marian")


def requests() -> list[Request]:
    """More than fit a batch, and more than fit the K/V region: pages are given back and used anew."""
    greedy = Params(max_tokens=12, temperature=0)
    seeded = Params(max_tokens=10, temperature=0.9, top_p=0.95, repetition_penalty=1.2, presence_penalty=0.4,
                    frequency_penalty=0.2, logit_bias={7: 1.5})  # fmt: skip
    prompts = [*SOURCES, [5], [9, 8, 7] * 6, [VOCABULARY - 1]]
    return [
        Request(i, list(prompt), replace(greedy if i % 2 == 0 else seeded), frozenset({2}), seed=1000 + i)
        for i, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("cut")
    for kind in KINDS:
        save(kind, root / kind)
        add_tokenizer(root / kind)
    return {kind: root / kind for kind in KINDS}


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> dict[str, dict[int, list[int]]]:
    texts = {}
    for kind in KINDS:
        with Running(settings(folders[kind])) as one:
            texts[kind] = one.run(requests())
    return texts


@pytest.mark.parametrize(
    ("kind", "t", "split"),
    [
        ("t5 v1.1", 1, (3, 2)),
        ("bart scaled, forced", 2, (5,)),
        ("marian", 2, (4, 1)),
        ("t5 v1.1", 2, (1, 2, 2)),  # an encoder's layer alone, which has no keys and values
    ],
)
def test_cut_into_parts_it_gives_the_tokens_of_one_process(
    kind: str,
    t: int,
    split: Sequence[int],
    folders: dict[str, Path],
    expected: dict[str, dict[int, list[int]]],
    alive: Callable[[int], bool],
) -> None:
    with Running(settings(folders[kind], len(split), t, layer_split=split)) as engine:
        pids = workers(os.getpid())
        assert set(pids) == {f"s{stage}r{shard}" for stage in range(len(split)) for shard in range(t)}
        assert engine.host.facts.source is not None and engine.host.facts.n_slots == 160
        assert engine.run(requests()) == expected[kind]
    assert not any(alive(pid) for pid in pids.values())
