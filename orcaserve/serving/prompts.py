"""What a client sends as prompt, checked for its form and turned into token ids."""

from __future__ import annotations

from typing import Any

from orcaserve.core.errors import CannotFit, InvalidRequest
from orcaserve.text.tokenizer import Tokenizer

MAX_PROMPTS = 1024  # of one request


def read_prompts(value: Any, vocab_size: int) -> list[str | list[int]]:
    """The prompts of a completion: `prompt` may be a text, texts, ids, or lists of ids; none is one empty text."""
    if value is None or value == []:
        return [""]
    return read_texts("prompt", value, vocab_size, MAX_PROMPTS)


def read_texts(field: str, value: Any, vocab_size: int, most: int) -> list[str | list[int]]:
    """A text, texts, ids, or lists of ids: one at least, `most` at most. Raises InvalidRequest naming the field."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        message = f"{field} must be a string, a list of strings, or token ids"
        raise InvalidRequest(field, message, code="invalid_type")
    if not value:
        raise InvalidRequest(field, f"{field} is an empty list")
    if _is_id(value[0]):
        return [_ids(field, value, vocab_size)]
    if len(value) > most:
        raise InvalidRequest(field, f"{field} takes at most {most} {field}s")
    if all(isinstance(item, str) for item in value):
        return list(value)
    if all(isinstance(item, list) for item in value):
        return [_ids(field, item, vocab_size) for item in value]
    message = f"{field} must hold strings only, token ids only, or lists of token ids only"
    raise InvalidRequest(field, message, code="invalid_type")


def encode_prompts(prompts: list[str | list[int]], tokenizer: Tokenizer, most_tokens: int) -> list[list[int]]:
    """Ids of each prompt, at least one. May take long: call it on a thread.

    Raises CannotFit for a text that is certainly longer than most_tokens, and InvalidRequest for an empty prompt if the
    model has no start token.
    """
    encoded = []
    for prompt in prompts:
        ids = encode_text("prompt", prompt, tokenizer, most_tokens) if isinstance(prompt, str) else prompt
        if not ids:
            if tokenizer.bos_id is None:
                raise InvalidRequest("prompt", "prompt is empty, and this model has no token to start from")
            ids = [tokenizer.bos_id]
        encoded.append(ids)
    return encoded


def encode_text(
    field: str, text: str, tokenizer: Tokenizer, most_tokens: int, add_special_tokens: bool = True
) -> list[int]:
    """Ids of a text. Raises as refuse_if_too_long."""
    refuse_if_too_long(field, text, tokenizer, most_tokens)
    return tokenizer.encode(text, add_special_tokens)


def refuse_if_too_long(field: str, text: str, tokenizer: Tokenizer, most_tokens: int) -> None:
    """Encoding takes a hundred times the text's memory: a text that is certainly too long is refused before.

    Raises CannotFit.
    """
    limit = most_tokens * tokenizer.longest_token
    if len(text) > limit:
        message = f"the text has {len(text)} characters, but {most_tokens} tokens hold {limit} at most"
        raise CannotFit(field, message)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ids(field: str, items: list[Any], vocab_size: int) -> list[int]:
    if not all(type(item) is int for item in items):
        raise InvalidRequest(field, "a list of token ids must hold integers only", code="invalid_type")
    # Python's integers have no bound: nothing outside the vocabulary may go any further.
    if items and not (min(items) >= 0 and max(items) < vocab_size):
        raise InvalidRequest(field, f"{field} holds a token id outside 0..{vocab_size - 1}")
    return items
