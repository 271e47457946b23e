"""The API's description: `/openapi.json` from the tables that requests are checked against, and a page to read it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from html import escape
from typing import Any

from orcaserve.serving.fields import CHAT, COMPLETION, UNSUPPORTED, Field, Schema
from orcaserve.serving.http import MAX_IGNORED_SHOWN
from orcaserve.serving.messages import ROLES
from orcaserve.serving.tokenize import DETOKENIZE, TOKENIZE
from orcaserve.version import __version__

_ERRORS = {
    "400": "A field is wrong; `param` names it.",
    "401": "The API key is missing or wrong.",
    "404": "The model does not exist.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not announced as JSON.",
    "500": "The request failed in the engine.",
    "503": "Loading, stopping, busy reading other requests, or the engine is gone.",
}
_POSTS: dict[str, tuple[str, str, Mapping[str, Field], tuple[str, ...]]] = {
    "/v1/completions": ("Continue a prompt", "Completion", COMPLETION, ("model",)),
    "/v1/chat/completions": ("Answer a conversation", "ChatCompletion", CHAT, ("model", "messages")),
    "/tokenize": ("Text to token ids", "Tokens", TOKENIZE, ()),
    "/detokenize": ("Token ids to text", "Text", DETOKENIZE, ("tokens",)),
}
_GETS = {
    "/v1/models": ("The served model", "application/json"),
    "/v1/models/{id}": ("The served model, by its name", "application/json"),
    "/health": ("200 if requests are taken; also while they wait for another engine", "application/json"),
    "/ready": ("200 if requests can be served now", "application/json"),
    "/live": ("200 if the process answers", "application/json"),
    "/metrics": ("Prometheus metrics", "text/plain"),
    "/version": ("The version of this server", "application/json"),
}
_STREAMED = ("/v1/completions", "/v1/chat/completions")


@cache
def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    paths: dict[str, Any] = {}
    for path, (summary, answer, fields, required) in _POSTS.items():
        paths[path] = {"post": _post(path, summary, answer, fields, required)}
    for path, (summary, content_type) in _GETS.items():
        paths[path] = {"get": _get(path, summary, content_type)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "OrcaServe", "version": __version__},
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


@cache
def page() -> str:
    """The document as a page for people; needs nothing from anywhere else."""
    sections = []
    for path, (summary, _, fields, required) in _POSTS.items():
        rows = "".join(
            f"<tr><td><code>{escape(name)}</code>{' *' if name in required else ''}</td>"
            f"<td>{escape(_in_words(field.schema))}</td><td>{escape(field.text)}</td></tr>"
            for name, field in fields.items()
        )
        sections.append(
            f"<h2>POST <code>{escape(path)}</code></h2><p>{escape(summary)}.</p>"
            f"<table><tr><th>field</th><th>takes</th><th></th></tr>{rows}</table>"
        )
    reads = "".join(f"<li><code>GET {escape(path)}</code> {escape(text)}</li>" for path, (text, _) in _GETS.items())
    errors = "".join(f"<li>{code}: {escape(text)}</li>" for code, text in _ERRORS.items())
    return _PAGE.format(
        version=escape(__version__),
        refused=", ".join(f"<code>{name}</code>" for name in UNSUPPORTED if name not in COMPLETION | CHAT),
        shown=MAX_IGNORED_SHOWN,
        sections="".join(sections),
        reads=reads,
        errors=errors,
    )


def _post(path: str, summary: str, answer: str, fields: Mapping[str, Field], required: tuple[str, ...]) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": {n: f.schema if n in required else f.documented for n, f in fields.items()},
        "required": list(required),
    }
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": f"#/components/schemas/{answer}"}}}
    if path in _STREAMED:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": summary, "content": content}, **_error_responses(*_ERRORS)},
    }


def _get(path: str, summary: str, content_type: str) -> Schema:
    codes = [] if path == "/live" else ["503"] if path in ("/health", "/ready") else ["401", "404", "503"]
    operation: Schema = {
        "summary": summary,
        "responses": {"200": {"description": summary, "content": {content_type: {}}}, **_error_responses(*codes)},
    }
    if "{id}" in path:
        operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation


def _error_responses(*codes: str) -> Schema:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {code: {"description": _ERRORS[code], "content": content} for code in codes}


def _schemas() -> Schema:
    text = {"type": "string"}
    count = {"type": "integer", "minimum": 0}
    number = {"type": "number"}
    ids = _list(count)
    maybe = {"type": ["string", "null"]}
    usage = _object(
        prompt_tokens=count,
        completion_tokens=count,
        total_tokens=count,
        prompt_tokens_details=_object(audio_tokens=count, cached_tokens=count),
        completion_tokens_details=_object(
            accepted_prediction_tokens=count,
            audio_tokens=count,
            reasoning_tokens=count,
            rejected_prediction_tokens=count,
        ),
    )
    reason = {"type": "string", "enum": ["stop", "length", "tool_calls"]}
    called = _object(name=text, arguments=text)
    calls = _list(_object(id=text, type={"const": "function"}, function=called))
    message = _object(role={"const": "assistant"}, content=maybe, refusal={"type": "null"})
    message["properties"]["tool_calls"] = calls
    common: Schema = {"id": text, "created": count, "model": text, "usage": usage}

    def choices(logprobs: str, **own: Schema) -> Schema:
        told = {"anyOf": [{"$ref": f"#/components/schemas/{logprobs}"}, {"type": "null"}]}
        choice = _object(index=count, finish_reason=reason, logprobs=told, **own)
        choice["properties"] |= {"token_ids": ids, "prompt_token_ids": ids}
        return {"type": "array", "items": choice}

    part = _object(type={"const": "text"}, text=text)
    chat = _object(object={"const": "chat.completion"}, choices=choices("ChatLogprobs", message=message), **common)
    chat["properties"]["prompt_token_ids"] = ids
    token: Schema = {"token": text, "logprob": number, "bytes": {"type": "array", "items": {**count, "maximum": 255}}}
    return {
        "Completion": _object(
            object={"const": "text_completion"}, choices=choices("CompletionLogprobs", text=text), **common
        ),
        "ChatCompletion": chat,
        "CompletionLogprobs": _object(
            tokens=_list(text),
            token_logprobs=_list({"type": ["number", "null"]}),
            top_logprobs=_list({"type": ["object", "null"], "additionalProperties": number}),
            text_offset=ids,
        ),
        "ChatLogprobs": _object(
            content=_list(_object(**token, top_logprobs=_list(_object(**token)))), refusal={"type": "null"}
        ),
        "Tokens": _object(tokens={"type": "array", "items": count}, count=count, max_model_len=count),
        "Text": _object(prompt=text),
        "Error": _object(error=_object(message=text, type=text, param=maybe, code=maybe)),
        "Message": {
            "type": "object",
            "required": ["role"],
            "properties": {
                "role": {"type": "string", "enum": list(ROLES)},
                "content": {"anyOf": [text, {"type": "array", "items": part}, {"type": "null"}]},
                "tool_calls": {"anyOf": [calls, {"type": "null"}]},
                "tool_call_id": maybe,
            },
        },
    }


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _in_words(schema: Schema) -> str:
    """A schema in a few words for the page."""
    if "anyOf" in schema:
        return " or ".join(_in_words(option) for option in schema["anyOf"])
    kind = str(schema.get("type", "object"))
    if kind == "array":
        return f"list of {_in_words(schema['items'])}"
    if "maximum" in schema:
        return f"{kind} from {schema['minimum']} to {schema['maximum']}"
    return "message" if "$ref" in schema else kind


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>OrcaServe API</title>
<meta name="viewport" content="width=device-width">
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
:root{{color-scheme:light dark}}
table{{border-collapse:collapse;width:100%}}td,th{{text-align:left;padding:.2rem .6rem;border-bottom:1px solid #8886}}
h2{{margin-top:2rem}}</style>
<h1>OrcaServe API {version}</h1>
<p>OpenAI-compatible. The same, for programs: <a href="openapi.json">openapi.json</a>. Fields marked * are required;
null means absent. Fields of OpenAI's and vLLM's APIs that would change the answer and are not served get a 400:
{refused}. Any other field has no effect; the first {shown} with plain names are named in the header
<code>x-orcaserve-ignored-fields</code>.</p>
{sections}<h2>Also</h2><ul>{reads}</ul><h2>Errors</h2><p>Always
<code>{{"error": {{"message", "type", "param", "code"}}}}</code>.</p><ul>{errors}</ul></html>"""
