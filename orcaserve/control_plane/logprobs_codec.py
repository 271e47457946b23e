"""Codec of log-probabilities, which both contracts have: core's types to columns and back."""

from __future__ import annotations

from collections.abc import Sequence

from orcaserve.control_plane import engine_pb2 as wire
from orcaserve.core import Logprobs, TokenLogprobs

_TOKEN_BYTES, _TOP_BYTES = 16, 9  # on the wire, at most: of a token, and of each of its best ones


def size_of(logprobs: Logprobs) -> int:
    """Bytes on the wire, at most."""
    tokens = [*logprobs.prompt[:1], *([] if logprobs.token is None else [logprobs.token])]
    n_top = max([len(each.top_ids) for each in tokens], default=0)
    return (len(logprobs.prompt) + 1) * (_TOKEN_BYTES + _TOP_BYTES * n_top)


def encode_logprobs(logprobs: Logprobs, message: wire.Logprobs) -> None:
    """Into an empty message."""
    if logprobs.token is not None:
        _encode((logprobs.token,), message.token)
    if logprobs.prompt:
        _encode(logprobs.prompt, message.prompt)
    message.SetInParent()


def decode_logprobs(message: wire.Logprobs) -> Logprobs:
    """Raises ValueError if columns disagree."""
    token = _decode(message.token)
    if len(token) > 1:
        raise ValueError("more than one token was chosen")
    return Logprobs(token[0] if token else None, _decode(message.prompt))


def _encode(tokens: Sequence[TokenLogprobs], columns: wire.TokenLogprobs) -> None:
    columns.logprobs.extend([each.logprob for each in tokens])
    columns.ranks.extend([each.rank for each in tokens])
    columns.n_top.extend([len(each.top_ids) for each in tokens])
    columns.top_ids.extend([token for each in tokens for token in each.top_ids])
    columns.top_logprobs.extend([logprob for each in tokens for logprob in each.top_logprobs])


def _decode(columns: wire.TokenLogprobs) -> list[TokenLogprobs]:
    ids, logprobs = list(columns.top_ids), list(columns.top_logprobs)
    tokens, at = [], 0
    for logprob, rank, n in zip(columns.logprobs, columns.ranks, columns.n_top, strict=True):
        tokens.append(TokenLogprobs(logprob, rank, ids[at : at + n], logprobs[at : at + n]))
        at += n
    if not at == len(ids) == len(logprobs):
        raise ValueError("there are other best tokens than their numbers say")
    return tokens
