"""The table of limits, by the constants that are obeyed; `/openapi.json` has it, and docs/limits.md is held to it."""

from __future__ import annotations

from dataclasses import dataclass

from orcaserve.config import (
    MAX_ENGINE_TIMEOUT,
    MAX_KEEP_ALIVE,
    MAX_KEY,
    MAX_KEYS,
    MAX_LORA_RANK,
    MAX_LORAS,
    MAX_REPLICAS,
    MIN_ENGINE_TIMEOUT,
    MIN_KEEP_ALIVE,
    MIN_STALL_TIMEOUT,
    ServingConfig,
)
from orcaserve.control_plane.schedule_sink import MOST_ON_THE_WAY
from orcaserve.core import sampling_params as sampling
from orcaserve.core import terms
from orcaserve.core.grammar import MAX_GRAMMAR_LENGTH
from orcaserve.core.logprobs import MAX_TOP_LOGPROBS
from orcaserve.core.watching import MOST_DESCRIBED
from orcaserve.serving import (
    chat_template,
    completions,
    conversation,
    door,
    embeddings,
    fields,
    grammar_checker,
    http,
    http_protocol,
    json_body,
    messages,
    ongoing,
    pooled,
    porter,
    prompts,
    query,
    schedule_watch,
    structured_output,
    supervisor,
    template_sandbox,
    threads,
)
from orcaserve.serving.batches import api as batches
from orcaserve.serving.batches import batch, lines, records, runner
from orcaserve.serving.files import api as files
from orcaserve.serving.files import multipart, store
from orcaserve.serving.protocols import tensors
from orcaserve.serving.tool_calls import json_text, lark, pythonic_calls, tools

_SERVING = ServingConfig()


@dataclass(frozen=True, slots=True)
class Limit:
    """value: the number with its unit. past: what then happens. of_requests: clients meet it, not those who operate."""

    what: str
    value: str
    past: str
    of_requests: bool = True


def _n(number: float) -> str:
    return f"{number:,g}" if number < 10**6 else f"{number:,.0f}"


