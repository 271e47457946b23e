"""Labels of clients: few, true in sum, and never falling, whoever comes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from orcaserve.serving.observing.served_clients import NOBODY, OTHER, ServedClients, label


def serve(clients: ServedClients, client: str, n_input: int, n_output: int) -> None:
    tally = clients.of(client)
    tally.input += n_input
    tally.output += n_output


def test_the_first_clients_have_names_from_their_first_token() -> None:
    clients = ServedClients(n_named=2)
    for client in ("a", "b", "c"):
        serve(clients, client, 3, 4)
    assert list(clients.read()) == [("a", 3, 4), ("b", 3, 4), (OTHER, 3, 4)]


def test_a_great_one_takes_the_name_of_the_least() -> None:
    clients = ServedClients(n_named=2)
    serve(clients, "a", 10, 10)
    serve(clients, "b", 1, 1)
    serve(clients, "c", 100, 100)
    assert [name for name, *_ in clients.read()] == ["a", "c", OTHER]
    serve(clients, "c", 5, 6)
    serve(clients, "b", 2, 2)
    assert list(clients.read()) == [("a", 10, 10), ("c", 5, 6), (OTHER, 102, 102)]


def test_names_do_not_flutter() -> None:
    clients = ServedClients(n_named=1)
    serve(clients, "a", 10, 0)
    serve(clients, "b", 20, 0)
    assert [name for name, *_ in clients.read()] == ["a", OTHER]


def test_names_that_are_ours_or_hostile() -> None:
    clients = ServedClients()
    serve(clients, "", 1, 0)
    serve(clients, "other", 2, 0)
    serve(clients, "x\n\ud800", 3, 0)
    assert list(clients.read()) == [(NOBODY, 1, 0), ("x\\n\\ud800", 3, 0), (OTHER, 2, 0)]
    one, two = label("k" * 300), label("k" * 299)
    assert one != two and len(one) <= 64 and one.isprintable()


def test_those_who_are_served_are_not_forgotten() -> None:
    clients = ServedClients(n_named=1, n_kept=4)
    busy = clients.of("busy")
    busy.n_open = 1
    for i in range(100):
        serve(clients, f"client {i}", 1, 0)
    assert len(clients._tallies) <= 4
    busy.output += 7
    assert list(clients.read()) == [("busy", 0, 7), (OTHER, 100, 0)]


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 9), st.integers(0, 9), st.booleans())))
def test_what_is_shown_never_falls_and_is_not_made_up(steps: list[tuple[str, int, int, bool]]) -> None:
    """While a client keeps its name its count does not fall; that of others never does; nobody is counted twice."""
    clients = ServedClients(n_named=2, n_kept=5)
    served: Counter[str] = Counter()
    before: dict[str, int] = {}
    for client, n_input, n_output, look in steps:
        serve(clients, client, n_input, n_output)
        served[client] += n_input + n_output
        if look:
            now = {name: a + b for name, a, b in clients.read()}
            assert len(now) <= 3
            assert all(now[name] >= before[name] for name in now.keys() & before.keys())
            assert sum(now.values()) <= served.total()
            assert all(now[name] <= served[name] for name in now if name != OTHER)
            before = now
