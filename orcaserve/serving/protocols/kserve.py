"""KServe's v2 protocol, as Triton's clients speak it: health, metadata, and text through tensors.

    POST /v2/models/{model}/infer    inputs: text_input BYTES [n] or [n, 1]; output: text_output, of the same shape

Each element is a prompt. Fields of a completion may be given as parameters of the request, or as inputs of one element.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.fields import Field, Schema
from orcaserve.serving.handlers import acting
from orcaserve.serving.http import Answer, Exchange, encode_json
from orcaserve.serving.json_body import parse_object
from orcaserve.serving.protocols.tensors import DATATYPES, Tensor, read_tensors, write_bytes
from orcaserve.serving.protocols.translated import BUSY, ELSEWHERE, VERSION, check_name, complete, of_model
from orcaserve.serving.protocols.triton import in_our_words
from orcaserve.serving.reads import live, ready
from orcaserve.serving.route import Operation, Route
from orcaserve.serving.schema_parts import count, many, named, record, text, with_optional
from orcaserve.serving.service import Service
from orcaserve.serving.terms import HEADERS
from orcaserve.version import __version__

if TYPE_CHECKING:
    from orcaserve.serving.app import App

TAG = "Triton and KServe"
LENGTH_HEADER = b"inference-header-content-length"
INPUT, OUTPUT = "text_input", "text_output"
SETTINGS = "sampling_parameters"  # an input with a JSON object in it, as Triton's vLLM backend takes it
EXTENSIONS = ["binary_tensor_data", "generate", "model_configuration", "parameters"]
PLATFORM = "orcaserve"
# What Triton's clients put among the parameters for the server itself.
OF_THE_SERVER = ("binary_data_output", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout")
# Inputs that the metadata names beside the text; any other field of a completion is taken as well.
OPTIONAL = {
    "max_tokens": "INT32", "temperature": "FP32", "top_p": "FP32", "top_k": "INT32", "seed": "INT64", "stop": "BYTES",
    SETTINGS: "BYTES",
}  # fmt: skip


def read_inference(exchange: Exchange, raw: bytes) -> Mapping[str, Any]:
    """The JSON of the body as `request`, and its tensors."""
    given = exchange.header(LENGTH_HEADER)
    length = len(raw) if given is None else int(given) if given.isascii() and given.isdigit() else -1
    if not 0 <= length <= len(raw):
        name = "Inference-Header-Content-Length"
        raise InvalidRequest(None, f"the header {name} must be the size of the body's JSON", code="invalid_header")
    request = parse_object(raw[:length])
    return {"request": request, "tensors": read_tensors(request.get("inputs"), raw[length:])}


def infer(exchange: Exchange, service: Service, body: Mapping[str, Any]) -> Answer:
    check_name(exchange, service)
    request: Mapping[str, Any] = body["request"]
    tensors: dict[str, Tensor] = {tensor.name: tensor for tensor in body["tensors"]}
    text = tensors.pop(INPUT, None)
    if text is None or text.datatype != "BYTES" or not text.values:
        raise InvalidRequest(INPUT, f"one of the inputs must be {INPUT}, of datatype BYTES, with a prompt in it")
    name = request.get("id")
    if name is not None and not isinstance(name, str):
        raise InvalidRequest("id", "id must be a string", code="invalid_type")
    of_request = _parameters(request)
    binary = _wants_bytes(request, of_request)
    given = [(key, value) for key, value in of_request.items() if key not in OF_THE_SERVER]
    parameters = in_our_words([*given, *_settings(tensors)])
    if parameters.get("stream") not in (None, False):
        raise InvalidRequest("stream", "for a stream use generate_stream", code="unsupported_parameter")
    ignored = [key for key in ("priority", "timeout", "sequence_id") if of_request.get(key)]
    ignored += [key for key in request if key not in INFER]

    async def whole(outer: Exchange, answer: Mapping[str, Any]) -> None:
        texts = [choice["text"] for choice in answer["choices"]]
        output: dict[str, Any] = {"name": OUTPUT, "datatype": "BYTES", "shape": list(text.shape)}
        said = {"model_name": service.name, "model_version": VERSION, "outputs": [output]}
        if name:
            said["id"] = name
        if not binary:
            output["data"] = texts
            await outer.send_json(200, said)
            return
        raw = write_bytes(texts)
        output["parameters"] = {"binary_data_size": len(raw)}
        head = encode_json(said)
        headers = [(LENGTH_HEADER, b"%d" % len(head))]
        await outer.send_bytes(200, head + raw, b"application/octet-stream", headers)

    return complete(exchange, service, list(text.values), parameters, whole, ignored=ignored)


def _parameters(request: Mapping[str, Any]) -> dict[str, Any]:
    parameters = request.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequest("parameters", "parameters must be an object", code="invalid_type")
    return dict(parameters or {})


def _wants_bytes(request: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    """Whether the output shall lie behind the JSON. Raises InvalidRequest for outputs that there are not."""
    outputs = request.get("outputs")
    if not outputs:
        return parameters.get("binary_data_output") is True
    if not isinstance(outputs, list) or len(outputs) != 1 or not isinstance(outputs[0], dict):
        raise InvalidRequest("outputs", f"outputs must be a list with one object: the output is {OUTPUT}")
    if outputs[0].get("name") != OUTPUT:
        raise InvalidRequest("outputs", f"there is no such output, only {OUTPUT}")
    own = outputs[0].get("parameters") or {}
    if not isinstance(own, dict):
        raise InvalidRequest("outputs", "the parameters of an output must be an object", code="invalid_type")
    return own.get("binary_data", parameters.get("binary_data_output")) is True


def _settings(tensors: Mapping[str, Tensor]) -> list[tuple[str, Any]]:
    """Fields of a completion that came as inputs."""
    settings: list[tuple[str, Any]] = []
    for name, tensor in tensors.items():
        if name in ("stop", "stop_words") and tensor.datatype == "BYTES":
            settings.append((name, list(tensor.values)))
        elif len(tensor.values) != 1:
            raise InvalidRequest(None, f"inputs other than {INPUT} and stop must hold one element")
        elif name == SETTINGS:
            settings += _settings_object(tensor.values[0]).items()
        else:
            settings.append((name, tensor.values[0]))
    return settings


def _settings_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, str):
        raise InvalidRequest(SETTINGS, f"{SETTINGS} must be BYTES with a JSON object in them", code="invalid_type")
    try:
        return parse_object(value.encode())
    except InvalidRequest as error:
        raise InvalidRequest(SETTINGS, error.message.replace("the body", SETTINGS), error.code) from error


async def _server(app: App, exchange: Exchange) -> None:
    await exchange.send_json(200, {"name": "orcaserve", "version": __version__, "extensions": EXTENSIONS})


async def _model(app: App, exchange: Exchange) -> None:
    check_name(exchange, app.require_service())
    inputs = [{"name": INPUT, "datatype": "BYTES", "shape": [-1]}]
    inputs += [{"name": name, "datatype": kind, "shape": [1]} for name, kind in OPTIONAL.items()]
    outputs = [{"name": OUTPUT, "datatype": "BYTES", "shape": [-1]}]
    said = {"name": app.require_service().name, "versions": [VERSION], "platform": PLATFORM}
    await exchange.send_json(200, {**said, "inputs": inputs, "outputs": outputs})


async def _config(app: App, exchange: Exchange) -> None:
    """As Triton's model configuration, of which clients read what follows."""
    check_name(exchange, app.require_service())
    kinds = {"BYTES": "TYPE_STRING"}
    inputs: list[dict[str, Any]] = [{"name": INPUT, "data_type": "TYPE_STRING", "dims": [-1], "optional": False}]
    inputs += [
        {"name": name, "data_type": kinds.get(kind, f"TYPE_{kind}"), "dims": [1], "optional": True}
        for name, kind in OPTIONAL.items()
    ]
    said = {
        "name": app.require_service().name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": 0,
        "input": inputs,
        "output": [{"name": OUTPUT, "data_type": "TYPE_STRING", "dims": [-1]}],
        "model_transaction_policy": {"decoupled": False},
    }
    await exchange.send_json(200, said)


