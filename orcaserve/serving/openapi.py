"""The API's description, `/openapi.json`: made of the table of routes, and of the fields that are checked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from orcaserve.serving.error_codes import CODES
from orcaserve.serving.fields import CHAT, COMPLETION, COMPONENTS, UNSUPPORTED, Field, Schema
from orcaserve.serving.http import MAX_IGNORED_SHOWN
from orcaserve.serving.limits import LIMITS
from orcaserve.serving.route import OTHER_PROTOCOLS, Operation, Route
from orcaserve.serving.routes import ROUTES, SLASHES
from orcaserve.serving.schemas import answer_schemas
from orcaserve.version import __version__

ABOUT = f"""One model behind the protocols of several servers: OpenAI's (with vLLM's extensions), Triton's and \
KServe's, TensorFlow Serving's. Whatever a client speaks, its requests share iterations with all others.

Fields marked * must be there. A field that is null is as one that is absent. Fields of these APIs that would change \
the answer and are not served get a 400, unless the tables below have them: UNSERVED. Any other field has no effect. \
The first \
{MAX_IGNORED_SHOWN} of those with plain names, also in other fields, are named in the \
header `x-orcaserve-ignored-fields`, and the metric `orcaserve_ignored_fields_total` \
counts all. A server that was started with `--strict` answers 400 (`unknown_field`) instead.

Every answer has the header `x-request-id`: the one that the client sent, if it is one to 128 letters, digits or \
`._~:@/+=-`, else the request's own id, which the answer has as `id`. Either can be given to \
`POST /v1/requests/{{id}}/cancel`.

Every path also takes HEAD where it takes GET, and OPTIONS, which names the methods it takes."""

ERRORS = {
    400: "A field is wrong, and `param` names it; or the body or the request is malformed.",
    401: "The API key is missing or wrong: send it as `Authorization: Bearer KEY`.",
    403: "This server was not started with the flag that allows it.",
    404: "There is no such path, model, adapter, file, batch or request.",
    405: "The path takes other methods, which the header `allow` names.",
    408: "The header or the body did not arrive in time.",
    413: "The body, or the file in it, is too large, or there is no room for it.",
    415: "The body is of another type than the path takes, or compressed.",
    429: "There is too much to do already, or a deadline cannot be made: `retry-after` says in how many seconds to "
    "come back (`too_many_batches` has none).",
    431: "The header is too large.",
    500: "The request failed in the engine.",
    503: "Not now: loading, stopping, busy reading other requests, or the engine is gone. `retry-after` is 1.",
    504: "The request was not begun, for it could not make its deadline any more; or it ran past its `timeout`.",
    507: "The disk that holds files is full.",
}
OPENAI_ERROR, PLAIN_ERROR = "Error", "PlainError"


@cache
def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    unserved = ", ".join(f"`{name}`" for name in UNSUPPORTED if name not in COMPLETION | CHAT)
    return {
        "openapi": "3.1.0",
        "info": {"title": "OrcaServe", "version": __version__, "description": ABOUT.replace("UNSERVED", unserved)},
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": {**answer_schemas(), **COMPONENTS},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "x-errors": {str(code): text for code, text in ERRORS.items()},
        "x-error-codes": [
            {"code": name, "status": list(code.statuses), "when": code.when} for name, code in sorted(CODES.items())
        ],
        "x-limits": [
            {"what": limit.what, "limit": limit.value, "past": limit.past} for limit in LIMITS if limit.of_requests
        ],
    }


def _operation(route: Route) -> Schema:
    said = route.operation
    content: dict[str, Any] = {said.content: {"schema": said.answer}}
    if said.stream is not None:
        content["text/event-stream"] = {"schema": {"description": said.stream}}  # of each event
    operation: Schema = {
        "summary": said.summary,
        "tags": [said.tag],
        "operationId": _operation_id(route),
        "responses": {"200": {"description": said.summary, "content": content}, **_errors(route)},
    }
    if said.text:
        operation["description"] = said.text
    if parameters := _parameters(route):
        operation["parameters"] = parameters
    if said.fields is not None:
        kind = "multipart/form-data" if said.form else "application/json"
        operation["requestBody"] = {"required": True, "content": {kind: {"schema": _body(said)}}}
    if route.open:
        operation["security"] = []
    return operation


def _operation_id(route: Route) -> str:
    words = route.path.replace("{", "").replace("}", "").replace(":", "/").replace(".", "/").split("/")
    return "_".join([route.method.lower(), *filter(None, words)])


def _body(said: Operation) -> Schema:
    assert said.fields is not None
    return {
        "type": "object",
        "properties": {
            name: _required(field) if name in said.required or said.form else field.documented
            for name, field in said.fields.items()
        },
        "required": list(said.required),
    }


def _required(field: Field) -> Schema:
    return {**field.schema, "description": field.text} if field.text else field.schema


def _parameters(route: Route) -> list[Schema]:
    texts: Mapping[str, str] = {
        "model": f"The served model's name. {SLASHES}",
        "version": "The model's version: 1, the only one.",
        **route.operation.parameters,
    }
    path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": texts[name]}
        for name in route.names
    ]
    query = [
        {"name": name, "in": "query", "required": False, "schema": field.schema, "description": field.text}
        for name, field in route.operation.query.items()
    ]
    header = [
        {"name": name, "in": "header", "required": False, "schema": {"type": "number"}, "description": text}
        for name, text in route.operation.headers.items()
    ]
    return path + query + header


def _errors(route: Route) -> Schema:
    """Statuses of errors: of any request, of those with a body, and the route's own."""
    said = route.operation
    codes = {400, 408, 431, 500, *said.errors}
    if not route.open:
        codes |= {401, 503}
    if said.fields is not None:
        codes |= {413, 415}
    form = PLAIN_ERROR if route.path.startswith(OTHER_PROTOCOLS) else OPENAI_ERROR
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{form}"}}}
    return {str(code): {"description": ERRORS[code], "content": content} for code in sorted(codes)}
