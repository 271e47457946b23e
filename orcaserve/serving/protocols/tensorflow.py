"""TensorFlow Serving's REST protocol, under /tfs: a model's status, and :predict.

    {"instances": ["The sea is", {"text_input": "A whale", "max_tokens": 5}]}   row form     -> {"predictions": [texts]}
    {"inputs": {"text_input": ["The sea is", "A whale"], "max_tokens": 5}}      column form  -> {"outputs": [texts]}

What stands beside the text are fields of a completion, the same for all texts of a request.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.fields import Field
from orcaserve.serving.handlers import acting
from orcaserve.serving.http import Answer, Exchange
from orcaserve.serving.protocols.translated import BUSY, VERSION, check_name, complete, of_model
from orcaserve.serving.protocols.triton import in_our_words
from orcaserve.serving.schema_parts import many, record, text, with_optional, word
from orcaserve.serving.service import Service
from orcaserve.serving.terms import HEADERS

if TYPE_CHECKING:
    from orcaserve.serving.app import App

TAG = "TensorFlow Serving"
SIGNATURE = "serving_default"
INPUT, OUTPUT = "text_input", "text_output"
PREDICT: dict[str, Field] = {
    "instances": Field(
        {"type": "array", "minItems": 1, "items": {}},
        f"Row form: texts, or objects with {INPUT} and fields of POST /v1/completions, the same in all of them.",
    ),
    "inputs": Field(
        {},
        f"Column form: a text, texts, or an object with {INPUT} and fields of POST /v1/completions. Give this or "
        "instances.",
    ),
    "signature_name": Field({"type": "string"}, f"{SIGNATURE}, the only one."),
}


def predict(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    check_name(exchange, service)
    if body.get("signature_name") not in (None, "", SIGNATURE):
        raise InvalidRequest("signature_name", f"there is no such signature, only {SIGNATURE}")
    rows, columns = body.get("instances"), body.get("inputs")
    if (rows is None) == (columns is None):
        raise InvalidRequest("instances", "give instances (row form) or inputs (column form)")
    texts, given = _of_columns(columns) if rows is None else _of_rows(rows)
    parameters = in_our_words(list(given.items()))
    if parameters.get("stream") not in (None, False):
        raise InvalidRequest("stream", "this protocol has no streams", code="unsupported_parameter")
    key = "outputs" if rows is None else "predictions"

    async def whole(outer: Exchange, answer: Mapping[str, Any]) -> None:
        await outer.send_json(200, {key: [choice["text"] for choice in answer["choices"]]})

    ignored = [name for name in body if name not in PREDICT]
    return complete(exchange, service, texts, parameters, whole, ignored=ignored)


def _of_rows(rows: Any) -> tuple[list[str], Mapping[str, Any]]:
    if not isinstance(rows, list) or not rows:
        raise InvalidRequest("instances", "instances must be a list with something in it", code="invalid_type")
    texts: list[str] = []
    settings: list[dict[str, Any]] = []
    for row in rows:
        named = row if isinstance(row, dict) and "b64" not in row else {INPUT: row}
        if INPUT not in named:
            raise InvalidRequest("instances", f"each of the instances needs {INPUT}")
        texts.append(_text("instances", named[INPUT]))
        settings.append({name: value for name, value in named.items() if name != INPUT})
    if any(other != settings[0] for other in settings):
        raise InvalidRequest("instances", f"beside {INPUT} all instances of a request must have the same")
    return texts, settings[0]


def _of_columns(columns: Any) -> tuple[list[str], Mapping[str, Any]]:
    named = columns if isinstance(columns, dict) and "b64" not in columns else {INPUT: columns}
    if INPUT not in named:
        raise InvalidRequest("inputs", f"inputs needs {INPUT}")
    texts = named[INPUT]
    if not isinstance(texts, list):
        texts = [texts]
    if not texts:
        raise InvalidRequest("inputs", f"{INPUT} must have a text in it")
    settings = {name: _one(name, value) for name, value in named.items() if name != INPUT}
    return [_text("inputs", text) for text in texts], settings


def _one(name: str, value: Any) -> Any:
    """A column's value for all rows: alone, or the same in each of them. Lists that are a field's own value stay."""
    if not isinstance(value, list) or not value or name in ("stop", "stop_words", "stop_token_ids"):
        return value
    if any(other != value[0] for other in value):
        raise InvalidRequest("inputs", f"beside {INPUT} each column must have the same value in all its rows")
    return value[0]


def _text(field: str, value: Any) -> str:
    """A text, or bytes of one in base64."""
    if isinstance(value, list) and len(value) == 1:  # a row of shape [1]
        value = value[0]
    if isinstance(value, dict) and list(value) == ["b64"] and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True).decode()
        except (binascii.Error, ValueError) as error:  # UnicodeDecodeError is one of the latter
            raise InvalidRequest(field, "b64 must be base64 of UTF-8 text") from error
    if not isinstance(value, str):
        raise InvalidRequest(field, f"{INPUT} must be a string", code="invalid_type")
    return value


async def _status(app: App, exchange: Exchange) -> None:
    service = app.require_service()
    check_name(exchange, service)
    reason = service.why_not_ready()
    status = {"error_code": "OK", "error_message": ""}
    if reason is not None:
        status = {"error_code": "UNAVAILABLE", "error_message": reason}
    state = "AVAILABLE" if reason is None else "LOADING"
    said = {"version": VERSION, "state": state, "status": status}
    await exchange.send_json(200, {"model_version_status": [said]})


async def _metadata(app: App, exchange: Exchange) -> None:
    service = app.require_service()
    check_name(exchange, service)

    def tensor(name: str) -> dict[str, Any]:
        shape = {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
        return {"dtype": "DT_STRING", "tensor_shape": shape, "name": name}

    signature = {
        "inputs": {INPUT: tensor(INPUT)},
        "outputs": {OUTPUT: tensor(OUTPUT)},
        "method_name": "tensorflow/serving/predict",
    }
    spec = {"name": service.name, "signature_name": "", "version": VERSION}
    definition = {"signature_def": {"signature_def": {SIGNATURE: signature}}}
    await exchange.send_json(200, {"model_spec": spec, "metadata": definition})


_PREDICTED = with_optional(
    record(),
    predictions=many({"type": "string"}, "To instances: what the model wrote, for each of them."),
    outputs=many({"type": "string"}, "To inputs: likewise."),
)
_STATUSES = record(
    model_version_status=many(
        record(
            version=text(f"{VERSION}, the only one."),
            state=word("LOADING: no request can be served now.", "AVAILABLE", "LOADING"),
            status=record(
                "Why.",
                error_code=word("UNAVAILABLE with LOADING.", "OK", "UNAVAILABLE"),
                error_message=text("What is the matter; empty with OK."),
            ),
        ),
        "One entry.",
    )
)
_METADATA = record(
    model_spec={"type": "object", "description": "name, and version."},
    metadata={"type": "object", "description": f"signature_def: of {SIGNATURE}, with {INPUT} and {OUTPUT}."},
)


_of_model = partial(of_model, TAG, "/tfs/v1/models/{model}")

ROUTES = [
    *_of_model("POST", ":predict", acting(predict, any_type=True, queues=True), "Continue texts", _PREDICTED,
               fields=PREDICT, headers=HEADERS, errors=BUSY),
    *_of_model("GET", "/metadata", _metadata, "What the model takes and gives", _METADATA),
    *_of_model("GET", "", _status, "Whether the model can be used", _STATUSES),
]  # fmt: skip