def _bytes(number: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number % size == 0:
            return f"{number // size} {unit}"
    return f"{number} bytes"


def _seconds(number: float) -> str:
    return f"{number / 86400:g} days" if number >= 2 * 86400 else f"{_n(number)} s"


LIMITS = (
    # The connection
    Limit(
        "header, trailers, extensions of chunks, without a byte of a body between",
        _bytes(http_protocol.MAX_HEADER_BYTES), "431, close",
    ),
    Limit("trailers", "none", "400, close"),
    Limit("time for a header", _seconds(http_protocol.HEADER_SECONDS), "408, close"),
    Limit("requests at once on a connection", "1", "the answer under way is the last, then close"),
    Limit(
        f"time for a client to take a piece ({_bytes(http.PIECE)}) of an answer",
        _seconds(_SERVING.write_timeout), "the connection is dropped",
    ),
    Limit("characters of a client's `x-request-id`", _n(http.MAX_CLIENT_ID), "the request's own id is used"),
    Limit("names in `x-orcaserve-ignored-fields`", _n(http.MAX_IGNORED_SHOWN), "the others are counted only"),
    Limit("fields of a query", _n(query.MAX_QUERY_FIELDS), "400"),
    # Bodies
    Limit("body of JSON", _bytes(_SERVING.max_body_bytes), f"413, drained {_seconds(http.DRAIN_SECONDS)}, close"),
    Limit("body of a request that is refused with 429, which is passed over so that the connection stays",
          _bytes(porter.SMALL), "429, close"),
    Limit("time for a body", _seconds(_SERVING.body_timeout), "408, close"),
    Limit("depth of a body", _n(json_body.MAX_DEPTH), "400"),
    Limit("strings, lists and objects of a body", _n(json_body.MAX_PARTS), "400"),
    Limit("commas of a body (its numbers)", _n(json_body.MAX_COMMAS), "400"),
    Limit(
        "bodies that wait to be read and checked, together", _bytes(threads.MAX_WAITING_BYTES), "503, `Retry-After`"
    ),
    # Many users
    Limit(
        "requests that wait for a place in a full batch (`--max-num-queued-reqs`)",
        f"{door.QUEUE_PER_PLACE} for each place, and {_n(door.LEAST_QUEUE)} at least",
        "429 (`overloaded`), `Retry-After`",
    ),
    Limit(
        "prompt tokens of those who wait (`--max-num-queued-tokens`)",
        f"{door.QUEUE_PER_SLOT} for each slot of the K/V region, and {_n(door.LEAST_QUEUE_TOKENS)} at least",
        "429 (`overloaded`), `Retry-After`",
    ),
    Limit("seconds that `Retry-After` says", _n(door.LONGEST_RETRY), "a draw from half of it up; for a deadline, this"),
    Limit("time for which room is kept for who was told to come back", _seconds(door.KEEP_SECONDS),
          "anybody may have it"),
    Limit("characters of `user` and of `cache_salt`", _n(terms.MAX_NAME), "400"),
    Limit("`timeout`, and the headers `x-slo-ttft-ms`, `x-slo-tpot-ms`, `x-request-timeout-ms`",
          _seconds(terms.MAX_SECONDS), "400"),
    Limit("`priority`", f"{terms.MIN_PRIORITY} to {terms.MAX_PRIORITY}", "400"),
    Limit("adapters that are loaded at a time (`--max-loras`)", f"8, at most {_n(MAX_LORAS)}", "400"),
    Limit("rank of an adapter (`--max-lora-rank`)", f"64, at most {_n(MAX_LORA_RANK)}", "400"),
    # Requests
    Limit("prompts of a request", _n(prompts.MAX_PROMPTS), "400"),
    Limit("characters of a text", "context (or K/V region) x the longest token", "400, before it is encoded"),
    Limit("messages of a chat", _n(messages.MAX_MESSAGES), "400"),
    Limit("choices per prompt (`n`, `best_of`)", _n(sampling.MAX_CHOICES), "400"),
    Limit("choices of a request in all", _n(completions.MAX_ALL_CHOICES), "400"),
    Limit(
        "choices x (prompt tokens + `logit_bias` entries + stop ids + characters of stop strings and of a grammar), of "
        "several choices",
        _n(fields.MAX_WORK), "400",
    ),
    Limit("texts of a request for embeddings, scores or a reranking", _n(pooled.MAX_INPUTS), "400"),
    Limit("numbers of all vectors of an answer", _n(embeddings.MAX_NUMBERS), "400"),
    Limit("tokens of all texts of a request for embeddings, of several", _n(fields.MAX_WORK), "400"),
    Limit(
        "prompt tokens + tokens to generate, of a choice",
        "the context, and the K/V region unless windows release it", "400",
    ),
    Limit("stop strings", _n(sampling.MAX_STOPS), "400"),
    Limit("characters of a stop string", _n(sampling.MAX_STOP_LENGTH), "400"),
    Limit("`logit_bias` entries", _n(sampling.MAX_LOGIT_BIAS), "400"),
    Limit("`stop_token_ids`", _n(sampling.MAX_STOP_TOKEN_IDS), "400"),
    Limit("tokens of an answer of `/tokenize`", _n(fields.MAX_WORK), "400"),
    Limit("a chat template's time", _seconds(chat_template.MAX_SECONDS), "400"),
    Limit("characters that a chat template writes", _n(chat_template.MAX_OUTPUT), "400"),
    Limit("characters of a chat template's complaint that are passed on", _n(chat_template.MAX_MESSAGE), "cut"),
    Limit("characters of a value inside a template", _n(template_sandbox.MAX_VALUE), "400"),
    Limit("characters of all that a template makes", _n(template_sandbox.MAX_MADE), "400"),
    # Log-probabilities, structured output, tools
    Limit(
        "choices x (`max_tokens` x (`logprobs` or `top_logprobs` + 1), and with `echo` or `prompt_logprobs` prompt "
        "tokens x (`logprobs` or `prompt_logprobs` + 1))",
        _n(fields.MAX_LOGPROBS), "400",
    ),
    Limit("`logprobs` of completions", _n(fields.MAX_LEGACY_LOGPROBS), "400"),
    Limit("`top_logprobs` of chats, `prompt_logprobs`", _n(MAX_TOP_LOGPROBS), "400"),
    Limit("characters of a grammar, a schema or an expression", _n(MAX_GRAMMAR_LENGTH),
          "400; structured_output.md has what compiling may cost"),
    Limit("texts to choose from (`choice`)", _n(structured_output.MAX_TEXTS), "400"),
    Limit("grammars that wait to be compiled", _n(grammar_checker.MAX_WAITING), "503"),
    Limit("grammars that are remembered", _n(grammar_checker.MAX_VERDICTS), "one is compiled anew"),
    Limit("characters of grammars that are remembered", _n(grammar_checker.MAX_VERDICT_CHARACTERS),
          "one is compiled anew"),
    Limit("tools of a request", _n(tools.MAX_TOOLS), "400"),
    Limit("characters of all tools together, as JSON", _n(tools.MAX_TOOLS_LENGTH), "400"),
    Limit("characters of a tool's name", _n(tools.MAX_NAME), "400"),
    Limit("calls that a grammar writes in an answer", _n(lark.MAX_CALLS), "it ends"),
    Limit("depth of a call's arguments", _n(json_text.MAX_DEPTH), "it is content"),
    Limit("characters of a number in a call's arguments", _n(json_text.MAX_NUMBER), "it is content"),
    Limit("characters of a name in a call that is written as Python", _n(pythonic_calls.MAX_WORD), "it is content"),
    Limit("`documents`", _n(fields.MAX_DOCUMENTS), "400"),
    Limit("variables of `chat_template_kwargs`", _n(fields.MAX_VARIABLES), "400"),
    Limit("characters of a `chat_template` of a request", _n(fields.MAX_TEMPLATE_LENGTH), "400"),
    Limit("templates of requests that stay compiled", _n(conversation.MAX_TEMPLATES), "one is compiled anew"),
    # Files and batches
    Limit("an uploaded file", _bytes(files.MAX_FILE_BYTES), "413"),
    Limit("a form with a file", _bytes(files.MAX_FORM_BYTES), "413, close"),
    Limit("time for an upload", _seconds(files.UPLOAD_SECONDS), "408, close"),
    Limit("uploads at once", _n(files.MAX_UPLOADS), "503"),
    Limit("parts of a form", _n(multipart.MAX_PARTS), "400"),
    Limit("header of a form's part", _bytes(multipart.MAX_PART_HEADER), "400"),
    Limit("value of a form's field that is no file", _bytes(files.MAX_VALUE), "400"),
    Limit("characters of a filename", _n(files.MAX_FILENAME), "400"),
    Limit("files that are kept", _n(store.MAX_FILES), "400"),
    Limit("bytes of all files that are kept (`--max-files-bytes`)", _bytes(_SERVING.max_files_bytes),
          "413 (`files_full`); a batch waits with its results"),
    Limit("time until a file is deleted, at least", _seconds(files.MIN_EXPIRY), "400"),
    Limit("time until a file is deleted, at most", _seconds(files.MAX_EXPIRY), "400"),
    Limit("files of a page (`limit`)", _n(files.MAX_PAGE), "400"),
    Limit("requests of a batch", _n(lines.MAX_LINES), "the batch fails"),
    Limit("a line of a batch", _bytes(lines.MAX_LINE_BYTES), "the batch fails"),
    Limit("characters of a `custom_id`", _n(lines.MAX_CUSTOM_ID), "the batch fails"),
    Limit("wrong lines of a batch that are named", _n(lines.MAX_ERRORS), "the others are not looked at"),
    Limit("a batch's `completion_window`", _seconds(batch.MAX_WINDOW), "400"),
    Limit("pairs of a batch's `metadata`", _n(batch.MAX_METADATA), "400"),
    Limit("characters of a name in `metadata`", _n(batch.MAX_KEY), "400"),
    Limit("characters of a value in `metadata`", _n(batch.MAX_METADATA_VALUE), "400"),
    Limit("batches of a page (`limit`)", _n(batches.MAX_PAGE), "400"),
    Limit("batches that are kept", _n(records.MAX_BATCHES),
          "the earliest that are over are forgotten; 429 if none is"),
    Limit("failures of the engine under one line of a batch", _n(runner.MAX_FAILURES), "its error is the result"),
    # Tensors
    Limit("tensors of a request (KServe)", _n(tensors.MAX_TENSORS), "400"),
    Limit("elements of a tensor", _n(tensors.MAX_ELEMENTS), "400"),
    Limit("dimensions of a tensor", _n(tensors.MAX_DIMENSIONS), "400"),
    # What operators meet
    Limit("requests that `/v1/requests` lists, of a replica", _n(MOST_DESCRIBED),
          "those that hold slots, then the earliest; `has_more`"),
    Limit("time that an engine has to describe its requests for `/v1/requests`", _seconds(supervisor.DESCRIBE_SECONDS),
          "they are listed without, and say so"),
    Limit("listeners to the schedule of a replica", _n(schedule_watch.MAX_LISTENERS), "503"),
    Limit("events of the schedule that wait for a listener, beside a header", _bytes(schedule_watch.MOST_UNREAD),
          "they are left out, and a header follows"),
    Limit("time between two headers of the schedule that listeners cause", _seconds(schedule_watch.BETWEEN_HEADERS),
          "they share the next one"),
    Limit("lines of the schedule on their way to an endpoint that does not read them", _bytes(MOST_ON_THE_WAY),
          "they are left out, and a header follows", of_requests=False),
    Limit(
        "silence of an event stream before a comment (`--sse-keep-alive-interval`, 0 or "
        f"{MIN_KEEP_ALIVE:g} to {_n(MAX_KEEP_ALIVE)})",
        _seconds(_SERVING.sse_keep_alive), "a line that begins with `:`",
    ),
    Limit("engines that die while they run a request", _n(ongoing.MAX_CRASHES), "`engine_crashed`"),
    Limit(
        f"silence of the engine (`--engine-timeout`, {MIN_ENGINE_TIMEOUT:g} to {_n(MAX_ENGINE_TIMEOUT)})",
        _seconds(_SERVING.engine_timeout), "it is killed and replaced", of_requests=False,
    ),
    Limit("silence of a further engine while it loads", _seconds(supervisor.START_SILENCE),
          "likewise; `--engine-timeout` if that is longer", of_requests=False),
    Limit(
        f"engines in a row that live for less than {_seconds(supervisor.SHORT_LIFE)}",
        _n(supervisor.MAX_RESTARTS + 1), "exit code 1; of several replicas: that one is given up", of_requests=False,
    ),
    Limit(
        f"work without an iteration (`--stall-timeout`, {MIN_STALL_TIMEOUT:g} to 86,400)",
        _seconds(_SERVING.stall_timeout), "`/ready` and `/health` 503; the engine is replaced", of_requests=False,
    ),
    Limit("API keys", _n(MAX_KEYS), "exit code 2", of_requests=False),
    Limit("characters of an API key", _n(MAX_KEY), "exit code 2", of_requests=False),
    Limit(
        "time for running requests after SIGTERM or Ctrl-C (`--shutdown-timeout`, 0 to 86,400)",
        _seconds(_SERVING.shutdown_timeout), "they end with the code `stopping`; exit code 1", of_requests=False,
    ),
    Limit("replicas", _n(MAX_REPLICAS), "exit code 2", of_requests=False),
)  # fmt: skip
