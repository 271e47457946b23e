"""Shape: what an iteration's cost depends on, and nothing else of its batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orcaserve.core import Batch


@dataclass(slots=True)
class Shape:
    """The sizes of one iteration. Not frozen, because one is made for every iteration; nobody changes it.

    n_tokens: input tokens of all requests. n_fed: those of requests that bring more than one (initiations).
    context: earlier tokens that requests with one input token attend to, added up over these requests.
    products: of requests with several input tokens: pairs of an input token and a token it attends to.
    longest_input, longest_context: of any one request; an engine that pads computes as if all were as long.
    """

    n_requests: int
    n_tokens: int
    n_fed: int
    context: int
    products: int
    longest_input: int
    longest_context: int


def shape_of(batch: Batch) -> Shape:
    """Sizes of a batch; position + 1 tokens are attended to by a token at `position`, counted as `position`."""
    entries = batch.entries
    lengths = [len(entry.tokens) for entry in entries]
    positions = [entry.position for entry in entries]
    n_tokens = sum(lengths)
    if n_tokens == len(lengths):  # the usual case: increments alone
        return Shape(len(lengths), n_tokens, 0, sum(positions), 0, 1, max(positions))
    return shape_of_sizes(zip(lengths, positions, strict=True))


def shape_of_sizes(sizes: Iterable[tuple[int, int]]) -> Shape:
    """The same from pairs (input tokens, earlier tokens), one for each request; at least one."""
    n_requests = n_tokens = n_fed = context = products = longest_input = longest_context = 0
    for length, position in sizes:
        n_requests += 1
        n_tokens += length
        if length == 1:
            context += position
        else:
            n_fed += length
            products += length * position + length * (length + 1) // 2
        longest_input = max(longest_input, length)
        longest_context = max(longest_context, position)
    assert n_requests, "an iteration runs at least one request"
    return Shape(n_requests, n_tokens, n_fed, context, products, longest_input, longest_context)
