"""Schemas of generated text: completions, chats, log-probabilities; of tokens; of errors."""

from __future__ import annotations

from orcaserve.serving.fields import Schema
from orcaserve.serving.schema_parts import (
    count,
    ids,
    many,
    maybe_text,
    named,
    null_or,
    number,
    record,
    text,
    time,
    with_optional,
    word,
)

CREATED = time("When the server began to answer")
MODEL = text("What the request named: the model, or an adapter.")
IDS = "With return_token_ids: all tokens that were generated, shown or not."
PROMPT_IDS = "With return_token_ids: the prompt's tokens."
REASON = (
    "stop: at the model's own end, a stop string or token, or the end of a grammar; length: at max_tokens, or the "
    "context is full; abort: the request was cancelled"
)
BYTES = many(
    {"type": "integer", "minimum": 0, "maximum": 255},
    "The token's bytes; those of a character may be of several tokens.",
)


def text_schemas() -> dict[str, Schema]:
    return {
        "Completion": _answer(
            "text_completion",
            "CompletionLogprobs",
            {"prompt_token_ids": ids(PROMPT_IDS), "prompt_logprobs": _of_prompt()},
            finish_reason=word(f"{REASON}.", "stop", "length", "abort"),
            text=text("What the model wrote; with echo the prompt stands before it."),
        ),
        "ChatCompletion": with_optional(
            _answer(
                "chat.completion",
                "ChatLogprobs",
                {},
                finish_reason=word(f"{REASON}; tool_calls: it calls tools.", "stop", "length", "tool_calls", "abort"),
                message=_message(),
            ),
            prompt_token_ids=ids(PROMPT_IDS),
            prompt_logprobs=_of_prompt(),
        ),
        "Usage": _usage(),
        "CompletionLogprobs": record(
            "One entry of each list for each token.",
            tokens=many({"type": "string"}, "Its text; `bytes:` and its bytes if it has only a part of a character."),
            token_logprobs=many(
                {"type": ["number", "null"]}, "The natural logarithm of its probability; null for a prompt's first."
            ),
            top_logprobs=many(
                {"type": ["object", "null"], "additionalProperties": {"type": "number"}},
                "From the texts of the likeliest tokens at its place to their log-probabilities; it is among them.",
            ),
            text_offset=ids("How many characters stand before it, from the beginning of the text."),
        ),
        "ChatLogprobs": record(
            content=many(
                record(**_token()["properties"], top_logprobs=many(_token(), "The likeliest tokens at its place.")),
                "An entry for each token.",
            ),
            refusal={"type": "null", "description": "Always null."},
        ),
        "Tokens": record(
            tokens=ids("Token ids."),
            token_strs=null_or(
                {"type": "array", "items": {"type": "string"}},
                "The tokens as the vocabulary spells them; null without return_token_strs.",
            ),
            count=count("How many tokens there are."),
            max_model_len=count("The most tokens of a request, prompt and output."),
        ),
        "Text": record(prompt=text("The text of the tokens.")),
        "Error": record(error=_error()),
    }


def _answer(kind: str, logprobs: str, optional: Schema, **own: Schema) -> Schema:
    choice = record(
        index=count("The choices are numbered from 0: first those of the first prompt, then those of the next."),
        logprobs=null_or(named(logprobs), "Null unless the request asks for them."),
        **own,
    )
    return record(
        object={"const": kind},
        choices=many(with_optional(choice, token_ids=ids(IDS), **optional), "n for each prompt."),
        id=text("The request's id."),
        created=CREATED,
        model=MODEL,
        usage={**named("Usage"), "description": "Counts of tokens."},
    )


def _of_prompt() -> Schema:
    told = record(
        logprob=number("The natural logarithm of its probability."),
        rank=count("Its place among all tokens, 1 being the likeliest."),
        decoded_token=text("Its text; `bytes:` and its bytes if it has only a part of a character."),
    )
    return many(
        {"type": ["object", "null"], "additionalProperties": told},
        "With prompt_logprobs: for each token of the prompt from ids, its own first, to what is told of them; null for "
        "the first.",
    )


def _message() -> Schema:
    function = record("What is called.", name=text("The function's name."), arguments=text("A JSON object, as text."))
    call = record(
        id=text("To which the message with its result has to refer."), type={"const": "function"}, function=function
    )
    return with_optional(
        record(
            "What the model answers.",
            role={"const": "assistant"},
            content=maybe_text("The text; null from a choice that only calls tools."),
            refusal={"type": "null", "description": "Always null."},
        ),
        tool_calls=many(call, "The calls, if there are any."),
    )


def _usage() -> Schema:
    none = count("Always 0.")
    return record(
        prompt_tokens=count("Tokens of the prompts, each counted once."),
        completion_tokens=count("Generated tokens of all choices, also of those that best_of leaves out."),
        total_tokens=count("Both together."),
        prompt_tokens_details=record(
            "Of the prompt tokens:",
            audio_tokens=none,
            cached_tokens=count("Those whose keys and values were there already (docs/prefix_reuse.md)."),
        ),
        completion_tokens_details=record(
            "What other servers count, and this one does not have.",
            accepted_prediction_tokens=none,
            audio_tokens=none,
            reasoning_tokens=none,
            rejected_prediction_tokens=none,
        ),
    )


def _token() -> Schema:
    return record(
        token=text("The token's text; `bytes:` and its bytes if it has only a part of a character."),
        logprob=number("The natural logarithm of its probability; -9999 for what is less."),
        bytes=BYTES,
    )


def _error() -> Schema:
    return record(
        "What went wrong.",
        message=text("For people."),
        type=word(
            "The kind, by the status: 401, 404, 429, other 4xx, 5xx.",
            "authentication_error", "not_found_error", "rate_limit_error", "invalid_request_error", "server_error",
        ),
        param=maybe_text("The field or header that is wrong; null: none, or it has no plain name."),
        code=maybe_text("For programs: see Errors."),
    )  # fmt: skip
