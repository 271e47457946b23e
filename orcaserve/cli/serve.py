"""`orcaserve serve`: the endpoint, which starts and watches the engine."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from orcaserve.checkpoint.locate import model_name
from orcaserve.cli.adapter_options import adapters_config, add_adapter_arguments
from orcaserve.cli.api_keys import api_keys
from orcaserve.cli.log_options import add_log_arguments, add_watching_arguments
from orcaserve.cli.node_options import add_node_arguments
from orcaserve.cli.options import (
    add_model_arguments,
    add_prefix_arguments,
    add_schedule_log_arguments,
    engine_config,
    size_in_bytes,
)
from orcaserve.config import POOLINGS, TOOL_CALL_PARSERS, ServingConfig
from orcaserve.core.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Serve a model over an OpenAI-compatible HTTP API. Ctrl-C ends it."
    parser.epilog = (
        "example: orcaserve serve --port 9000 --max-num-seqs 32 --n-slots 32768\n"
        "K/V memory is reserved for a request's whole prompt and output before it starts: n_slots bounds how many\n"
        "tokens all running requests may need together, max_bs how many requests share one iteration."
    )
    add_model_arguments(parser, positional=True)
    parser.set_defaults(for_many=True)
    add_node_arguments(parser)
    group = parser.add_argument_group("HTTP")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    group.add_argument("--port", type=int, default=8000, help="port; 0 takes a free one (default: %(default)s)")
    group.add_argument("--uds", metavar="PATH", help="listen on a Unix socket instead of a port")
    group.add_argument("--served-model-name", metavar="NAME", help="the model's name for clients; default: the file's")
    group.add_argument(
        "--api-key",
        metavar="KEY",
        action="append",
        help="clients must send it as a bearer token; several times: any of them. Better given as ORCASERVE_API_KEY, "
        "which `ps` does not show, or in a file",
    )
    group.add_argument(
        "--api-keys-file",
        type=Path,
        metavar="FILE",
        help="YAML or JSON: a list of {name, key, weight, priority}. Metrics and fairness know clients by the names; "
        "weight (1): how many times the share of others; priority (0): the best one its requests can have, lower is "
        "sooner",
    )
    group.add_argument(
        "--strict",
        action="store_true",
        help="answer 400 to a request with a field that is unknown or has no effect; else such fields are named in the "
        "header x-orcaserve-ignored-fields",
    )
    group.add_argument(
        "--sse-keep-alive-interval",
        type=float,
        default=15.0,
        metavar="SECONDS",
        help="an event stream that has sent nothing for so long sends a comment, so that nobody on the way takes the "
        "connection for dead; 0: none (default: %(default)g)",
    )
    group = parser.add_argument_group(
        "many users",
        "What waits is bounded: past a bound a request gets a 429 at once, and is told when there will be room.",
    )
    group.add_argument(
        "--max-num-queued-reqs",
        type=_bound,
        metavar="N",
        help="most requests that wait for their first iteration while the batch is full, or `none`; default: 4 for "
        "each place in the batch (--max-num-seqs, workers, replicas), and 1,024 at least",
    )
    group.add_argument(
        "--max-num-queued-tokens",
        type=_bound,
        metavar="N",
        help="most prompt tokens of those who wait, or `none`; default: 4 for each slot of the K/V region, and "
        "1,048,576 at least",
    )
    group = parser.add_argument_group(
        "files and batches",
        "What /v1/files and /v1/batches keep. Unfinished batches go on when the server starts again.",
    )
    group.add_argument(
        "--files-dir",
        type=Path,
        metavar="DIR",
        help="folder for them, of one server at a time; default: one for each served model in the user's state folder",
    )
    group.add_argument(
        "--max-files-bytes",
        type=size_in_bytes,
        default=2**30,
        metavar="SIZE",
        help="most that all files together may take (default: 1GiB)",
    )
    group = parser.add_argument_group("chat")
    group.add_argument(
        "--tool-call-parser",
        choices=("auto", *TOOL_CALL_PARSERS),
        default="auto",
        help="how the model writes calls of tools; auto: as its chat template says (default: %(default)s)",
    )
    group.add_argument(
        "--trust-request-chat-template",
        action="store_true",
        help="requests may bring a chat_template of their own, which is a program; it runs in the same sandbox as the "
        "model's",
    )
    group = parser.add_argument_group("embeddings")
    group.add_argument(
        "--pooling",
        choices=POOLINGS,
        default="auto",
        help="what /v1/embeddings makes vectors of: the mean of all tokens' hidden states, or the last token's; auto: "
        "as the model's sentence-transformers files say, else last (default: %(default)s)",
    )
    group = parser.add_argument_group(
        "replicas",
        "Several engines behind one address, each with the whole model (in one process, or cut by -pp and -tp): for\n"
        "machines with more cores than one engine can use. Every flag above holds for each: D replicas take D times\n"
        "the memory; without -t and --n-slots they divide the cores, and the memory for keys and values.\n"
        "With --timeline run.json each writes its own: run-0.json, run-1.json and so on; --schedule-log likewise.",
    )
    group.add_argument(
        "-dp",
        "--data-parallel-size",
        type=int,
        default=1,
        metavar="D",
        help="replicas; a request goes to the one whose unfinished requests may need the least K/V memory (prompt + "
        "max_tokens), and is served there in order of arrival (default: %(default)s)",
    )
    group = parser.add_argument_group(
        "auto-tune",
        "Start with the --max-num-seqs and --n-slots that `orcaserve plan` finds with the profile of this machine,\n"
        "which `orcaserve profile` measures once.",
    )
    group.add_argument("--auto-tune", action="store_true", help="ask the planner, which takes some seconds")
    group.add_argument("--target", action="append", metavar="TARGET",
                       help="what to keep, such as p50_normalized<=190ms, p99_itl<=80ms, ttft_p99<=2s")  # fmt: skip
    group.add_argument("--tune-workload", default="paper", metavar="NAME",
                       help="what comes: paper, azure-conv, azure-code, homogeneous:IN:OUT or FILE.csv; lengths are "
                       "cut to the context (default: %(default)s)")  # fmt: skip
    group = parser.add_argument_group("recovery")
    group.add_argument(
        "--engine-timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="an engine that gives no sign of life for so long is taken for hung, and replaced; requests go on in the "
        "new one, as after a crash (default: %(default)g)",
    )
    add_prefix_arguments(parser)
    add_adapter_arguments(parser, updating=True)
    group.add_argument(
        "--stall-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="an engine that has work and ends no iteration for so long is replaced, though it gives signs of life; "
        "what each of its threads does is written to the log first. Longer than the longest prompt takes "
        "(default: %(default)g)",
    )
    group = parser.add_argument_group("end")
    group.add_argument(
        "--shutdown-timeout",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="after SIGTERM or Ctrl-C running requests have so long to finish; what is left then is cut with an error, "
        "and the exit code is 1 (default: %(default)g)",
    )
    group.add_argument(
        "--shutdown-grace",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="after SIGTERM new requests are still taken for so long, though /ready and /health say 503 at once: the "
        "time that load balancers take to notice; not after Ctrl-C (default: %(default)g)",
    )
    add_schedule_log_arguments(parser)
    group = parser.add_argument_group("log and traces")
    add_log_arguments(group)
    add_watching_arguments(group)


def _bound(text: str) -> float:
    if text == "none":
        return math.inf
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError("takes an integer of 0 or more, or `none`")
    return int(text)


def serving_config(args: argparse.Namespace) -> ServingConfig:
    """What these flags say of serving, wherever it listens. Raises ConfigError."""
    environment = os.environ.get("ORCASERVE_API_KEY")
    given = args.api_key if args.api_key is not None or environment is None else [environment]
    return ServingConfig(
        served_model_name=args.served_model_name,
        api_keys=api_keys(given, args.api_keys_file),
        engine_timeout=args.engine_timeout,
        stall_timeout=args.stall_timeout,
        log_level=args.log_level,
        log_requests=args.log_requests,
        otlp_traces_endpoint=args.otlp_traces_endpoint,
        strict=args.strict,
        tool_call_parser=None if args.tool_call_parser == "auto" else args.tool_call_parser,
        trust_request_chat_template=args.trust_request_chat_template,
        pooling=args.pooling,
        max_queued_reqs=args.max_num_queued_reqs,
        max_queued_tokens=args.max_num_queued_tokens,
        shutdown_timeout=args.shutdown_timeout,
        shutdown_grace=args.shutdown_grace,
    )


def default_files_dir(served_model: str) -> Path:
    """Of the user's state; each model has its own, for batches are of one model."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(os.path.abspath(state)) / "orcaserve" / "files" / quote(served_model, safe="")


