"""The table of all routes. Of several that fit a path the first wins, so longer ones stand before shorter ones."""

from __future__ import annotations

from orcaserve.core.watching import MOST_DESCRIBED
from orcaserve.serving import reads
from orcaserve.serving.batches.api import ROUTES as BATCHES
from orcaserve.serving.chat import chat_completions
from orcaserve.serving.completions import completions
from orcaserve.serving.embeddings import EMBEDDINGS, embeddings
from orcaserve.serving.fields import CHAT, COMPLETION, Schema
from orcaserve.serving.files.api import ROUTES as FILES
from orcaserve.serving.handlers import acting
from orcaserve.serving.live_requests import live_requests
from orcaserve.serving.lora_api import ROUTES as ADAPTERS
from orcaserve.serving.protocols.kserve import ROUTES as KSERVE
from orcaserve.serving.protocols.tensorflow import ROUTES as TENSORFLOW
from orcaserve.serving.protocols.triton import ROUTES as TRITON
from orcaserve.serving.route import Handle, Operation, Route, Router
from orcaserve.serving.schedule_watch import REPLICA, schedule
from orcaserve.serving.scores import RERANK, SCORE, rerank, score
from orcaserve.serving.terms import HEADERS
from orcaserve.serving.tokenize import DETOKENIZE, TOKENIZE, detokenize, tokenize
from orcaserve.serving.web_page import ROUTES as WEB_PAGE

OPENAI, TOKENS, SERVER = "OpenAI", "Tokens", "Server"
SLASHES = "Slashes in it may be written as they are, or as %2F."
ID = "The request's id, as its answer and the header x-request-id have it, or the one that its client sent there."
STREAM = (
    "Events, each `data: ` and a JSON object like the whole answer, with what is new of one choice; its last one has "
    "the finish_reason. `data: [DONE]` comes last. A failure after the first event is one event with an `error`, and "
    "the end without `[DONE]`. Lines beginning with `:` are comments."
)
STREAM_OF_CHAT = (
    f"{STREAM} An event's `object` is `chat.completion.chunk`, and its choice has a `delta` in place of a `message`: "
    "first the role, then pieces of the content, or of tool_calls, each with the `index` of its call."
)

LIVE = (
    "One entry for each choice, in order of arrival at each replica. `state`: `waiting` (for its first iteration), "
    "`initiation` (its prompt is being read), `increment` (it gets tokens), `paused` (it has begun, and is in no "
    "iteration now). `why_waiting` is for people, and empty for who is in an iteration. `number` names the request in "
    "`/v1/schedule` and in schedule logs. `id` is null once a client has left and the engine has still to end its "
    f"request. Of more than {MOST_DESCRIBED} of a replica those that hold slots are listed and the earliest of all "
    "others, and `has_more` is true."
)
WATCHING = (
    "Events without end, each of them one line of a schedule log (docs/scheduling.md): first a header, which says what "
    "was under way (`live`, `in_flight`, `last`), then lists. A header comes again whenever somebody else begins to "
    "watch, when an engine takes the place of another (its `run` is a new one), and after lines that were left out "
    "for a client that did not read. Watching slows nobody down, and the server does not wait for it when it stops."
)
POOLING = (
    "Each text is a request of its own, which ends with the iteration that has read it. A vector is made of the hidden "
    "states after the model's last norm: the mean of all tokens', or the last token's, as the server was started "
    "(`--pooling`), else as the model's own files say."
)
COSINE = "A score is the cosine of two texts' embeddings: from -1 to 1, and not a probability."
LINES = "Of each event: a line of a schedule log."


def _named(schema: str) -> Schema:
    return {"$ref": f"#/components/schemas/{schema}"}


def _probe(path: str, handle: Handle, summary: str, answer: str, *errors: int) -> Route:
    return Route("GET", path, handle, Operation(summary, _named(answer), SERVER, errors=errors), open=True)


