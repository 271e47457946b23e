"""The request fields: what is accepted, what is refused by name, and what the schema says of each.

One table per endpoint serves checking, `/openapi.json` and the list of ignored fields, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.core.grammar import MAX_GRAMMAR_LENGTH
from orcaserve.core.logprobs import MAX_TOP_LOGPROBS
from orcaserve.core.sampling_params import MAX_CHOICES, MAX_LOGIT_BIAS, MAX_STOP_LENGTH, MAX_STOP_TOKEN_IDS, MAX_STOPS
from orcaserve.core.terms import MAX_NAME as MAX_CLIENT
from orcaserve.core.terms import MAX_PRIORITY, MAX_SECONDS, MIN_PRIORITY
from orcaserve.serving.messages import ROLES
from orcaserve.serving.tool_calls.tools import MAX_NAME, MAX_TOOLS, MAX_TOOLS_LENGTH

Schema = dict[str, Any]
MAX_DOCUMENTS = 1024
MAX_VARIABLES = 32  # of chat_template_kwargs
MAX_TEMPLATE_LENGTH = 2**17  # characters of a chat template that a request brings
MAX_LEGACY_LOGPROBS = 5  # of completions
MAX_LOGPROBS = 2**20  # of a request: those of tokens that it may generate, or has in its prompts, and of the best ones
MAX_WORK = 2**19  # choices x (prompt tokens + logit_bias entries + stop ids + characters of stop strings) of a request


@dataclass(frozen=True)
class Field:
    """One accepted field. Null always means absent."""

    schema: Schema
    text: str = ""

    @property
    def documented(self) -> Schema:
        nullable = {"anyOf": [self.schema, {"type": "null"}]}
        return {**nullable, "description": self.text} if self.text else nullable


def _number(low: float, high: float, text: str = "") -> Field:
    return Field({"type": "number", "minimum": low, "maximum": high}, text)


def _integer(low: int, high: int, text: str = "") -> Field:
    return Field({"type": "integer", "minimum": low, "maximum": high}, text)


_FLAG: Schema = {"type": "boolean"}


def _said(schema: Schema, text: str) -> Schema:
    """A member of an object, with what it means."""
    return {**schema, "description": text}


IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_STOP: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}

SAMPLING: dict[str, Field] = {
    "temperature": _number(0, 2, "How freely tokens are drawn; 0: always the likeliest (greedy). 1 unless given."),
    "top_p": _number(0, 1, "Draw from the likeliest tokens that make up this probability. 1 (all) unless given."),
    "top_k": _integer(-1, 2**31 - 1, "Draw from so many likeliest tokens. 0 and -1, as unless given: from all."),
    "min_p": _number(0, 1, "Leave out tokens less likely than this share of the likeliest. 0 (none) unless given."),
    "n": _integer(
        1,
        MAX_CHOICES,
        "Choices per prompt. With several, choices x (prompt tokens + logit_bias entries + stop ids + stop characters "
        f"+ characters of a grammar) is at most {MAX_WORK}.",
    ),
    "stop": Field(
        {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}]},
        "The text ends before the first of these that comes up in it.",
    ),
    "seed": _integer(
        -(2**63),
        2**63 - 1,
        "The same request with the same seed gives the same texts again. Unless given, one is drawn.",
    ),
    "presence_penalty": _number(
        -2,
        2,
        "Taken from the logit of every token that has been generated already: above 0 it becomes less likely. 0 unless "
        "given.",
    ),
    "frequency_penalty": _number(-2, 2, "The same, once for each time that it has been generated. 0 unless given."),
    "repetition_penalty": _number(
        0.01,
        10,
        "Divides the logit of every token of the prompt or the text so far, or multiplies it if it is below 0: above 1 "
        "such tokens become less likely. 1 unless given.",
    ),
    "logit_bias": Field(
        {
            "type": "object",
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
            "maxProperties": MAX_LOGIT_BIAS,
        },
        "From token ids to what is added to their logits: -100 bans a token, 100 chooses it.",
    ),
    "max_tokens": _integer(1, 2**31 - 1, "Most tokens to generate; unless given, what the context has left."),
    "min_tokens": _integer(
        0, 2**31 - 1, "Nothing ends the text before so many tokens: at most max_tokens; 0 unless given."
    ),
    "ignore_eos": Field(_FLAG, "Go on past the model's own end of a text, to max_tokens. False unless given."),
    "stop_token_ids": Field(IDS, f"The text also ends with any of these tokens, at most {MAX_STOP_TOKEN_IDS} of them."),
    "include_stop_str_in_output": Field(
        _FLAG, "The text ends with the stop string, or stop token, that ended it. False unless given."
    ),
    "skip_special_tokens": Field(_FLAG, "Leave special tokens out of the text. True unless given."),
}
_OBJECT: Schema = {"type": "object"}
_TEXTS: Schema = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 1024}
_JSON: Schema = {"anyOf": [_OBJECT, {"type": "string"}]}
_GRAMMAR: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_GRAMMAR_LENGTH}
STRUCTURED: dict[str, Field] = {
    "response_format": Field(
        {
            "type": "object",
            "required": ["type"],
            "properties": {
                "type": {
                    "type": "string",
                    "enum": ["text", "json_object", "json_schema"],
                    "description": "text: anything; json_object: a JSON object; json_schema: JSON of this schema.",
                },
                "json_schema": {
                    "type": "object",
                    "description": "Only with the type json_schema, which needs it.",
                    "required": ["name"],
                    "properties": {
                        "name": {
                            "type": "string",
                            "pattern": "^[A-Za-z0-9_-]{1,64}$",
                            "description": "1 to 64 letters, digits, _ and -; changes nothing.",
                        },
                        "description": _said({"type": "string"}, "Changes nothing: the model is not told."),
                        "schema": _said(_OBJECT, "A JSON schema; any JSON unless given."),
                        "strict": _said(_FLAG, "Changes nothing: the schema is kept to in any case."),
                    },
                },
            },
        },
        "What the text must be: docs/structured_output.md.",
    ),
    "structured_outputs": Field(
        {
            "type": "object",
            "properties": {
                "json": _said(_JSON, "A JSON schema, as an object or as text."),
                "json_object": _said(_FLAG, "True: a JSON object."),
                "regex": _said(_GRAMMAR, "A regular expression of the whole text, in the syntax of Rust's regex."),
                "choice": _said(_TEXTS, "Texts, of which the model writes one to the letter."),
                "grammar": _said(_GRAMMAR, "A context-free grammar in Lark's notation."),
            },
        },
        "What the text must be, by one of these members: docs/structured_output.md.",
    ),
    "guided_json": Field(_JSON, "As structured_outputs.json."),
    "guided_regex": Field(_GRAMMAR, "As structured_outputs.regex."),
    "guided_choice": Field(_TEXTS, "As structured_outputs.choice."),
    "guided_grammar": Field(_GRAMMAR, "As structured_outputs.grammar."),
}
COMMON: dict[str, Field] = {
    "model": Field(
        {"type": "string"}, "The name of the served model or of one of its adapters, as GET /v1/models has it."
    ),
    "stream": Field(_FLAG, "Answer with events (SSE), as the text comes. False unless given."),
    "stream_options": Field(
        {
            "type": "object",
            "properties": {
                "include_usage": _said(
                    _FLAG, "One more event before `data: [DONE]`, with the `usage` and no choices. False unless given."
                ),
                "continuous_usage_stats": _said(
                    _FLAG, "With include_usage: every event has the `usage` so far. False unless given."
                ),
            },
        },
        "Only with stream: true.",
    ),
    "user": Field(
        {"type": "string", "maxLength": MAX_CLIENT},
        "Who asks: whom its tokens are charged to where clients share the machine. With an API key that is the key's "
        "holder, and without either the address.",
    ),
    "priority": _integer(
        MIN_PRIORITY,
        MAX_PRIORITY,
        "Requests with a lower one are begun first. 0 unless given; where the API key's is larger, the key's.",
    ),
    "timeout": _number(
        0,
        MAX_SECONDS,
        "Seconds after its arrival, more than 0, by which the request must have ended. One that cannot is not begun: "
        "429 (deadline_unreachable) at once, or 504 (deadline_exceeded) if it has waited. One that was begun ends "
        "then, with 504 or an event with this error.",
    ),
    "cache_salt": Field(
        {"type": "string", "maxLength": MAX_CLIENT},
        "Prompts that begin alike share what was computed for them only if their salts are equal. Empty unless given.",
    ),
    "return_token_ids": Field(_FLAG, "Answer with the token ids of prompts and texts as well. False unless given."),
    "prompt_logprobs": _integer(
        0,
        MAX_TOP_LOGPROBS,
        "Log-probabilities of each token of the prompt, and of so many best ones; not with stream. Counts as echo with "
        "logprobs does. None unless given.",
    ),
    **SAMPLING,
    **STRUCTURED,
}
COMPLETION: dict[str, Field] = {
    "prompt": Field(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                IDS,
                {"type": "array", "items": IDS},
            ]
        },
        "Text, texts, token ids, or lists of token ids. Without one, the model starts a new document.",
    ),
    **COMMON,
    "max_tokens": _integer(
        0, 2**31 - 1, "Most tokens to generate, 16 unless given; 0: none, for a prompt that is to be echoed."
    ),
    "logprobs": _integer(
        0,
        MAX_LEGACY_LOGPROBS,
        "Log-probabilities of each token and of so many of the likeliest at its place; with echo also of the prompt. "
        "None unless given. Choices x (max_tokens + with echo prompt tokens) x (logprobs + 1) is at most "
        f"{MAX_LOGPROBS}.",
    ),
    "echo": Field(_FLAG, "The text begins with the prompt, as its tokens are decoded. False unless given."),
    "best_of": _integer(
        1,
        MAX_CHOICES,
        "So many choices are generated of each prompt, and the n with the highest mean log-probability are the answer. "
        "n or more; with stream no more than n.",
    ),
}
_NAME: Schema = {"type": "string", "pattern": f"^[A-Za-z0-9_-]{{1,{MAX_NAME}}}$"}
_FUNCTION: Schema = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": _said(_NAME, f"1 to {MAX_NAME} letters, digits, _ and -; no two functions have the same."),
        "description": _said({"type": "string"}, "What it does, which the model is told."),
        "parameters": {
            "type": "object",
            "description": "A JSON schema of the object that its arguments are; no arguments unless given.",
        },
        "strict": {
            "type": "boolean",
            "description": "True: the arguments of a call always validate against the schema. False unless given.",
        },
    },
}
_NAMED: Schema = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "description": "One of the tools.",
            "required": ["name"],
            "properties": {"name": _said(_NAME, "Its name.")},
        },
    },
}
_ALLOWED: Schema = {
    "type": "object",
    "required": ["type", "allowed_tools"],
    "properties": {
        "type": {"const": "allowed_tools"},
        "allowed_tools": {
            "type": "object",
            "description": "Some of the tools: the model is told of all, and may call these.",
            "required": ["mode", "tools"],
            "properties": {
                "mode": {"type": "string", "enum": ["auto", "required"], "description": "As tool_choice itself."},
                "tools": {"type": "array", "minItems": 1, "items": _NAMED, "description": f"{MAX_TOOLS} at most."},
            },
        },
    },
}
TOOLS: dict[str, Field] = {
    "tools": Field(
        {
            "type": "array",
            "maxItems": MAX_TOOLS,
            "items": {
                "type": "object",
                "required": ["type", "function"],
                "properties": {
                    "type": {"const": "function"},
                    "function": _said(_FUNCTION, "What the model is told of."),
                },
            },
        },
        f"Functions that the model may call. Together at most {MAX_TOOLS_LENGTH} characters of JSON.",
    ),
    "tool_choice": Field(
        {"anyOf": [{"type": "string", "enum": ["none", "auto", "required"]}, _NAMED, _ALLOWED]},
        "auto, as unless given: the model decides. none: it calls nothing, and is told of no tools. required: its "
        "answer calls one or more. A function: it calls that one.",
    ),
    "parallel_tool_calls": Field(_FLAG, "False: one call at most. True unless given. Only with tools."),
}
TEMPLATE: dict[str, Field] = {
    "add_generation_prompt": Field(
        _FLAG,
        "End the prompt with what the template puts before an answer. True unless given, or continue_final_message is.",
    ),
    "continue_final_message": Field(
        _FLAG, "The model goes on with the last message in place of answering it. False unless given."
    ),
    "chat_template_kwargs": Field(
        {"type": "object", "maxProperties": MAX_VARIABLES},
        "More variables for the chat template, such as enable_thinking.",
    ),
    "documents": Field(
        {"type": "array", "maxItems": MAX_DOCUMENTS, "items": {"type": "object"}},
        "Objects with texts to answer from, for chat templates that have a place for them; for others it is a 400.",
    ),
    "chat_template": Field(
        {"type": "string", "minLength": 1, "maxLength": MAX_TEMPLATE_LENGTH},
        "In place of the model's; only if the server was started with --trust-request-chat-template.",
    ),
}
CHAT: dict[str, Field] = {
    "messages": Field(
        {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Message"}},
        "The conversation so far, which the model's chat template makes a prompt of.",
    ),
    "max_completion_tokens": _integer(
        1, 2**31 - 1, "OpenAI's newer name of max_tokens. If both are given they must be equal."
    ),
    **TOOLS,
    **TEMPLATE,
    **COMMON,
    "logprobs": Field(_FLAG, "Log-probabilities of each token. False unless given."),
    "top_logprobs": _integer(
        0,
        MAX_TOP_LOGPROBS,
        "And of so many of the likeliest at its place; only with logprobs. 0 unless given. Choices x max_tokens x "
        "(top_logprobs + 1) is at most "
        f"{MAX_LOGPROBS}.",
    ),
}


_TEXT: Schema = {"type": "string"}
_PART: Schema = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": _said(_TEXT, "The text. Other parts (images, audio) get a 400.")},
}
_CALL: Schema = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "id": _said(_TEXT, "The call's id, to which the message with its result refers."),
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "description": "What was called.",
            "required": ["name", "arguments"],
            "properties": {
                "name": _said(_TEXT, "The function's name."),
                "arguments": {
                    "anyOf": [_TEXT, {"type": "object"}],
                    "description": "A JSON object, as text or as it is.",
                },
            },
        },
    },
}
COMPONENTS: dict[str, Schema] = {
    "Message": {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"type": "string", "enum": list(ROLES), "description": "Who says it."},
            "content": {
                "anyOf": [_TEXT, {"type": "array", "items": _PART}, {"type": "null"}],
                "description": "What is said; null only from an assistant with tool_calls or a refusal.",
            },
            "name": {"type": ["string", "null"], "description": "Who it is, of several in one role."},
            "refusal": {"type": ["string", "null"], "description": "Why an assistant said nothing."},
            "tool_calls": {
                "anyOf": [{"type": "array", "items": _CALL}, {"type": "null"}],
                "description": "Calls that an assistant has made.",
            },
            "tool_call_id": {"type": ["string", "null"], "description": "From a tool: the call whose result this is."},
            "function_call": {"type": ["object", "null"], "description": "The older form of tool_calls."},
        },
    },
}
"""Schemas that fields refer to by name."""
_REFERENCE = "#/components/schemas/"


def _is_off(value: Any) -> bool:
    """Null, false, zero and empty ask for nothing. True of 0 and 0.0, so not for fields where 0 asks for something."""
    return value is None or value is False or value == 0 or value in ("", [], {})


def _is_null_or_false(value: Any) -> bool:
    return value is None or value is False


# Fields of the API that change the answer and are not served: (is this value harmless?)
_Harmless = Callable[[Any], bool]
UNSUPPORTED: dict[str, _Harmless] = {
    "suffix": _is_off,
    "top_logprobs": _is_null_or_false,
    "echo": _is_null_or_false,
    "tools": _is_off,
    "tool_choice": lambda value: value in (None, "none", "auto"),
    "functions": _is_off,
    "function_call": lambda value: value in (None, "none", "auto"),
    "modalities": lambda value: value in (None, ["text"]),
    "audio": _is_off,
    "prediction": _is_off,
    "use_beam_search": _is_null_or_false,
    "bad_words": _is_off,
    "allowed_token_ids": lambda value: value is None,
    "truncate_prompt_tokens": lambda value: value is None,
    "chat_template": lambda value: value is None,
    "continue_final_message": _is_null_or_false,
}


INSTEAD = {"functions": ": use tools", "function_call": ": use tool_choice"}  # OpenAI's own advice


def check_fields(body: Mapping[str, Any], known: Mapping[str, Field]) -> list[str]:
    """Refuse what is asked for and not served; return the names of fields that have no effect, also of those inside
    others (`stream_options.x`, `messages.content.x`).

    Raises InvalidRequest naming the field.
    """
    ignored: list[str] = []
    for name, value in body.items():
        if name in known:
            ignored += dict.fromkeys(_unknown_inside(name, value, known[name].schema))
        elif name in UNSUPPORTED:
            if not UNSUPPORTED[name](value):
                instead = INSTEAD.get(name, "")
                raise InvalidRequest(name, f"{name} is not supported{instead}", code="unsupported_parameter")
        elif name == "best_of":
            _check_best_of(value, body.get("n"))
        else:
            ignored.append(name)
    return ignored


def without_effect(unknown: list[str], template: str | None) -> list[str]:
    """Of the unknown names in a body with messages, those that the chat template does not read either."""
    return [
        name for name in unknown
        if template is None or not name.startswith("messages.") or name.rpartition(".")[2] not in template
    ]  # fmt: skip


def _unknown_inside(path: str, value: Any, schema: Schema) -> Iterator[str]:
    """Names in the objects of a value that no schema of such an object has. Objects without any names are open."""
    if not isinstance(value, dict | list):
        return
    options = list(_options(schema))
    if isinstance(value, list):
        items = [option["items"] for option in options if "items" in option]
        if any(_holds_objects(item) for item in items):
            for element in value:
                yield from _unknown_inside(path, element, {"anyOf": items})
        return
    objects = [option for option in options if "object" in option.get("type", ())]
    if any("properties" not in option or option.get("additionalProperties") for option in objects):
        return
    known = {name: schema for option in objects for name, schema in option["properties"].items()}
    if known:
        for name, inner in value.items():
            if name in known:
                yield from _unknown_inside(f"{path}.{name}", inner, known[name])
            else:
                yield f"{path}.{name}"


def _options(schema: Schema) -> Iterator[Schema]:
    """What a schema allows, each without anyOf and references."""
    if "$ref" in schema:
        schema = COMPONENTS[schema["$ref"].removeprefix(_REFERENCE)]
    if "anyOf" in schema:
        for option in schema["anyOf"]:
            yield from _options(option)
    else:
        yield schema


def _holds_objects(schema: Schema) -> bool:
    return any(
        "object" in option.get("type", ()) or ("items" in option and _holds_objects(option["items"]))
        for option in _options(schema)
    )


def flag(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidRequest(name, f"{name} must be true or false", code="invalid_type")
    return value


def _check_best_of(value: Any, n: Any) -> None:
    """best_of = n asks for nothing more than n does."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest("best_of", "best_of must be an integer", code="invalid_type")
    wanted = 1 if n is None else n
    if value != wanted:
        raise InvalidRequest("best_of", "best_of is supported only when it equals n", code="unsupported_parameter")
