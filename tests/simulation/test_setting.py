"""Every policy in virtual time: each request ends once, with all its tokens, in order."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orcaserve.core import ConfigError
from orcaserve.scheduler.policies import POLICIES
from orcaserve.simulation.hardware import A100_40GB
from orcaserve.simulation.models import Cut, gpt
from orcaserve.simulation.outcome import Outcome
from orcaserve.simulation.pipeline import Pipeline
from orcaserve.simulation.profile import ProfiledCost
from orcaserve.simulation.setting import Setting
from orcaserve.simulation.transformer_cost import Factors, TransformerCost
from orcaserve.workload import Arrival, paper_trace

MODEL = gpt("small", 6, 512, context_length=96)


def _setting(policy: str, n_workers: int, n_slots: int = 1200, max_bs: int = 4) -> Setting:
    cost = TransformerCost(MODEL, A100_40GB, Cut(n_workers, 1), Factors())
    microbatch = 2 if policy == "request-level" else None
    return Setting(cost, n_slots, max_bs, MODEL.context_length, 16, policy, microbatch)


@st.composite
def _workloads(draw: st.DrawFn) -> list[Arrival]:
    now, arrivals = 0.0, []
    for _ in range(draw(st.integers(1, 12))):
        now += draw(st.floats(0, 0.02))
        n_output = draw(st.integers(1, 12))
        arrivals.append(Arrival(now, draw(st.integers(1, 40)), n_output, n_output + draw(st.integers(0, 20))))
    return arrivals


@pytest.mark.parametrize("policy", POLICIES)
@given(arrivals=_workloads(), n_workers=st.integers(1, 3), n_slots=st.integers(96 * 2, 800))
@settings(max_examples=40, deadline=None)
def test_every_request_ends_once_whatever_the_policy(
    policy: str, arrivals: list[Arrival], n_workers: int, n_slots: int
) -> None:
    outcome = _setting(policy, n_workers, n_slots).run(arrivals)
    assert [life.arrival for life in outcome.lives] == arrivals
    for life in outcome.lives:
        assert life.refused is None
        assert len(life.token_times) == life.arrival.n_output
        assert life.token_times[0] > life.arrival.time
        assert all(a <= b for a, b in pairwise(life.token_times))
    assert outcome.seconds == max(life.token_times[-1] for life in outcome.lives)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_is_repeated_exactly(policy: str) -> None:
    arrivals = [Arrival(a.time, min(a.n_input, 40), min(a.n_output, 30)) for a in paper_trace(50, 60)]

    def run() -> Outcome:
        return _setting(policy, 2).run(arrivals)

    assert [life.token_times for life in run().lives] == [life.token_times for life in run().lives]


def test_whole_batches_answer_all_at_once_and_pad_nothing_under_the_rule_of_the_shortest() -> None:
    """Both prompts are fed to the length of the shorter one; the longer one's rest comes token by token."""
    arrivals = [Arrival(0.0, 10, 4), Arrival(0.0, 30, 4)]
    setting = _setting("request-level", 1)
    pipeline = Pipeline(setting.cost, record=True)
    outcome = setting.run(arrivals, pipeline=pipeline)
    assert len({tuple(life.token_times)[-1] for life in outcome.lives}) == 1
    assert all(len(set(life.token_times)) == 1 for life in outcome.lives)
    assert pipeline.blocks is not None
    lengths = [[len(entry.tokens) for entry in block.batch.entries] for block in pipeline.blocks]
    assert lengths[0] == [10, 10] and all(sizes == [1, 1] for sizes in lengths[1:])
    assert len(lengths) == 1 + (30 - 10) + 3


def test_an_oracle_reserves_what_is_generated_and_no_more() -> None:
    """Two requests that ask for 64 tokens and generate 16 fit side by side only if that is known."""
    arrivals = [Arrival(0.0, 16, 16, 64)] * 2
    asked, known = (_setting(policy, 1, n_slots=96).run(arrivals) for policy in ("iteration-level", "orca-oracle"))
    assert known.seconds < asked.seconds
    assert known.n_iterations == 16 < asked.n_iterations


def test_a_policy_that_could_run_nothing_is_named() -> None:
    with pytest.raises(ConfigError, match="request-level reserves 96 slots"):
        _setting("request-level", 1, n_slots=64).check()


def test_a_profiled_machine_is_one_worker() -> None:
    cost = ProfiledCost((1, 64), (1e-3, 8e-3), 0.0, 0.0, 0.0)
    outcome = Setting(cost, 1000, 8, 100).run([Arrival(0.0, 1, 3)])
    assert outcome.seconds == pytest.approx(3e-3)
