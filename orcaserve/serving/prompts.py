"""What a client sends as prompt or messages, checked for its form and turned into token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orcaserve.core.errors import CannotFit, InvalidRequest
from orcaserve.serving.chat_template import ChatTemplate
from orcaserve.serving.tokenizer import Tokenizer

MAX_PROMPTS = 1024  # of one request
MAX_MESSAGES = 4096
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def read_prompts(value: Any, vocab_size: int) -> list[str | list[int]]:
    """The prompts of a completion: `prompt` may be a text, texts, ids, or lists of ids; none is one empty text."""
    if value is None or value == []:
        return [""]
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise InvalidRequest("prompt", "prompt must be a string, a list of strings, or token ids", code="invalid_type")
    if _is_id(value[0]):
        return [_ids(value, vocab_size)]
    if len(value) > MAX_PROMPTS:
        raise InvalidRequest("prompt", f"prompt takes at most {MAX_PROMPTS} prompts")
    if all(isinstance(item, str) for item in value):
        return list(value)
    if all(isinstance(item, list) for item in value):
        return [_ids(item, vocab_size) for item in value]
    message = "prompt must hold strings only, token ids only, or lists of token ids only"
    raise InvalidRequest("prompt", message, code="invalid_type")


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


def read_messages(value: Any) -> list[dict[str, Any]]:
    """The messages of a chat: each with a role and text; parts of text are joined by newlines."""
    if not isinstance(value, list):
        raise InvalidRequest("messages", "messages must be a list", code="invalid_type")
    if not 1 <= len(value) <= MAX_MESSAGES:
        raise InvalidRequest("messages", f"messages must hold 1 to {MAX_MESSAGES} messages")
    return [_message(item) for item in value]


def encode_messages(
    messages: list[dict[str, Any]],
    template: ChatTemplate | None,
    tokenizer: Tokenizer,
    most_tokens: int,
    generation_prompt: bool = True,
    add_special_tokens: bool = False,
) -> list[int]:
    """Ids of the rendered conversation. May take long: call it on a thread. Raises as encode_prompts."""
    if template is None:
        raise InvalidRequest("messages", "this model has no chat template: use /v1/completions", "no_chat_template")
    text = template.render(messages, add_generation_prompt=generation_prompt)
    ids = encode_text("messages", text, tokenizer, most_tokens, add_special_tokens)
    if not ids:
        raise InvalidRequest("messages", "the chat template renders these messages to nothing")
    return ids


def encode_text(
    field: str, text: str, tokenizer: Tokenizer, most_tokens: int, add_special_tokens: bool = True
) -> list[int]:
    """Encoding takes a hundred times the text's memory: a text that is certainly too long is refused before."""
    limit = most_tokens * tokenizer.longest_token
    if len(text) > limit:
        message = f"the text has {len(text)} characters, but {most_tokens} tokens hold {limit} at most"
        raise CannotFit(field, message)
    return tokenizer.encode(text, add_special_tokens)


def _message(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise InvalidRequest("messages", "each message must be an object", code="invalid_type")
    role = item.get("role")
    if role not in ROLES:
        raise InvalidRequest("messages", f"the role of a message must be one of {', '.join(ROLES)}")
    content = item.get("content")
    if content is None:
        # An assistant that called a tool, or refused, said nothing; everyone else has to say something.
        if role != "assistant" or not (item.get("tool_calls") or item.get("function_call") or item.get("refusal")):
            raise InvalidRequest("messages", "each message needs content")
        return dict(item)
    return {**item, "content": _text(content)}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise InvalidRequest("messages", "content must be a string or a list of parts", code="invalid_type")
    texts = [part.get("text") for part in content if part.get("type") == "text"]
    if len(texts) != len(content):
        raise InvalidRequest("messages", "only parts of type text are supported", code="unsupported_parameter")
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("messages", "the text of a part must be a string", code="invalid_type")
    return "\n".join(map(str, texts))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ids(items: list[Any], vocab_size: int) -> list[int]:
    if not all(type(item) is int for item in items):
        raise InvalidRequest("prompt", "a list of token ids must hold integers only", code="invalid_type")
    # Python's integers have no bound: nothing outside the vocabulary may go any further.
    if items and not (min(items) >= 0 and max(items) < vocab_size):
        raise InvalidRequest("prompt", f"prompt holds a token id outside 0..{vocab_size - 1}")
    return items
