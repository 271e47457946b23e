"""What is known of a request's output before it is there."""

from __future__ import annotations

from orcaserve.core import Request


def most_output(request: Request) -> int:
    """All that a server knows: the most tokens that the request may generate; exact if nothing can end it early."""
    return request.params.max_tokens
