"""Prompts of a wanted number of tokens, different for every request, so that no server has seen them before.

Exact where a server takes token ids; else words, whose tokens are first measured on the server itself.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from orcaserve.core.errors import ConfigError
from orcaserve.evaluation.load.server import Server, ServerError
from orcaserve.evaluation.load.stream import StreamFailed

ID_RANGES = ((100, 30_000), (100, 1_000), (3, 200))  # ordinary ids of large and of small vocabularies
COMMON = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work number night point home water room mother area money "
    "story fact month book eye job word business side kind head house"
)
WORDS = tuple(COMMON.split())
FEW, MANY = 40, 240  # words of the two prompts whose tokens are counted


class Prompts(Protocol):
    """fields: of a request with this many input tokens. how: in words, for the result."""

    how: str

    def fields(self, n_input: int, rng: random.Random) -> dict[str, Any]: ...


class TokenIds:
    """Random ids; of /completions."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high
        self.how = f"token ids from {low} to {high}, exactly as many as wanted"

    def fields(self, n_input: int, rng: random.Random) -> dict[str, Any]:
        return {"prompt": rng.choices(range(self._low, self._high + 1), k=n_input)}


class Words:
    """Random words. per_word: tokens of each; around: tokens of an empty prompt (a chat template, a first token)."""

    def __init__(self, chat: bool, per_word: float, around: float) -> None:
        self._chat, self._per_word, self._around = chat, per_word, around
        self.how = f"words, counted by the server as {per_word:.3f} tokens each and {around:.0f} around them"

    def fields(self, n_input: int, rng: random.Random) -> dict[str, Any]:
        n = max(round((n_input - self._around) / self._per_word), 1)
        return words_fields(self._chat, rng.choices(WORDS, k=n))


def words_fields(chat: bool, words: Sequence[str]) -> dict[str, Any]:
    text = " ".join(words)
    return {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}


async def choose_prompts(server: Server, base: Mapping[str, Any], chat: bool, kind: str) -> Prompts:
    """kind: ids, text, or auto for what the server takes. base: fields of every request.

    Raises ServerError if it takes none, ConfigError if it cannot be as asked for.
    """
    if kind == "ids" and chat:
        raise ConfigError("--prompts", "chat takes no token ids; use text")
    if kind != "text" and not chat:
        found = await _usable_ids(server, base)
        if isinstance(found, TokenIds):
            return found
        if kind == "ids":
            raise ServerError(f"the server takes no token ids: {found} {found.detail}".rstrip())
    return await _measured_words(server, base, chat)


async def _usable_ids(server: Server, base: Mapping[str, Any]) -> TokenIds | StreamFailed:
    why = StreamFailed("")
    for low, high in ID_RANGES:
        try:
            answer = await server.ask({**base, "prompt": [low, high, low], "max_tokens": 1, "stream": False})
        except StreamFailed as failure:
            why = failure
            continue
        counted = (answer.get("usage") or {}).get("prompt_tokens")
        if counted in (None, 3, 4):  # 4: some put a token of their own before
            return TokenIds(low, high)
        why = StreamFailed(f"it counts {counted} tokens in a prompt of 3 ids")
    return why


async def _measured_words(server: Server, base: Mapping[str, Any], chat: bool) -> Words:
    few, many = [await _counted(server, base, chat, n) for n in (FEW, MANY)]
    if few is None or many is None:
        return Words(chat, 1.0, 0.0)
    per_word = (many - few) / (MANY - FEW)
    if not 0.2 <= per_word <= 20:
        raise ServerError(f"the server counts {few} tokens in {FEW} words and {many} in {MANY}")
    return Words(chat, per_word, max(few - FEW * per_word, 0.0))


async def _counted(server: Server, base: Mapping[str, Any], chat: bool, n: int) -> int | None:
    """Tokens that the server counts in n words; None if it does not say."""
    words = random.Random(f"words {n}").choices(WORDS, k=n)
    try:
        answer = await server.ask({**base, **words_fields(chat, words), "max_tokens": 1, "stream": False})
    except StreamFailed as failure:
        raise ServerError(f"the server refuses a prompt of {n} words: {failure} {failure.detail}".rstrip()) from failure
    counted = (answer.get("usage") or {}).get("prompt_tokens")
    return counted if isinstance(counted, int) else None
