"""Flags that several verbs share: which model, how it is held, how much K/V memory.

Names are those users know from other servers; help gives the paper's name beside them.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
from pathlib import Path

from orcaserve.checkpoint.locate import DEFAULT_MODEL, locate_model, model_name
from orcaserve.cli.node_options import nodes_config, numbers
from orcaserve.config import (
    DTYPES,
    FAIRNESSES,
    FIRST_ITERATIONS,
    KV_DTYPES,
    POLICY_NAMES,
    QUANTIZATIONS,
    EngineConfig,
    Fairness,
    KVConfig,
    ModelConfig,
    ParallelConfig,
    RayConfig,
    ScheduleLogConfig,
    SchedulerConfig,
    may_share_prefixes,
)
from orcaserve.core import InvalidRequest, SamplingParams
from orcaserve.core.errors import ConfigError
from orcaserve.core.sampling_params import MAX_TOKENS_LIMIT

BATCHED_TOKENS = 2048  # of `serve`, unless it is told otherwise: prompts up to that length are not cut
UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def size_in_bytes(text: str) -> int:
    """`4GiB`, `500M`, `1073741824` -> bytes."""
    word = text.strip().lower().removesuffix("b")
    digits = word.rstrip("kmgi")
    factor = UNITS.get(word[len(digits) :], 1 if word == digits else 0)
    try:
        value = float(digits) * factor
    except ValueError:
        value = 0
    if not 1 <= value < 2**63:
        raise argparse.ArgumentTypeError("takes a size such as 1073741824, 500M or 4GiB")
    return int(value)


def add_model_arguments(parser: argparse.ArgumentParser, *, positional: bool) -> None:
    """Add the model, memory and thread flags. `positional`: the model may be given without a flag."""
    text = f"GGUF file, checkpoint folder, or hub name owner/name[:file.gguf]; default: {DEFAULT_MODEL}"
    if positional:
        parser.add_argument("model", nargs="?", metavar="MODEL", help=text)
    parser.add_argument("-m", "--model-path", "--model", dest="model_flag", metavar="MODEL", help=text)
    group = parser.add_argument_group("model and memory")
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="how weights are held that are not quantised; auto: bfloat16 if the file has bfloat16, else float32",
    )
    group.add_argument(
        "--quantization",
        choices=QUANTIZATIONS,
        default="auto",
        help="integers for weights: int8 is 4 times as small as float32 and as much faster, int4 (with a scale per 32) "
        "is smaller still, faster for few requests and slower for many; auto: int8 for what the file has quantised "
        "already, none for the rest",
    )
    group.add_argument(
        "--kv-cache-dtype",
        choices=KV_DTYPES,
        default="auto",
        help="how keys and values are held; int8 (with a scale per token and head) makes room for 3.8 times the tokens "
        "of float32; auto: int8 with int8 or int4 weights, else as the weights",
    )
    group.add_argument(
        "--device",
        default="cpu",
        help="cpu; cuda or cuda:N (through PyTorch, no speed is promised); reference: the readable PyTorch model on "
        "the CPU, what the kernels are tested against (default: %(default)s)",
    )
    group.add_argument(
        "-c",
        "--max-model-len",
        type=int,
        metavar="N",
        help="most tokens of one request, input + output; default: the model's",
    )
    group.add_argument(
        "--n-slots",
        type=int,
        metavar="N",
        help="n_slots: size of the K/V region in tokens, in pages of 16; default: a quarter of the free memory",
    )
    group.add_argument(
        "--kv-cache-memory-bytes", type=size_in_bytes, metavar="SIZE", help="the same in bytes, for example 2GiB"
    )
    group.add_argument("-np", "--max-num-seqs", "--max-running-requests", type=int, default=64, metavar="N",
                       help="max_bs: most requests in one batch (default: %(default)s)")  # fmt: skip
    group.add_argument(
        "-t",
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads of each worker; default: the cores this process may use, divided among the workers",
    )
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="a request's output is the same to the bit whatever runs beside it: settings and models with which that "
        "could not be are refused, nothing else changes (docs/determinism.md)",
    )
    _add_scheduling_arguments(parser)
    _add_parallel_arguments(parser)


def _add_scheduling_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "scheduling", "Who chooses the next batch. All but the first are what others do, to compare with."
    )
    group.add_argument(
        "--scheduling-policy",
        choices=POLICY_NAMES,
        default=POLICY_NAMES[0],
        help="iteration-level: first come, first served, anew each iteration; request-level: whole batches, answered "
        "when all of it has ended; cellular: equal lengths only; orca-max, orca-pow2, orca-oracle: iteration-level "
        "with other reservations; overcommit: no reservation, preempts when memory runs out (default: %(default)s)",
    )
    group.add_argument(
        "--microbatch-size",
        type=int,
        metavar="N",
        help="request-level: requests of a batch that run together, so that every stage has some (default: all)",
    )
    group.add_argument(
        "--first-iteration",
        choices=FIRST_ITERATIONS,
        help="request-level: shortest: the batch begins with as many tokens of each prompt as the shortest has, and "
        "feeds the rest one by one, as FasterTransformer does; whole: every prompt at once (default: shortest)",
    )

    add_bound_arguments(group)


def add_bound_arguments(group: argparse._ArgumentGroup) -> None:
    """What iteration-level scheduling can do beside Algorithm 1. Nothing, unless it is asked for."""
    group.add_argument(
        "--max-num-batched-tokens",
        type=int,
        metavar="N",
        help="iteration-level: most input tokens of an iteration: long prompts are fed in pieces, so that they do not "
        f"hold up everybody's next token; 0: any number (default: {BATCHED_TOKENS} for `serve`, else any number)",
    )
    group.add_argument(
        "--target-itl",
        type=seconds_of,
        metavar="TIME",
        help="iteration-level: time that there is to be between two tokens, such as 50ms: prompts are fed in pieces as "
        "large as that allows, by what iterations have taken so far (default: no target)",
    )
    group.add_argument(
        "--fairness",
        choices=FAIRNESSES,
        help="iteration-level: who is admitted first; none: who came first; tokens: of clients who wait, the one that "
        "has been given the fewest tokens by its weight (default: tokens for `serve`, else none)",
    )


def seconds_of(text: str) -> float:
    """`50ms`, `0.05s`, `0.05` -> seconds."""
    word = text.strip().lower()
    digits, factor = (word[:-2], 1e-3) if word.endswith("ms") else (word.removesuffix("s"), 1.0)
    try:
        value = float(digits) * factor
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("takes a time such as 50ms or 0.05s")
    return value


def scheduler_config(args: argparse.Namespace) -> SchedulerConfig:
    """What a verb does unless it is told otherwise (`for_many`: bounded and fair) is for iteration-level alone, and
    gives way to other flags."""
    tokens: int | None = args.max_num_batched_tokens
    fairness: Fairness | None = args.fairness
    if getattr(args, "for_many", False) and args.scheduling_policy == "iteration-level":
        fairness = fairness or "tokens"
        tokens = max(BATCHED_TOKENS, args.max_num_seqs) if tokens is None else tokens
    return SchedulerConfig(
        max_bs=args.max_num_seqs,
        policy=args.scheduling_policy,
        microbatch_size=args.microbatch_size,
        first_iteration=args.first_iteration,
        fairness=fairness or "none",
        max_num_batched_tokens=tokens or None,
        target_itl=args.target_itl,
        prefix_caching=_shares_prefixes(args),
    )


def add_prefix_arguments(parser: argparse.ArgumentParser) -> None:
    """Of verbs that serve; what measures the paper's system has none."""
    group = parser.add_argument_group("prefix reuse")
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        help="prompts that begin alike share keys and values, which are kept as long as there is room for them "
        "(docs/prefix_reuse.md); default: with iteration-level, the only policy that can",
    )


