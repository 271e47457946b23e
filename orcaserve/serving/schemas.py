"""Schemas of answers: files, batches, the served model, health, embeddings; and all, with those of generated text."""

from __future__ import annotations

from orcaserve.core import LiveState
from orcaserve.serving.batches.batch import Status
from orcaserve.serving.fields import Schema
from orcaserve.serving.schema_parts import (
    count,
    flag,
    many,
    maybe_text,
    maybe_time,
    named,
    null_or,
    number,
    record,
    text,
    time,
    with_optional,
    word,
)
from orcaserve.serving.text_schemas import CREATED, text_schemas

SERVED = text("The served model's name.")


def answer_schemas() -> dict[str, Schema]:
    """By their names. Each member says what it means, but for constants."""
    return {**text_schemas(), **_of_server(), **_of_vectors(), **_of_files(), **_of_batches()}


def _of_server() -> dict[str, Schema]:
    return {
        "PlainError": record(error=text("What went wrong, for people.")),
        "Status": record(status=word("What is true.", "live", "ready")),
        "Health": with_optional(
            record(
                status=word(
                    "recovering: there is no engine now; requests wait for the next one.", "ready", "recovering"
                )
            ),
            replicas=many(
                {"type": "string", "enum": ["ready", "recovering", "given up"]},
                "Each of them, if there are several; given up: one whose engines died one after the other.",
            ),
        ),
        "Version": record(version=text("Of OrcaServe.")),
        "Model": record(
            id=text("What requests name in `model`."),
            object={"const": "model"},
            created=time("When it was loaded"),
            owned_by=text("Always orcaserve."),
            root=text("Of an adapter: its folder; else as `id`."),
            parent=maybe_text("Of an adapter: the name of its model."),
            max_model_len=count("The most tokens of a request, prompt and output."),
        ),
        "Models": record(object={"const": "list"}, data=many(named("Model"), "The model, then its adapters.")),
        "Cancelled": record(
            id=text("As it stands in the path."), object={"const": "request"}, cancelled={"const": True}
        ),
        "LiveRequests": record(
            object={"const": "list"},
            data=many(named("LiveRequest"), "An entry for each choice."),
            total=count("Choices that are not over, listed or not."),
            has_more=flag("Whether some are not listed."),
        ),
        "LiveRequest": record(
            id=maybe_text("The request's id; null once its client has left."),
            choice=count("Which choice of its request, from 0."),
            endpoint=maybe_text("The path that it was sent to; null once its client has left."),
            state=word("What it does: see GET /v1/requests.", *(state.value for state in LiveState)),
            age_seconds={**number("Time since its request was here."), "minimum": 0},
            prompt_tokens=count("Tokens of its prompt."),
            output_tokens=count("Tokens that it has generated so far."),
            slots_reserved=count("Slots of keys and values that are set aside for it."),
            slots_used=count("Those of them that hold a token."),
            client=text(
                "Whom its tokens are charged to: the name of a key, `user`, or an address. Empty for a batch's."
            ),
            priority={"type": "integer", "description": "Its priority: lower ones are begun first."},
            why_waiting=text("Why it is in no iteration, in words; empty if it is in one."),
            number=count("Its number in the schedule."),
            replica=count("Which replica has it, from 0."),
        ),
    }


def _of_vectors() -> dict[str, Schema]:
    usage = {**named("PooledUsage"), "description": "Counts of tokens."}
    answer_id = text("The request's id.")
    return {
        "Embeddings": record(
            object={"const": "list"},
            data=many(named("Embedding"), "A vector for each text."),
            model=SERVED,
            usage=usage,
        ),
        "Embedding": record(
            object={"const": "embedding"},
            index=count("Which text of the input, from 0."),
            embedding={
                "anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}],
                "description": "The vector: numbers, or their bytes in base64, as encoding_format says.",
            },
        ),
        "Scores": record(
            id=answer_id,
            object={"const": "list"},
            created=CREATED,
            model=SERVED,
            data=many(named("Score"), "In the order of text_2."),
            usage=usage,
        ),
        "Score": record(
            index=count("Which text of text_2, from 0."),
            object={"const": "score"},
            score=number("The cosine of the two embeddings, from -1 to 1."),
        ),
        "Reranked": record(
            id=answer_id, model=SERVED, usage=usage, results=many(named("RankedDocument"), "The best first.")
        ),
        "RankedDocument": with_optional(
            record(
                index=count("Which document of the request, from 0."),
                relevance_score=number("The cosine of its embedding and the query's, from -1 to 1."),
            ),
            document=record("Unless return_documents is false.", text=text("The document's text.")),
        ),
        "PooledUsage": record(
            prompt_tokens=count("Tokens of all texts."), total_tokens=count("The same: none are generated.")
        ),
    }


def _of_files() -> dict[str, Schema]:
    return {
        "File": record(
            id=text("Names the file in other requests."),
            object={"const": "file"},
            bytes=count("Its size."),
            created_at=time("When it was there"),
            expires_at={
                "type": ["integer", "null"],
                "description": "When it is deleted, in seconds since 1970; null: never.",
            },
            filename=text("As it was uploaded; of results the batch's id and what they are."),
            purpose=word("batch: the input of batches; batch_output: results of one.", "batch", "batch_output"),
            status={"const": "processed"},
            status_details={"type": "null", "description": "Always null."},
        ),
        "Files": _page("File"),
        "Deleted": record(id=text("Of the file."), object={"const": "file"}, deleted={"const": True}),
    }


def _of_batches() -> dict[str, Schema]:
    ends = {f"{status.value}_at": maybe_time(f"When it became {status.value}") for status in list(Status)[1:]}
    return {
        "Batch": record(
            id=text("Names the batch in other requests."),
            object={"const": "batch"},
            endpoint=text("What its lines ask for."),
            errors=null_or(
                record(object={"const": "list"}, data=many(named("BatchError"), "One for each line that is wrong.")),
                "What is wrong with lines of the input, or why the batch waits; null: nothing.",
            ),
            input_file_id=text("The file with its requests."),
            completion_window=text("As it was asked for."),
            status=word("See docs/batches.md.", *(status.value for status in Status)),
            output_file_id=maybe_text(
                "The file with the answers that are 200; null until it is there, or if there are none."
            ),
            error_file_id=maybe_text("The file with all others; likewise."),
            created_at=time("When it was created"),
            expires_at=time("When its completion_window is over"),
            **ends,
            request_counts=record(
                "Lines so far:",
                total=count("In the input."),
                completed=count("Answered with 200."),
                failed=count("Answered with an error, or not answered in time."),
            ),
            metadata={
                "type": ["object", "null"],
                "additionalProperties": {"type": "string"},
                "description": "As it was given.",
            },
        ),
        "BatchError": record(
            code=text(
                "For programs: invalid_line, invalid_method, invalid_url, duplicate, line_too_long, too_many_requests, "
                "empty_file, file_not_found; while it waits disk_full or files_full."
            ),
            line={"type": ["integer", "null"], "description": "Which line of the input, from 1; null: none of them."},
            message=text("For people."),
            param=maybe_text("The member of the line that is wrong."),
        ),
        "Batches": _page("Batch"),
    }


def _page(schema: str) -> Schema:
    return record(
        object={"const": "list"},
        data=many(named(schema), "Those of this page."),
        first_id=maybe_text("The id of the first of them; null: the page is empty."),
        last_id=maybe_text("The id of the last of them, which `after` takes for the next page."),
        has_more=flag("Whether there is another page."),
    )
