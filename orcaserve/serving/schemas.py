"""Schemas of answers that are no generated text: files, batches, the served model, health."""

from __future__ import annotations

from orcaserve.core import LiveState
from orcaserve.serving.batches.batch import Status
from orcaserve.serving.fields import Schema

_TEXT: Schema = {"type": "string"}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_TIME: Schema = {"type": ["integer", "null"], "description": "Seconds since 1970."}


def other_schemas() -> dict[str, Schema]:
    usage: Schema = {"$ref": "#/components/schemas/PooledUsage"}
    return {
        "PlainError": _object(error=_TEXT),
        "Status": _object(status=_TEXT),
        "Health": {
            **_object(status={"type": "string", "enum": ["ready", "recovering"]}),
            "properties": {
                "status": {"type": "string", "enum": ["ready", "recovering"]},
                "replicas": {"type": "array", "items": {"type": "string", "enum": ["ready", "recovering", "given up"]}},
            },
        },
        "Version": _object(version=_TEXT),
        "Model": _object(
            id=_TEXT,
            object={"const": "model"},
            created=_COUNT,
            owned_by=_TEXT,
            root=_TEXT,
            parent={**_MAYBE_TEXT, "description": "Of an adapter: the model whose it is."},
            max_model_len={**_COUNT, "description": "The most tokens of a request, prompt and output."},
        ),
        "Models": _object(object={"const": "list"}, data=_list("Model")),
        "Cancelled": _object(id=_TEXT, object={"const": "request"}, cancelled={"const": True}),
        "LiveRequests": _object(
            object={"const": "list"}, data=_list("LiveRequest"), total=_COUNT, has_more={"type": "boolean"}
        ),
        "LiveRequest": _object(
            id=_MAYBE_TEXT,
            choice=_COUNT,
            endpoint=_MAYBE_TEXT,
            state={"type": "string", "enum": [state.value for state in LiveState]},
            age_seconds={"type": "number", "minimum": 0},
            prompt_tokens=_COUNT,
            output_tokens=_COUNT,
            slots_reserved={**_COUNT, "description": "Slots of keys and values that are set aside for it."},
            slots_used={**_COUNT, "description": "Those of them that hold a token."},
            client=_TEXT,
            priority={"type": "integer"},
            why_waiting=_TEXT,
            number={**_COUNT, "description": "Its number in the schedule."},
            replica=_COUNT,
        ),
        "Embeddings": _object(
            object={"const": "list"},
            data=_list("Embedding"),
            model=_TEXT,
            usage=usage,
        ),
        "Embedding": _object(
            object={"const": "embedding"},
            index={**_COUNT, "description": "Of its text in the input."},
            embedding={"anyOf": [{"type": "array", "items": {"type": "number"}}, _TEXT]},
        ),
        "Scores": _object(
            id=_TEXT,
            object={"const": "list"},
            created=_COUNT,
            model=_TEXT,
            data=_list("Score"),
            usage=usage,
        ),
        "Score": _object(
            index={**_COUNT, "description": "Of the pair."}, object={"const": "score"}, score={"type": "number"}
        ),
        "Reranked": _object(
            id=_TEXT,
            model=_TEXT,
            usage=usage,
            results={**_list("RankedDocument"), "description": "The best first."},
        ),
        "RankedDocument": {
            "type": "object",
            "required": ["index", "relevance_score"],
            "properties": {
                "index": {**_COUNT, "description": "Of the document in the request."},
                "relevance_score": {"type": "number"},
                "document": _object(text=_TEXT),
            },
        },
        "PooledUsage": _object(prompt_tokens=_COUNT, total_tokens=_COUNT),
        "File": _object(
            id=_TEXT,
            object={"const": "file"},
            bytes=_COUNT,
            created_at=_COUNT,
            expires_at=_TIME,
            filename=_TEXT,
            purpose={"type": "string", "enum": ["batch", "batch_output"]},
            status={"const": "processed"},
            status_details={"type": "null"},
        ),
        "Files": _page("File"),
        "Deleted": _object(id=_TEXT, object={"const": "file"}, deleted={"const": True}),
        "Batch": _object(
            id=_TEXT,
            object={"const": "batch"},
            endpoint=_TEXT,
            errors={
                "anyOf": [_object(object={"const": "list"}, data=_list("BatchError")), {"type": "null"}],
                "description": "What is wrong with lines of the input; or why the batch waits.",
            },
            input_file_id=_TEXT,
            completion_window=_TEXT,
            status={"type": "string", "enum": [status.value for status in Status]},
            output_file_id=_MAYBE_TEXT,
            error_file_id=_MAYBE_TEXT,
            created_at=_COUNT,
            expires_at=_COUNT,
            **{f"{status.value}_at": _TIME for status in Status if status is not Status.VALIDATING},
            request_counts=_object(total=_COUNT, completed=_COUNT, failed=_COUNT),
            metadata={"type": ["object", "null"], "additionalProperties": _TEXT},
        ),
        "BatchError": _object(code=_TEXT, line={"type": ["integer", "null"]}, message=_TEXT, param=_MAYBE_TEXT),
        "Batches": _page("Batch"),
    }


def _page(schema: str) -> Schema:
    return _object(
        object={"const": "list"},
        data=_list(schema),
        first_id=_MAYBE_TEXT,
        last_id=_MAYBE_TEXT,
        has_more={"type": "boolean"},
    )


def _list(schema: str) -> Schema:
    return {"type": "array", "items": {"$ref": f"#/components/schemas/{schema}"}}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}
