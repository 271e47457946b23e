"""TokenFair: the bound that it states, weights, coming back, and that looking for the next one does not grow."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from orcaserve.core import Batch, IterationResult, Request, SamplingParams, Terms
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.policies import PolicySettings, make_policy
from orcaserve.scheduler.token_fair import MANY, TokenFair

STOP = 1


def request(number: int, client: str, n_input: int = 10, max_tokens: int = 10, weight: float = 1.0) -> Request:
    return Request(
        number, [0] * n_input, SamplingParams(max_tokens=max_tokens), terms=Terms(client=client, weight=weight)
    )


def admitted(order: TokenFair, n: int) -> list[str]:
    """The clients of the next n."""
    clients = []
    for _ in range(n):
        first = order.first()
        assert first is not None
        order.admit(first)
        clients.append(first.terms.client)
    return clients


class TestOrder:
    def test_one_client_is_first_come_first_served(self) -> None:
        order = TokenFair()
        for number in range(5):
            order.add(request(number, "a", n_input=50 - number))
        for number in range(5):
            first = order.first()
            assert first is not None and first.id == number
            order.admit(first)

    def test_clients_take_turns_by_tokens(self) -> None:
        order = TokenFair()
        for number in range(12):
            order.add(request(number, "many"))
        order.add(request(90, "one", n_input=40))
        order.add(request(91, "one", n_input=10))
        assert admitted(order, 6) == ["many", "one", "many", "many", "one", "many"]

    def test_weights(self) -> None:
        order = TokenFair()
        for number in range(60):
            order.add(request(number, "a", weight=3.0))
            order.add(request(100 + number, "b"))
        assert admitted(order, 40).count("a") == 30

    def test_nobody_saves_up_turns(self) -> None:
        order = TokenFair()
        for number in range(50):
            order.add(request(number, "busy"))
        admitted(order, 30)
        for number in range(20):
            order.add(request(100 + number, "late"))
        assert 4 <= admitted(order, 10).count("late") <= 6

    def test_what_others_are_given_at_another_priority_is_no_debt(self) -> None:
        """A newcomer is not put behind those of its own priority because of one with a better one."""
        order = TokenFair()
        for number in range(100):
            terms = Terms(client="first", priority=-1)
            order.add(Request(number, [0] * 500, SamplingParams(max_tokens=500), terms=terms))
        for number in range(20):
            order.add(request(1000 + number, "old"))
        admitted(order, 99)
        order.add(request(2000, "new"))
        order.add(request(2001, "new"))
        assert admitted(order, 5) == ["first", "old", "new", "old", "new"]

    def test_what_was_not_put_out_is_given_back(self) -> None:
        order = TokenFair()
        asked = [request(number, "a", max_tokens=1000) for number in range(2)]
        for each in asked:
            order.add(each)
        admitted(order, 1)
        assert order.tokens_of("a") == 1010
        asked[0].output += [7] * 5
        order.leave(asked[0])
        assert order.tokens_of("a") == 15
        admitted(order, 1)
        assert order.tokens_of("a") == 15 + 10 + 5, "as many as have been usual"

    def test_one_that_is_put_back_is_first_again_and_charged_once(self) -> None:
        order = TokenFair()
        for number in range(3):
            order.add(request(number, "a"))
        first = order.first()
        assert first is not None
        order.admit(first)
        order.put_back(first)
        assert order.first() is first and order.tokens_of("a") == 20
        order.admit(first)
        assert order.tokens_of("a") == 20

    def test_when_nobody_is_there_all_begin_anew(self) -> None:
        order = TokenFair()
        one = request(1, "a")
        order.add(one)
        order.admit(one)
        order.leave(one)
        order.add(request(2, "b"))
        order.add(request(3, "a"))
        assert order.tokens_of("a") == order.tokens_of("b") == 0

    def test_clients_who_have_left_are_forgotten(self) -> None:
        order = TokenFair()
        order.add(request(0, "stays"))
        for number in range(1, 5 * MANY):
            each = request(number, f"c{number}")
            order.add(each)
            order.leave(each)
        assert len(order._levels[0].accounts) <= MANY + 1

    @given(
        verbs=st.lists(
            st.tuples(
                st.sampled_from(["add", "add", "admit", "admit", "back", "leave"]),
                st.sampled_from("abc"),
                st.integers(-1, 1),
                st.integers(1, 30),
            ),
            max_size=80,
        )
    )
    def test_against_a_search(self, verbs: Sequence[tuple[str, str, int, int]]) -> None:
        """The first one is the earliest of the client with the lowest counter, at the lowest priority."""
        order, waiting, running = TokenFair(), list[Request](), list[Request]()
        for number, (verb, client, priority, n) in enumerate(verbs):
            first = order.first()
            if waiting:
                level = [r for r in waiting if r.terms.priority == min(r.terms.priority for r in waiting)]
                heads = {r.terms.client: r for r in sorted(level, key=lambda r: -r.id)}
                best = min(heads.values(), key=lambda r: (order.tokens_of(r.terms.client, r.terms.priority), r.id))
                assert first is best
            else:
                assert first is None
            assert len(order) == len(waiting) and {r.id for r in order} == {r.id for r in waiting}
            if verb == "add":
                params, terms = SamplingParams(max_tokens=n), Terms(client=client, priority=priority, weight=1 + n % 3)
                waiting.append(Request(number, [0] * n, params, terms=terms))
                order.add(waiting[-1])
            elif verb == "admit" and first is not None:
                order.admit(first)
                waiting.remove(first)
                running.append(first)
            elif verb == "back" and running:
                waiting.append(running.pop())
                order.put_back(waiting[-1])
            elif verb == "leave" and (everybody := waiting + running):
                gone = everybody[n % len(everybody)]
                gone.output += [0] * (gone.params.max_tokens // 2 if gone in running else 0)
                order.leave(gone)
                (waiting if gone in waiting else running).remove(gone)


class Shop:
    """A scheduler whose clients always have `backlog` requests waiting, and what each was given."""

    def __init__(
        self,
        clients: dict[str, tuple[float, int, int, int]],
        n_slots: int,
        max_bs: int,
        seed: int,
        n_workers: int = 1,
        fairness: str = "tokens",
    ) -> None:
        """clients: name -> weight, most input, most output asked for, and requests that wait beside as many as can be
        admitted at once."""
        made_of = PolicySettings(n_workers, 10_000, fairness=fairness)
        self.scheduler = Scheduler(n_slots, max_bs, n_workers, 1, make_policy("iteration-level", made_of))
        self.clients = clients
        self.served = dict.fromkeys(clients, 0.0)
        self._live: dict[int, tuple[Request, int]] = {}
        self._rng = random.Random(seed)
        self._n = 0
        self._in_flight: deque[Batch] = deque()
        for client in clients:
            self.top_up(client)

    def top_up(self, client: str) -> None:
        weight, n_input, n_output, backlog = self.clients[client]
        waiting = sum(r.terms.client == client and r.state.value == "initiation" for r, _ in self._live.values())
        for _ in range(backlog + self.scheduler.max_bs - waiting):
            self._n += 1
            asked = self._rng.randint(1, n_output)
            params = SamplingParams(max_tokens=asked)
            terms = Terms(client=client, weight=weight)
            new = Request(self._n, [0] * self._rng.randint(1, n_input), params, frozenset({STOP}), terms=terms)
            self._live[self._n] = new, self._rng.randint(1, asked)
            self.scheduler.add(new, 0.0)

    def turn(self) -> None:
        while (batch := self.scheduler.next_batch()) is not None:
            self._in_flight.append(batch)
            for client in self.clients:  # always backlogged
                self.top_up(client)
        batch = self._in_flight.popleft()
        tokens = []
        for entry in batch.entries:
            request, n_output = self._live[entry.request_id]
            if entry.params is not None:
                self.served[request.terms.client] += request.n_input / request.terms.weight
            self.served[request.terms.client] += 1 / request.terms.weight
            tokens.append(STOP if len(request.output) + 1 >= n_output else 0)
        for news in self.scheduler.complete(IterationResult(batch.iteration, tokens)):
            if news.finish_reason is not None:
                del self._live[news.request_id]


@settings(max_examples=40)
@given(
    clients=st.lists(
        st.tuples(st.sampled_from([0.5, 1.0, 3.0]), st.integers(1, 40), st.integers(1, 40), st.integers(1, 4)),
        min_size=2,
        max_size=4,
    ),
    n_slots=st.integers(80, 300),
    max_bs=st.integers(1, 12),
    n_workers=st.integers(1, 2),
    seed=st.integers(0, 1000),
)
def test_the_bound(
    clients: Sequence[tuple[float, int, int, int]], n_slots: int, max_bs: int, n_workers: int, seed: int
) -> None:
    """Of any two clients who are backlogged all the time: n_slots / w from their common start, 2 n_slots / w in any
    span of time."""
    shop = Shop({f"c{i}": client for i, client in enumerate(clients)}, n_slots, max_bs, seed, n_workers)
    history = [dict(shop.served)]
    for _ in range(150):
        shop.turn()
        history.append(dict(shop.served))
    for a, b in combinations(shop.clients, 2):
        weight = min(shop.clients[a][0], shop.clients[b][0])
        apart = [served[a] - served[b] for served in history]
        assert max(map(abs, apart)) <= n_slots / weight
        assert max(apart) - min(apart) <= 2 * n_slots / weight


def test_twenty_times_the_load_gives_nothing_more() -> None:
    """In the long run the shares are equal to the per cent, though one waits with twenty times as many, asks for
    four times as much, and has longer prompts."""
    shop = Shop({"heavy": (1.0, 60, 160, 320), "light": (1.0, 20, 40, 0)}, n_slots=2000, max_bs=16, seed=3)
    for _ in range(300):
        shop.turn()
    before = dict(shop.served)
    for _ in range(3000):
        shop.turn()
    heavy, light = (shop.served[client] - before[client] for client in ("heavy", "light"))
    assert abs(heavy / light - 1) < 0.02


def test_the_check_can_fail() -> None:
    """Without fairness the same clients drift apart by more than the bound."""
    clients = {"heavy": (1.0, 40, 40, 20), "light": (1.0, 40, 40, 1)}
    shop = Shop(clients, n_slots=200, max_bs=8, seed=5, fairness="none")
    for _ in range(600):
        shop.turn()
    assert abs(shop.served["heavy"] - shop.served["light"]) > 2 * 200
