"""/v1/batches: create, look at, list, cancel. As OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import starmap
from typing import TYPE_CHECKING, Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.batches.batch import (
    MAX_KEY,
    MAX_METADATA,
    MAX_METADATA_VALUE,
    MAX_WINDOW,
    window_seconds,
)
from orcaserve.serving.batches.lines import ENDPOINTS, MAX_LINES
from orcaserve.serving.fields import Field, check_fields
from orcaserve.serving.files.api import MAX_EXPIRY, MIN_EXPIRY, check_expiry
from orcaserve.serving.http import Exchange
from orcaserve.serving.json_body import parse_object
from orcaserve.serving.query import one_page, read_query, whole_number
from orcaserve.serving.route import Handle, Operation, Route

if TYPE_CHECKING:
    from orcaserve.serving.app import App

PAGE, MAX_PAGE = 20, 100
CREATE: dict[str, Field] = {
    "input_file_id": Field({"type": "string"}, f"An uploaded file of at most {MAX_LINES} requests, one a line."),
    "endpoint": Field({"type": "string", "enum": list(ENDPOINTS)}, "What every line asks for."),
    "completion_window": Field(
        {"type": "string", "pattern": "^[1-9][0-9]{0,6}[smhd]$"},
        f"Such as 24h: what has not run by then ends with the code batch_expired. At most {MAX_WINDOW // 86400}d.",
    ),
    "metadata": Field(
        {
            "type": "object",
            "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE},
            "propertyNames": {"maxLength": MAX_KEY},
            "maxProperties": MAX_METADATA,
        },
        "Kept with the batch, and changes nothing.",
    ),
    "output_expires_after": Field(
        {
            "type": "object",
            "required": ["anchor", "seconds"],
            "properties": {
                "anchor": {"const": "created_at"},
                "seconds": {
                    "type": "integer",
                    "minimum": MIN_EXPIRY,
                    "maximum": MAX_EXPIRY,
                    "description": "Counted from when each of these files is made.",
                },
            },
        },
        "When the files with its results are deleted; unless given, never.",
    ),
}
LIST: dict[str, Field] = {
    "limit": Field(
        {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}, f"Most batches of the answer; {PAGE} unless given."
    ),
    "after": Field({"type": "string"}, "The id after which the page begins. The latest batch is the first."),
}


async def create(app: App, exchange: Exchange) -> None:
    raw = await app.read_body(exchange)
    store, queue = app.require_files(), app.require_batches()
    body = parse_object(raw)
    exchange.name_ignored(check_fields(body, CREATE))
    endpoint, window = body.get("endpoint"), body.get("completion_window")
    if endpoint not in ENDPOINTS:
        raise InvalidRequest("endpoint", f"endpoint must be {' or '.join(ENDPOINTS)}")
    seconds = window_seconds(window) if isinstance(window, str) else None
    if seconds is None:
        raise InvalidRequest("completion_window", "completion_window must be a time such as 24h, of at most 30d")
    metadata, output_seconds = _metadata(body.get("metadata")), _output_seconds(body.get("output_expires_after"))
    input_file_id = body.get("input_file_id")
    if not isinstance(input_file_id, str) or not store.has(input_file_id):
        raise InvalidRequest("input_file_id", "there is no such file", code="file_not_found")
    if store.get(input_file_id).purpose != "batch":
        raise InvalidRequest("input_file_id", "the purpose of the file must be batch")
    batch = await queue.create(str(endpoint), input_file_id, str(window), seconds, metadata, output_seconds)
    await exchange.send_json(200, batch.said)


async def get(app: App, exchange: Exchange) -> None:
    await exchange.send_json(200, app.require_batches().records.get(exchange.params["id"]).said)


async def list_batches(app: App, exchange: Exchange) -> None:
    query = read_query(exchange, LIST)
    limit = whole_number(query, "limit", PAGE, MAX_PAGE)
    latest = app.require_batches().records.all()[::-1]
    page = one_page(latest, lambda batch: batch.id, lambda batch: batch.said, query.get("after"), limit)
    await exchange.send_json(200, page)


async def cancel(app: App, exchange: Exchange) -> None:
    batch = await app.require_batches().cancel(exchange.params["id"])
    await exchange.send_json(200, batch.said)


def _metadata(value: Any) -> Mapping[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > MAX_METADATA or not all(starmap(_is_metadata, value.items())):
        limits = f"{MAX_METADATA} strings of {MAX_METADATA_VALUE} characters, under names of {MAX_KEY}"
        raise InvalidRequest("metadata", f"metadata must be an object with at most {limits}")
    return dict(value)


def _is_metadata(name: str, value: Any) -> bool:
    return isinstance(value, str) and len(name) <= MAX_KEY and len(value) <= MAX_METADATA_VALUE


def _output_seconds(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("anchor") != "created_at":
        message = "output_expires_after must be an object with the anchor created_at, and seconds"
        raise InvalidRequest("output_expires_after", message)
    return check_expiry("output_expires_after", value.get("seconds"))


_BATCH = {"$ref": "#/components/schemas/Batch"}
_ID = {"id": "The batch's id."}


def _route(method: str, path: str, handle: Handle, summary: str, answer: Any, **more: Any) -> Route:
    return Route(method, path, handle, Operation(summary, answer, "Files and batches", **more))


ROUTES = [
    _route(
        "POST",
        "/v1/batches",
        create,
        "Run a file of requests",
        _BATCH,
        text="Batches run one after another, beside other requests, and go on after a restart of the server. Each line "
        "of the input is an object with custom_id, method (POST), url (the endpoint) and body; each line of the output "
        "has its custom_id and response, in the order of completion. Lines whose answer is no 200 are in the error "
        "file. While there is no room for results the batch waits, and says so in `errors`.",
        fields=CREATE,
        required=("input_file_id", "endpoint", "completion_window"),
        errors=(404, 429, 507),
    ),
    _route("GET", "/v1/batches", list_batches, "List batches", {"$ref": "#/components/schemas/Batches"}, query=LIST,
           errors=(404,)),
    _route(
        "POST",
        "/v1/batches/{id}/cancel",
        cancel,
        "Cancel a batch",
        _BATCH,
        text="Lines under way are given up; results that there are become files.",
        parameters=_ID,
        errors=(404,),
    ),
    _route("GET", "/v1/batches/{id}", get, "A batch", _BATCH, parameters=_ID, errors=(404,)),
]  # fmt: skip