ROUTES = [
    Route(
        "POST",
        "/v1/completions",
        acting(completions, queues=True),
        Operation("Continue a prompt", _named("Completion"), OPENAI, fields=COMPLETION, required=("model",),
                  stream=STREAM, headers=HEADERS, errors=(404, 429, 504)),
    ),
    Route(
        "POST",
        "/v1/chat/completions",
        acting(chat_completions, on_thread=True, queues=True),
        Operation("Answer a conversation", _named("ChatCompletion"), OPENAI, fields=CHAT,
                  required=("model", "messages"), stream=STREAM_OF_CHAT, headers=HEADERS, errors=(404, 429, 504)),
    ),
    Route("GET", "/v1/models", reads.models, Operation("The served model and its adapters", _named("Models"), OPENAI)),
    Route(
        "GET",
        "/v1/models/{model}",
        reads.model,
        Operation("The served model or an adapter, by its name", _named("Model"), OPENAI, errors=(404,),
                  parameters={"model": f"Its name. {SLASHES}"}),
    ),
    Route(
        "POST",
        "/v1/embeddings",
        acting(embeddings, on_thread=True, queues=True),
        Operation("Make vectors of texts", _named("Embeddings"), OPENAI, POOLING, fields=EMBEDDINGS,
                  required=("model", "input"), headers=HEADERS, errors=(404, 429, 504)),
    ),
    Route(
        "POST",
        "/v1/score",
        acting(score, on_thread=True, queues=True),
        Operation("Tell how alike texts are", _named("Scores"), OPENAI, COSINE, fields=SCORE,
                  required=("model", "text_1", "text_2"), headers=HEADERS, errors=(404, 429, 504)),
    ),
    Route(
        "POST",
        "/v1/rerank",
        acting(rerank, on_thread=True, queues=True),
        Operation("Put documents in order of their likeness to a query", _named("Reranked"), OPENAI, COSINE,
                  fields=RERANK, required=("model", "query", "documents"), headers=HEADERS, errors=(404, 429, 504)),
    ),
    Route(
        "POST",
        "/v1/requests/{id}/cancel",
        reads.cancel,
        Operation(
            "Cancel a request",
            _named("Cancelled"),
            OPENAI,
            "Its choices end at once, and their slots are free within an iteration. Whoever waits for its answer gets "
            "the text there is by then, as a whole or as the last events of a stream, with the finish_reason `abort`, "
            "the usage if it was asked for, and `[DONE]`. Requests of a batch have ids too.",
            parameters={"id": ID},
            errors=(404,),
        ),
    ),
    Route("GET", "/v1/requests", live_requests,
          Operation("Unfinished requests, and why they wait", _named("LiveRequests"), SERVER, LIVE)),
    Route("GET", "/v1/schedule", schedule,
          Operation("The schedule as it happens", {"type": "string", "description": LINES}, SERVER, WATCHING,
                    query=REPLICA, content="text/event-stream")),
    *FILES,
    *BATCHES,
    *ADAPTERS,
    Route(
        "POST",
        "/tokenize",
        acting(tokenize, on_thread=True),
        Operation("Text, or a conversation, to token ids", _named("Tokens"), TOKENS, fields=TOKENIZE, errors=(404,)),
    ),
    Route(
        "POST",
        "/detokenize",
        acting(detokenize),
        Operation("Token ids to text", _named("Text"), TOKENS, fields=DETOKENIZE, required=("tokens",), errors=(404,)),
    ),
    *TRITON,
    *KSERVE,
    *TENSORFLOW,
    _probe("/health", reads.health, "200 if requests are taken, also while they wait for an engine", "Health", 503),
    _probe("/ready", reads.ready, "200 if requests can be served now", "Status", 503),
    _probe("/live", reads.live, "200 if the process answers", "Status"),
    Route("GET", "/metrics", reads.metrics,
          Operation("Prometheus metrics", {"type": "string"}, SERVER, content="text/plain")),
    Route("GET", "/version", reads.version, Operation("The version of this server", _named("Version"), SERVER)),
    Route("GET", "/openapi.json", reads.openapi,
          Operation("This description, for programs (OpenAPI 3.1)", {"type": "object"}, SERVER), open=True),
    Route("GET", "/docs", reads.docs,
          Operation("This description, for people", {"type": "string"}, SERVER, content="text/html"), open=True),
    *WEB_PAGE,
]  # fmt: skip
ROUTER = Router(ROUTES)