async def _model_ready(app: App, exchange: Exchange) -> None:
    check_name(exchange, app.require_service())
    await ready(app, exchange)


_TENSOR_PARAMETERS = {"type": "object"}
_INPUT = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"type": "string", "description": f"{INPUT}, or a field of POST /v1/completions."},
        "datatype": {"type": "string", "enum": list(DATATYPES), "description": "Of the elements; texts are BYTES."},
        "shape": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0},
            "description": "The tensor's dimensions: their product is the number of elements.",
        },
        "data": {"type": "array", "items": {}, "description": "The elements, flat or nested; unless they are bytes."},
        "parameters": {**_TENSOR_PARAMETERS, "description": "binary_data_size: bytes of the elements behind the JSON."},
    },
}
_OUTPUT = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "description": f"{OUTPUT}, the only one."},
        "parameters": {**_TENSOR_PARAMETERS, "description": "binary_data: true for bytes in place of JSON."},
    },
}
INFER: dict[str, Field] = {
    "id": Field({"type": "string"}, "A name for this request, which the answer repeats."),
    "inputs": Field(
        {"type": "array", "minItems": 1, "items": _INPUT},
        f"{INPUT} (BYTES, a prompt in each element), and fields of POST /v1/completions as inputs of one element. Data "
        "as JSON, or binary_data_size in `parameters` and the bytes behind the JSON, whose size the header "
        "Inference-Header-Content-Length then says.",
    ),
    "outputs": Field({"type": "array", "items": _OUTPUT}, f"What to answer with: {OUTPUT}, as unless given."),
    "parameters": Field(
        {"type": "object"},
        f"Fields of POST /v1/completions {ELSEWHERE}; binary_data_output: the output as bytes.",
    ),
}
_NAME = text("The served model's name.")
_VERSIONS = many({"type": "string"}, f"{VERSION}, the only one.")


