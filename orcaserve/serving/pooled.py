"""What is pooled in place of continued: texts to vectors, each text a request that ends with its initiation."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orcaserve.core import EngineError, SamplingParams
from orcaserve.core.errors import CannotFit, InvalidRequest
from orcaserve.serving.fields import COMMON, MAX_WORK, Field, flag
from orcaserve.serving.http import Exchange
from orcaserve.serving.params import integer
from orcaserve.serving.prompts import encode_text
from orcaserve.serving.service import ABORTED, Choice, Origin, Plan, Service, as_invalid
from orcaserve.serving.terms import caller_of, name_of, read_terms
from orcaserve.serving.vectors import read_vector

MAX_INPUTS = 2048  # of a request
WHOLE_CONTEXT = -1  # of truncate_prompt_tokens
SHARED = ("user", "priority", "timeout", "cache_salt")
POOLED: dict[str, Field] = {
    "model": Field(
        {"type": "string"}, "The served model's name, as GET /v1/models has it; adapters are not served here."
    ),
    **{name: COMMON[name] for name in SHARED},
    "truncate_prompt_tokens": Field(
        {"type": "integer", "minimum": WHOLE_CONTEXT},
        "Keep the first so many tokens of each text, 1 or more, those included that the tokenizer adds; -1: as many as "
        "the context holds. Unless given, a text that is too long is an error.",
    ),
    "add_special_tokens": Field(
        {"type": "boolean"}, "Let the tokenizer add its own, such as an end of text. True unless given."
    ),
}
Text = str | list[int]  # ids are of the vocabulary


class TextEncoder:
    """Texts of one request to ids, as its fields say."""

    def __init__(self, service: Service, body: Mapping[str, Any]) -> None:
        self._tokenizer = service.tokenizer
        self._most = service.facts.longest_request
        self._special = flag(body, "add_special_tokens", True)
        self._keep = _truncation(body, self._most)

    def encode(self, field: str, texts: Sequence[Text]) -> list[list[int]]:
        """Raises InvalidRequest that names the field. May take long: call it on a thread."""
        encoded = []
        for number, text in enumerate(texts):
            ids = self._encode(field, text) if isinstance(text, str) else text[: self._keep]
            which = f"{field}[{number}]" if len(texts) > 1 else field
            if not ids:
                raise InvalidRequest(field, f"{which} is empty: a text must have at least one token")
            if len(ids) > self._most:
                message = f"{which} has {len(ids)} tokens, but {self._most} is the most: see truncate_prompt_tokens"
                raise CannotFit(field, message)
            encoded.append(ids)
        if sum(map(len, encoded)) > MAX_WORK and len(encoded) > 1:
            raise InvalidRequest(field, f"all texts together must have at most {MAX_WORK} tokens")
        return encoded

    def _encode(self, field: str, text: str) -> list[int]:
        if not text:
            return []
        if self._keep is not None:  # none of the others can be among the first
            text = text[: self._most * self._tokenizer.longest_token]
        ids = encode_text(field, text, self._tokenizer, self._most, self._special)
        if self._keep is None or len(ids) <= self._keep:
            return ids
        return shorten(ids, self._tokenizer.encode(text, add_special_tokens=False), self._keep)


def shorten(ids: list[int], bare: list[int], most: int) -> list[int]:
    """The first tokens of a text, and all that the tokenizer has added before and after it. bare: without those."""
    n_added = len(ids) - len(bare)
    for n_before in range(n_added + 1):
        if ids[n_before : n_before + len(bare)] == bare:
            n_after = n_added - n_before
            kept = max(most - n_added, 0)
            return (ids[: n_before + kept] + ids[len(ids) - n_after :])[:most]
    return ids[:most]


def _truncation(body: Mapping[str, Any], most: int) -> int | None:
    value = integer(body, "truncate_prompt_tokens", WHOLE_CONTEXT, most)
    if value == 0:
        message = f"truncate_prompt_tokens must be an integer from 1 to {most}, or {WHOLE_CONTEXT}"
        raise InvalidRequest("truncate_prompt_tokens", message)
    return most if value == WHOLE_CONTEXT else value


def plan_pooled(exchange: Exchange, service: Service, body: Mapping[str, Any], prompts: Iterable[list[int]]) -> Plan:
    """A request for each prompt. Raises InvalidRequest."""
    user = body.get("user")
    if user is not None and not isinstance(user, str):
        raise InvalidRequest("user", "user must be a string", code="invalid_type")
    # Nothing is generated that an end of text could end.
    params = SamplingParams(max_tokens=0, temperature=0, ignore_eos=True, pooling=service.require_pooling())
    return service.plan([(ids, params) for ids in prompts], terms=read_terms(exchange, body))


async def run_pooled(exchange: Exchange, service: Service, plan: Plan) -> list[array[float]]:
    """The pooled hidden states of all prompts of the plan, as they are.

    Raises InvalidRequest if one of them has failed; whatever ends this, none is left running.
    """
    audience = _Pooled(len(plan.choices))
    origin = Origin(exchange.id, exchange.path, name_of(exchange, plan.choices[0][0].terms))
    choices = service.start(plan, exchange.arrival, audience, origin, caller_of(exchange))
    exchange.account.n_prompt = plan.n_prompt
    exchange.account.choices += choices
    exchange.cancellation.listen(lambda: _stop(choices))
    try:
        await audience.over.wait()
    finally:
        for choice in choices:
            choice.cancel()
    if audience.error is not None:
        if not isinstance(audience.error, EngineError):
            raise audience.error
        raise as_invalid(audience.error, admitted=any(choice.life.begun is not None for choice in choices))
    if any(choice.finish_reason == ABORTED for choice in choices):
        raise InvalidRequest(None, "the request was cancelled", code="cancelled")
    vectors = []
    for choice in choices:
        if len(choice.embedding or b"") != 4 * service.facts.embedding_size:
            raise AssertionError("the engine sent an embedding of another size than it said")
        vectors.append(read_vector(choice.embedding or b""))
    return vectors


def _stop(choices: Sequence[Choice]) -> None:
    for choice in choices:
        choice.stop()


class _Pooled:
    """An Audience that waits for the end of all choices, or the first failure."""

    def __init__(self, n: int) -> None:
        self._n_running = n
        self.over = asyncio.Event()
        self.error: Exception | None = None

    def show(self, choice: Choice, text: str) -> None:
        self._n_running -= choice.over
        if not self._n_running:
            self.over.set()

    def fail(self, error: Exception) -> None:
        self.error = self.error or error
        self.over.set()
