"""What holds under every policy: no request is lost, each ends once, memory suffices, nothing comes to a stand."""

from __future__ import annotations

from typing import get_args

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from policy_driver import LONGEST, PAGE, drive

from orcaserve.config import POLICY_NAMES, PolicyName
from orcaserve.scheduler.policies import POLICIES


class Policies(RuleBasedStateMachine):
    @initialize(
        policy=st.sampled_from(sorted(POLICIES)),
        n_pages=st.integers(1, 60),
        max_bs=st.integers(1, 4),
        n_workers=st.integers(1, 3),
        microbatch=st.none() | st.integers(1, 3),
        shortest_first=st.booleans(),
        window=st.none() | st.integers(1, 20),
    )
    def begin(
        self,
        policy: str,
        n_pages: int,
        max_bs: int,
        n_workers: int,
        microbatch: int | None,
        shortest_first: bool,
        window: int | None,
    ) -> None:
        self.drive = drive(
            policy, n_pages, max_bs, n_workers, microbatch=microbatch, shortest_first=shortest_first, window=window
        )
        self.needs_whole = policy in ("request-level", "orca-max")
        self.n_pages = n_pages

    @rule(n_input=st.integers(1, 20), n_output=st.integers(1, 12), more=st.integers(0, 12), carried=st.integers(0, 2))
    def arrive(self, n_input: int, n_output: int, more: int, carried: int) -> None:
        max_tokens = n_output + more + carried
        taken = self.drive.add(n_input, n_output, max_tokens, carried)
        pages = -(-(LONGEST if self.needs_whole else n_input + max_tokens) // PAGE)
        if self.drive.window is not None:
            assert taken, "no request needs more than a window and the longest piece at once"
        elif pages > self.n_pages:
            assert not taken
        elif 2 * (n_input + max_tokens) <= LONGEST and 2 * pages <= self.n_pages:
            assert taken, "even rounded up to a power of two it would fit"

    @rule(back=st.integers(0, 8))
    def cancel(self, back: int) -> None:
        self.drive.cancel(len(self.drive.fates) - back)

    @rule()
    def schedule(self) -> None:
        self.drive.next_batch()

    @precondition(lambda self: self.drive.in_flight)
    @rule(failing=st.none() | st.integers(0, 8))
    def complete(self, failing: int | None) -> None:
        self.drive.complete(failing)

    @precondition(lambda self: len(self.drive.in_flight) > 1)
    @rule()
    def lose_the_engine(self) -> None:
        self.drive.abort()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "drive"):
            self.drive.check()

    def teardown(self) -> None:
        if hasattr(self, "drive"):
            self.drive.drain()


TestPolicies = Policies.TestCase
TestPolicies.settings = settings(max_examples=400, stateful_step_count=60, suppress_health_check=[HealthCheck.too_slow])


def test_the_settings_know_every_policy() -> None:
    assert tuple(POLICIES) == POLICY_NAMES == get_args(PolicyName)
