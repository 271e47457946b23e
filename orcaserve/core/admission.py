"""From a prompt and its settings to requests: checked against the loaded model, one request per choice.

Every door uses this: the HTTP endpoint, the offline API, and the engine for whatever reaches it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

from orcaserve.core.engine import EngineFacts, SourceFacts
from orcaserve.core.errors import CannotFit, InvalidRequest
from orcaserve.core.request import Request
from orcaserve.core.sampling_params import SamplingParams
from orcaserve.core.terms import USUAL, Terms


def check_request(input_ids: Sequence[int], params: SamplingParams, facts: EngineFacts) -> None:
    """Raise InvalidRequest for what the loaded model cannot run: ids outside its vocabulary, or too many tokens."""
    if not input_ids:
        raise InvalidRequest("prompt", "the prompt is empty and this model has no token to start from")
    if not (min(input_ids) >= 0 and max(input_ids) < facts.vocab_size):
        raise InvalidRequest("prompt", f"the prompt holds a token id outside 0..{facts.vocab_size - 1}")
    params.check_vocabulary(facts.vocab_size)
    if params.pooling is not None and not facts.embedding_size:
        raise InvalidRequest("pooling", "this model makes no embeddings", code="embeddings_not_supported")
    if params.grammar is not None and not facts.eos_ids:
        raise InvalidRequest("grammar", "this model has no token that ends a text, so it follows no grammar")
    if facts.source is not None:
        _check_sides(len(input_ids), params, facts, facts.source)
        return
    total = len(input_ids) + params.max_tokens
    limits = [(facts.context_length, "the context length")]
    if facts.window is None:
        limits.append((facts.n_slots, "the K/V region"))
    for limit, what in limits:
        if total > limit:
            field = "prompt" if len(input_ids) >= limit else "max_tokens"
            raise CannotFit(
                field,
                f"{len(input_ids)} prompt tokens + {params.max_tokens} tokens to generate make {total}, "
                f"but {what} holds {limit}",
            )


def _check_sides(n_input: int, params: SamplingParams, facts: EngineFacts, source: SourceFacts) -> None:
    """The same of a model with an encoder: a bound for each side, and slots that are apart."""
    if params.prompt_logprobs is not None:
        text = "this model's encoder reads the prompt as a whole: there are no log-probabilities of its tokens"
        raise InvalidRequest("prompt_logprobs", text)
    if n_input > source.longest:
        raise CannotFit("prompt", f"{n_input} prompt tokens, but the encoder reads {source.longest} at most")
    longest = facts.context_length - source.longest
    if params.max_tokens > longest:
        text = f"{params.max_tokens} tokens to generate, but the decoder gives {longest} at most"
        raise CannotFit("max_tokens", text)
    if params.max_tokens > (most := facts.most_output(n_input)):
        n_slots = sum(-(-n // source.page_size) * source.page_size for n in (n_input, 1 + params.max_tokens))
        raise CannotFit(
            "max_tokens" if most > 0 else "prompt",
            f"{n_input} prompt tokens + {params.max_tokens} tokens to generate need {n_slots} K/V slots, in pages of "
            f"{source.page_size} for each side, but there are {facts.n_slots}",
        )


def check_output(output: Sequence[int], params: SamplingParams, facts: EngineFacts) -> None:
    """Raise InvalidRequest for tokens that no engine with this model can have put out for such a request."""
    if output and len(output) >= params.max_tokens:
        raise InvalidRequest(None, "the request has all its tokens already")
    if output and not (min(output) >= 0 and max(output) < facts.vocab_size):
        raise InvalidRequest(None, f"its output holds a token id outside 0..{facts.vocab_size - 1}")


def fan_out(
    request_ids: Iterator[int],
    input_ids: Sequence[int],
    params: SamplingParams,
    facts: EngineFacts,
    terms: Terms = USUAL,
    adapter: int = 0,
) -> list[Request]:
    """`params.n` requests over one prompt, each with a seed of its own. Raises what check_request raises.

    A choice's seed depends on the given seed and its index alone, so that a seed repeats every choice; without one it
    is drawn here, so that nothing below this line is random.
    """
    check_request(input_ids, params, facts)
    # The end of a grammar's text ends the request, whatever else does not.
    ends = frozenset[int]() if params.ignore_eos and params.grammar is None else facts.eos_ids
    stop_ids = params.stop_token_ids | ends
    return [
        Request(
            next(request_ids),
            input_ids,
            params,
            stop_ids,
            _choice_seed(params.seed, index),
            terms=terms,
            adapter=adapter,
        )
        for index in range(params.n)
    ]


def _choice_seed(seed: int | None, index: int) -> int:
    if seed is None:
        return secrets.randbits(63)
    return seed if index == 0 else (seed + index * 0x9E3779B97F4A7C15) % 2**63