def run(args: argparse.Namespace) -> int:
    name = args.served_model_name or model_name(args.model or args.model_flag)
    serving = serving_config(args)
    serving = replace(
        serving,
        host=args.host,
        port=args.port,
        uds=args.uds,
        sse_keep_alive=args.sse_keep_alive_interval,
        log_format=args.log_format,
        files_dir=Path(os.path.abspath(args.files_dir)) if args.files_dir else default_files_dir(name),
        files_dir_given=args.files_dir is not None,
        max_files_bytes=args.max_files_bytes,
    )
    if args.node_rank:
        from orcaserve.cli.worker import JOIN_TIMEOUT, run_node

        if args.listen_workers is None:
            raise ConfigError("--master-addr", "say where machine 0 is: HOST:PORT")
        return run_node(args, args.listen_workers, args.model or args.model_flag, JOIN_TIMEOUT)
    config = engine_config(args)
    config = replace(
        config,
        parallel=replace(config.parallel, data_parallel_size=args.data_parallel_size),
        adapters=adapters_config(args, name),
    )
    if args.auto_tune:
        from orcaserve.cli.auto_tune import tuned

        config = tuned(config, args.target, args.tune_workload)
    elif args.target:
        raise ConfigError("--target", "is for --auto-tune")
    from orcaserve.serving.endpoint import run_endpoint

    return run_endpoint(serving, config)
