"""The cost of accelerators: the formula by hand, and that it never falls when an iteration grows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core import ConfigError
from orcaserve.simulation.device_memory import device_memory
from orcaserve.simulation.hardware import A100_40GB, HARDWARE, find_hardware
from orcaserve.simulation.models import PAPER_MODELS, Cut
from orcaserve.simulation.paper import FASTER_TRANSFORMER_ENGINE, ORCA_ENGINE, paper_cost
from orcaserve.simulation.shape import shape_of_sizes
from orcaserve.simulation.transformer_cost import Factors, TransformerCost

_SIZES = st.lists(st.tuples(st.integers(1, 600), st.integers(0, 1500)), min_size=1, max_size=40)


def test_a_decoding_iteration_of_175b_by_hand() -> None:
    """32 requests with 144 earlier tokens each: weights read once, context read, sums, launches, split."""
    shape = shape_of_sizes([(1, 144)] * 32)
    first, last = paper_cost("175b", ORCA_ENGINE).stage_seconds(shape)
    bandwidth = 1555e9 * 0.76
    layer = 2 * 12 * 12288**2 / 8 / bandwidth  # matrices
    layer += 2 * (32e-6 + 32e-6 * (32 * 12288 * 2 - 256e3) / 744e3)  # two sums of 786 KB
    layer += 32 * 144 * 4 * 12288 / 8 / bandwidth  # context
    layer += 75e-6 + 7 * 10e-6
    send = 50e-6 + 32 * 12288 * 2 / 200e9
    head = 2 * 50257 * 12288 / 8 / bandwidth
    assert first == pytest.approx(48 * layer + send, rel=1e-6)
    assert last == pytest.approx(48 * layer + send + head, rel=1e-6)


@given(_SIZES, st.sampled_from([ORCA_ENGINE, FASTER_TRANSFORMER_ENGINE]), st.sampled_from(list(PAPER_MODELS)))
def test_another_request_never_makes_an_iteration_much_quicker(
    sizes: list[tuple[int, int]], factors: Factors, model: str
) -> None:
    """Larger matrices are worked on more efficiently, which can make up for a little."""
    cost = paper_cost(model, factors)
    smaller, larger = (sum(cost.stage_seconds(shape_of_sizes(s))) for s in (sizes, [*sizes, (1, 100)]))
    assert 0 < smaller <= larger * 1.01
    assert len(cost.stage_seconds(shape_of_sizes(sizes))) == cost.n_workers


def test_padding_costs_what_the_longest_would() -> None:
    uneven, even = shape_of_sizes([(1, 10), (1, 1000)]), shape_of_sizes([(1, 1000), (1, 1000)])
    padded = paper_cost("101b", replace(ORCA_ENGINE, padded=True))
    assert padded.stage_seconds(uneven) == padded.stage_seconds(even)
    assert paper_cost("101b", ORCA_ENGINE).stage_seconds(uneven) < padded.stage_seconds(uneven)


def test_overhead_is_a_factor_of_everything() -> None:
    shape = shape_of_sizes([(100, 0), (1, 50)])
    alone, serving = (
        paper_cost("175b", replace(ORCA_ENGINE, overhead=overhead)).stage_seconds(shape) for overhead in (1.0, 1.5)
    )
    assert list(serving) == pytest.approx([1.5 * seconds for seconds in alone])


def test_faster_hardware_is_faster() -> None:
    sizes, cut = PAPER_MODELS["101b"]
    shape = shape_of_sizes([(300, 0), *[(1, 400)] * 20])
    times = [sum(TransformerCost(sizes, HARDWARE[h], cut, ORCA_ENGINE).stage_seconds(shape))
             for h in ("a100-40gb", "a100-80gb", "h100", "h200", "b200")]  # fmt: skip
    assert times == sorted(times, reverse=True) and times[-1] < times[0] / 2


def test_uneven_cuts_hold_every_layer() -> None:
    sizes, _ = PAPER_MODELS["13b"]  # 40 layers
    memory = [device_memory(sizes, A100_40GB, Cut(stages, 1)) for stages in (1, 2, 3)]
    assert [m.slot for m in memory] == [819_200, 409_600, 14 * 819_200 // 40]
    assert memory[0].weights == pytest.approx(25.7e9, rel=0.01)
    assert not replace(memory[0], total=10**9).fits


def test_unknown_hardware_is_named_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"abacus.*h200"):
        find_hardware("abacus")