def _shares_prefixes(args: argparse.Namespace) -> bool:
    asked: bool | None = getattr(args, "enable_prefix_caching", False)
    return may_share_prefixes(args.scheduling_policy) if asked is None else asked


def add_schedule_log_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("schedule log")
    group.add_argument(
        "--schedule-log",
        type=Path,
        metavar="FILE",
        help="write every iteration as it happens: who ran, and why the next one did not; `orcaserve explain` and "
        "`orcaserve replay` read it",
    )
    group.add_argument(
        "--schedule-log-size",
        type=size_in_bytes,
        default=64 * 2**20,
        metavar="SIZE",
        help="size after which FILE is renamed FILE.1, and so on, and a new one is begun (default: 64MiB)",
    )
    group.add_argument(
        "--schedule-log-files", type=int, default=4, metavar="N", help="files that are kept (default: %(default)s)"
    )


def _schedule_log(args: argparse.Namespace) -> ScheduleLogConfig:
    """Of a verb that has the flags; else none is written."""
    path: Path | None = getattr(args, "schedule_log", None)
    if path is None:
        return ScheduleLogConfig()
    return ScheduleLogConfig(Path(os.path.abspath(path)), args.schedule_log_size, args.schedule_log_files)


def _add_parallel_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "workers",
        "One process runs the whole model, unless it is cut: into stages (a run of layers each; every stage works on\n"
        "another batch at the same time) and each stage into shards (some heads and columns of every layer each; all\n"
        "shards work on the same batch and add up what they found). P stages of T shards are P x T worker processes.",
    )
    group.add_argument(
        "-pp",
        "--pipeline-parallel-size",
        type=int,
        metavar="P",
        help="stages, at most the model's layers; P batches are in flight, so P times as many requests keep all busy "
        "(default: as many as --layer-split names, or 1)",
    )
    group.add_argument(
        "-tp",
        "--tensor-parallel-size",
        type=int,
        default=1,
        metavar="T",
        help="shards of every stage, at most the model's key/value heads, which are divided unevenly if they must be "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--layer-split",
        type=numbers,
        metavar="N,N,...",
        help="layers of each stage, first to last, for example 19,11; default: such that all stages have about as many "
        "weights, the output head counted in the last one",
    )
    group.add_argument(
        "--worker-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="a worker process that answers no ping for so long is taken for lost; one that ends is noticed at once "
        "(default: %(default)g)",
    )
    group.add_argument(
        "--device-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="a worker that has begun no further piece of an iteration for so long is taken for hung (a piece, such as "
        "some rows of a matrix, takes milliseconds however long the iteration is), and so is a group in which nothing "
        "moves (default: %(default)g)",
    )
    group.add_argument(
        "--distributed-executor-backend",
        choices=("mp", "ray"),
        default="mp",
        help="who starts the workers: mp, this command, on this machine (and on those of --nnodes); ray, Ray, on the "
        "machines of its cluster that have room, each of which has the model's files under the same name "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="the cluster; auto: the one that runs on this machine; local: a new one; default: RAY_ADDRESS, or the one "
        "that runs here, or else a new one",
    )
    group.add_argument(
        "--placement-timeout",
        type=float,
        metavar="SECONDS",
        help="how long to wait for room in the cluster, with an autoscaler for minutes (default: 10; 300 after workers "
        "were lost)",
    )
    group.add_argument(
        "--timeline",
        type=Path,
        metavar="FILE",
        help="when the engine ends, write what each worker did when: a trace for ui.perfetto.dev or chrome://tracing, "
        "and beside it a picture (.svg) with each worker's idle share",
    )


def _parallel_config(args: argparse.Namespace) -> ParallelConfig:
    split: tuple[int, ...] | None = args.layer_split
    stages: int | None = args.pipeline_parallel_size
    return ParallelConfig(
        pipeline_parallel_size=stages if stages is not None else len(split or (1,)),
        tensor_parallel_size=args.tensor_parallel_size,
        layer_split=split,
        worker_timeout=args.worker_timeout,
        device_timeout=args.device_timeout,
        timeline=args.timeline and Path(os.path.abspath(args.timeline)),
    )


def _ray_config(args: argparse.Namespace) -> RayConfig | None:
    given = {"address": args.ray_address, "patience": args.placement_timeout}
    settings = {name: value for name, value in given.items() if value is not None}
    if args.distributed_executor_backend == "ray":
        return RayConfig(**settings)
    for name, flag in (("address", "--ray-address"), ("patience", "--placement-timeout")):
        if name in settings:
            raise ConfigError(flag, "is for --distributed-executor-backend ray")
    return None


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The engine's settings; finds the model, fetching it when it is not here."""
    positional: str | None = getattr(args, "model", None)
    if positional and args.model_flag:
        raise ConfigError("MODEL", "given twice")
    model = positional or args.model_flag
    return EngineConfig(
        model=ModelConfig(
            path=Path(os.path.abspath(locate_model(model))),
            name=model_name(model),
            dtype=args.dtype,
            quantization=args.quantization,
            device=args.device,
            max_model_len=args.max_model_len,
            threads=args.threads,
        ),
        kv=KVConfig(n_slots=args.n_slots, memory_bytes=args.kv_cache_memory_bytes, dtype=args.kv_cache_dtype),
        scheduler=scheduler_config(args),
        parallel=_parallel_config(args),
        nodes=nodes_config(args),
        ray=_ray_config(args),
        schedule_log=_schedule_log(args),
        deterministic=args.deterministic,
    )


def print_notes() -> None:
    """Have what the package has to say, such as how it holds the weights and why, printed to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("orcaserve: %(message)s"))
    logger = logging.getLogger("orcaserve")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def add_sampling_arguments(parser: argparse.ArgumentParser, *, max_tokens: int) -> None:
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-tokens", type=int, default=max_tokens, metavar="N", help="most tokens to generate (default: %(default)s)"
    )
    group.add_argument("--temperature", type=float, default=0.7, metavar="T", help="0 is greedy (default: %(default)s)")
    group.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="keep the likeliest tokens up to this mass (default: all)"
    )
    group.add_argument("--top-k", type=int, default=0, metavar="K", help="keep the K likeliest tokens (default: all)")
    group.add_argument(
        "--min-p", type=float, default=0.0, metavar="P", help="drop tokens below P times the best (default: none)"
    )
    group.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="R",
        help="above 1 avoids repeats (default: %(default)s)",
    )
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given 4 times"
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on past the model's own end")


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    if args.max_tokens == 0:  # a prompt that is only read has no text to print
        raise InvalidRequest("max_tokens", f"max_tokens must be an integer from 1 to {MAX_TOKENS_LIMIT}")
    return SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        seed=args.seed,
        stop=tuple(args.stop),
        ignore_eos=args.ignore_eos,
    )