def _tensors(means: str) -> Schema:
    return many({"type": "object"}, means)


_MODEL = record(
    name=_NAME,
    versions=_VERSIONS,
    platform=text(f"{PLATFORM}."),
    inputs=_tensors("Name, datatype and shape of each; all but the first may be left out."),
    outputs=_tensors("Name, datatype and shape of the only one."),
)
_CONFIG = record(
    name=_NAME,
    platform=text(f"{PLATFORM}."),
    backend=text(f"{PLATFORM}."),
    max_batch_size=count("0: tensors have no dimension for batches."),
    input=_tensors("Name, data_type and dims of each, and whether it is optional."),
    output=_tensors("Name, data_type and dims of the only one."),
    model_transaction_policy={"type": "object", "description": "decoupled is false: an answer for each request."},
)
_SERVER = record(
    name=text("orcaserve."),
    version=text("Of OrcaServe."),
    extensions=many({"type": "string"}, "Those of the protocol."),
)
_INFERRED = with_optional(
    record(
        model_name=_NAME,
        model_version=text(f"{VERSION}, the only one."),
        outputs=_tensors(
            f"{OUTPUT}: name, datatype, the shape of {INPUT}, and data; or binary_data_size in `parameters`: then the "
            "body is application/octet-stream, with the elements behind the JSON."
        ),
    ),
    id=text("As it was given."),
)
_STATUS = named("Status")


_of_model = partial(of_model, TAG, "/v2/models/{model}")

ROUTES = [
    Route("GET", "/v2", _server, Operation("The server's name, version and extensions", _SERVER, TAG)),
    Route("GET", "/v2/health/live", live, Operation("200 if the process answers", _STATUS, TAG), open=True),
    Route(
        "GET",
        "/v2/health/ready",
        ready,
        Operation("200 if requests can be served now", _STATUS, TAG, errors=(503,)),
        open=True,
    ),
    *_of_model("POST", "/infer", acting(infer, read=read_inference, any_type=True, queues=True),
               "Continue texts in a tensor", _INFERRED, fields=INFER, required=("inputs",),
               headers=HEADERS, errors=BUSY),
    *_of_model("GET", "/ready", _model_ready, "200 if the model can be used now", _STATUS),
    *_of_model("GET", "/config", _config, "The model's configuration, in Triton's form", _CONFIG),
    *_of_model("GET", "", _model, "The model's inputs and outputs", _MODEL),
]  # fmt: skip
