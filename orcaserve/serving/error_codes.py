"""The codes of errors, by which programs tell refusals and failures apart. `/openapi.json` and docs/api.md have the
table, and a test holds it to the code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """statuses: with which it comes; when: for people."""

    when: str
    statuses: tuple[int, ...] = (400,)


CODES: dict[str, Code] = {
    "adapter_not_found": Code("There is no such folder on the server, or no adapter in it.", (404,)),
    "already_loaded": Code("The name is that of the model, or of an adapter that is loaded."),
    "bad_http": Code("The request is no valid HTTP/1.1, or has trailers."),
    "batch_not_found": Code("There is no such batch.", (404,)),
    "batch_over": Code("The batch is over, and cannot be cancelled."),
    "body_too_large": Code("The body is larger than its path takes.", (413,)),
    "cancelled": Code("A request for embeddings or scores was cancelled."),
    "context_length_exceeded": Code("Prompt and output together are more than the context, or all slots."),
    "deadline_exceeded": Code(
        "A deadline passed before the request was begun, or its `timeout` while it ran; also in events.", (504,)
    ),
    "deadline_unreachable": Code("By the forecast a deadline would be missed; `param` is its field or header.", (429,)),
    "disk_full": Code("The disk that holds files is full.", (507,)),
    "embeddings_not_supported": Code("The model makes no embeddings."),
    "engine_crashed": Code("The engine died twice while it ran the request, which is not run again.", (500,)),
    "engine_error": Code(
        "The engine failed: with 503 before the request was begun, so try again; with 500 in it, or in events.",
        (500, 503),
    ),
    "file_in_use": Code("A batch that is not over uses the file."),
    "file_not_found": Code("There is no such file; 400 where a batch names it.", (400, 404)),
    "file_too_large": Code("The file is larger than files may be.", (413,)),
    "files_disabled": Code("The server was started without a folder for files.", (404,)),
    "files_full": Code("There are as many files, or bytes in them, as are kept: delete some.", (400, 413)),
    "files_unavailable": Code("The folder for files cannot be used now.", (503,)),
    "header_too_large": Code("The header is too large.", (431,)),
    "internal_error": Code("A mistake of the server.", (500,)),
    "invalid_adapter": Code("The adapter cannot be loaded; the message says why."),
    "invalid_api_key": Code("The API key is missing or wrong.", (401,)),
    "invalid_form": Code("The body is not a valid form."),
    "invalid_grammar": Code("A grammar, schema or expression cannot be compiled, or not within the limits."),
    "invalid_header": Code("A header has a value that it cannot have; `param` names it, unless it is KServe's."),
    "invalid_json": Code("The body is not a valid JSON object, or beyond the limits on its form."),
    "invalid_query": Code("The part of the path behind the question mark is malformed."),
    "invalid_schema": Code("The parameters of a tool are no schema that arguments can be held to."),
    "invalid_type": Code("A field holds a value of another type."),
    "invalid_value": Code("A field holds a value that it cannot have."),
    "loading": Code("The model is still loading.", (503,)),
    "lora_updating_disabled": Code("The server was started without `--enable-runtime-lora-updating`.", (403,)),
    "method_not_allowed": Code("The path takes other methods.", (405,)),
    "model_not_found": Code("The model or adapter does not exist.", (404,)),
    "no_chat_template": Code("The model has no chat template: use /v1/completions."),
    "no_room": Code("The machine has no room for a process that the request needs.", (503,)),
    "not_found": Code("There is no such path.", (404,)),
    "not_ready": Code("Of the paths that tell health: no.", (503,)),
    "overloaded": Code("Too many requests wait; with 503, to be read, for grammars, or uploads.", (429, 503)),
    "request_not_found": Code("No request of this id is being answered.", (404,)),
    "request_timeout": Code("The header or the body did not arrive in time.", (408,)),
    "stopping": Code("The server is stopping; also in events.", (503,)),
    "too_many_adapters": Code("`--max-loras` adapters are loaded: unload one first."),
    "too_many_batches": Code("Too many batches are not over.", (429,)),
    "too_many_listeners": Code("Too many listen to the schedule.", (503,)),
    "unknown_field": Code("A field has no effect here, and the server is strict."),
    "unsupported_media_type": Code("The body is of another type than the path takes, or compressed.", (415,)),
    "unsupported_parameter": Code("A field of these APIs that is not served, or not with this value or model."),
    "version_not_found": Code("The model has no such version.", (404,)),
}
