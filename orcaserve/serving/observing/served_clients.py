"""ServedClients: tokens by client, for as many clients as a monitoring system can bear."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from orcaserve.logs import plain

N_NAMED = 20  # clients with a name of their own in the metrics
N_KEPT = 1024  # clients that are counted apart, so that one of them may get a name
OTHER, NOBODY = "other", "none"
_LONGEST = 64  # characters of a label
_BETTER = 2.0  # a client takes another's name once it has so many times its tokens: names must not flutter


class Tally:
    """Tokens of one client. While it has a name, what it is given is shown under that."""

    __slots__ = ("_shown", "input", "n_open", "name", "named", "output")

    def __init__(self, name: str) -> None:
        self.name = name
        self.named = False
        self.n_open = 0  # choices that go on counting here
        self.input = self.output = 0
        self._shown = (0, 0)  # of these, what counts elsewhere

    @property
    def total(self) -> int:
        return self.input + self.output

    @property
    def fresh(self) -> tuple[int, int]:
        """Input and output tokens since it has, or has lost, its name; of a nameless one since `settle`."""
        return self.input - self._shown[0], self.output - self._shown[1]

    def settle(self) -> None:
        """What it has by now counts elsewhere."""
        self._shown = self.input, self.output


class ServedClients:
    """Counters that never fall: the first clients have names at once. Who gets another's name begins at 0, and what
    he had before stays with `other`."""

    def __init__(self, n_named: int = N_NAMED, n_kept: int = N_KEPT) -> None:
        self._n_kept = n_kept
        self._n_free = n_named  # names that nobody has had
        self._tallies: dict[str, Tally] = {}
        self._other = [0, 0]

    def of(self, client: str) -> Tally:
        """Where the tokens of this client count. The caller counts `n_open` up, and down at the end."""
        name = label(client)
        tally = self._tallies.get(name)
        if tally is None:
            if len(self._tallies) >= self._n_kept:
                self._forget_some()
            tally = self._tallies[name] = Tally(name)
            tally.named = name != OTHER and self._n_free > 0
            self._n_free -= tally.named
        return tally

    def read(self) -> Iterator[tuple[str, int, int]]:
        """(client, input tokens, output tokens) of those with names, and of all others together."""
        for tally in self._tallies.values():
            if not tally.named:
                self._to_others(tally)
        self._hand_on_names()
        for tally in self._tallies.values():
            if tally.named:
                yield tally.name, *tally.fresh
        yield OTHER, self._other[0], self._other[1]

    def _to_others(self, tally: Tally) -> None:
        fresh = tally.fresh
        self._other[0] += fresh[0]
        self._other[1] += fresh[1]
        tally.settle()

    def _hand_on_names(self) -> None:
        named = sorted((t for t in self._tallies.values() if t.named), key=lambda t: t.total)
        others = [t for t in self._tallies.values() if not t.named and t.name != OTHER]
        for least, tally in zip(named, sorted(others, key=lambda t: -t.total), strict=False):
            if tally.total <= _BETTER * least.total:
                return
            least.named, tally.named = False, True
            least.settle()

    def _forget_some(self) -> None:
        """Half of those who are idle and have no name, the least served first."""
        idle = sorted((t for t in self._tallies.values() if not t.named and not t.n_open), key=lambda t: t.total)
        for tally in idle[: max(1, len(idle) // 2)]:
            self._to_others(tally)
            del self._tallies[tally.name]


def label(client: str) -> str:
    """The client's name as the value of a label: short, and printable."""
    name = plain(client)
    if len(name) > _LONGEST:
        digest = hashlib.sha256(client.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        name = f"{name[: _LONGEST - 13]}~{digest}"
    return name or NOBODY
