"""Settings, as frozen dataclasses: composed once, checked once, and each part is given only its own piece."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

from orcaserve.core.adapter import AdapterSource
from orcaserve.core.errors import ConfigError
from orcaserve.core.pooling import Pooling
from orcaserve.core.terms import MAX_NAME, MAX_PRIORITY, MAX_WEIGHT, MIN_PRIORITY, MIN_WEIGHT
from orcaserve.core.tls import TlsFiles
from orcaserve.logs import plain

DType = Literal["auto", "float32", "bfloat16"]
Quantization = Literal["auto", "none", "int8", "int4"]
KVDType = Literal["auto", "float32", "bfloat16", "int8"]
PolicyName = Literal[
    "iteration-level", "request-level", "cellular", "orca-max", "orca-pow2", "orca-oracle", "overcommit"
]
FirstIteration = Literal["shortest", "whole"]
Fairness = Literal["none", "tokens"]
DTYPES: tuple[str, ...] = get_args(DType)
QUANTIZATIONS: tuple[str, ...] = get_args(Quantization)
KV_DTYPES: tuple[str, ...] = get_args(KVDType)
POLICY_NAMES: tuple[str, ...] = get_args(PolicyName)
FIRST_ITERATIONS: tuple[str, ...] = get_args(FirstIteration)
FAIRNESSES: tuple[str, ...] = get_args(Fairness)
MIN_TARGET_ITL, MAX_TARGET_ITL = 0.001, 60.0  # s
DEVICES = re.compile(r"cpu|reference|cuda(:\d+)?")
MIN_SECRET = 16  # characters; a shorter one can be guessed
MIN_ENGINE_TIMEOUT, MAX_ENGINE_TIMEOUT = 2.0, 3600.0  # s; an engine that is well says something twice a second
MIN_KEEP_ALIVE, MAX_KEEP_ALIVE = 0.1, 3600.0
MIN_STALL_TIMEOUT = 2.0  # s
MIN_PART_BYTES = 64 * 2**10  # of a schedule log
MAX_REPLICAS = 64  # on one machine; each is a process that holds the whole model
SUCCESSOR_PATIENCE = 300.0  # s for a machine of Ray's to come back, or for another to take its place
MAX_LORAS, MAX_LORA_RANK = 1024, 512
_ADAPTER_NAME = re.compile(rf"[A-Za-z0-9_.:-][A-Za-z0-9_.:/-]{{0,{MAX_NAME - 1}}}")
PAGE_SIZE = 16  # slots the K/V manager hands out together


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and how its weights are held.

    path: a GGUF file, a checkpoint folder, or what `orcaserve models convert` wrote; already on this machine.
    dtype, quantization: see orcaserve/native/precision.py for what `auto` takes.
    device: cpu; cuda or cuda:N (PyTorch); reference (PyTorch on the CPU: slow, what the kernels are tested against).
    max_model_len: most tokens of one request; None = what the model was trained for.
    """

    path: Path
    name: str
    dtype: DType = "auto"
    quantization: Quantization = "auto"
    device: str = "cpu"
    max_model_len: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        _check_choice("--dtype", self.dtype, DTYPES)
        _check_choice("--quantization", self.quantization, QUANTIZATIONS)
        if not isinstance(self.device, str) or not DEVICES.fullmatch(self.device):
            raise ConfigError("--device", "must be cpu, cuda, cuda:N or reference")
        if self.max_model_len is not None:
            _check_at_least("--max-model-len", self.max_model_len, 2)
        if self.threads is not None:
            _check_at_least("--threads", self.threads, 1)


@dataclass(frozen=True, slots=True)
class KVConfig:
    """The K/V region: its size in slots, or in bytes, or (neither) a share of the memory that is free."""

    n_slots: int | None = None
    memory_bytes: int | None = None
    dtype: KVDType = "auto"
    page_size: int = PAGE_SIZE

    def __post_init__(self) -> None:
        _check_choice("--kv-cache-dtype", self.dtype, KV_DTYPES)
        _check_at_least("page_size", self.page_size, 1)
        if self.n_slots is not None and self.memory_bytes is not None:
            raise ConfigError("--n-slots", "give --n-slots or --kv-cache-memory-bytes, not both")
        if self.n_slots is not None:
            _check_at_least("--n-slots", self.n_slots, self.page_size)
        if self.memory_bytes is not None:
            _check_at_least("--kv-cache-memory-bytes", self.memory_bytes, 1)


def may_share_prefixes(policy: str) -> bool:
    """Whether requests may share keys and values under this policy. All others are there to be compared with."""
    return policy == "iteration-level"


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Quantities of Algorithm 1 that a user sets. n_slots comes from the K/V region, n_workers from the engine.

    policy: who chooses the next batch: docs/scheduling.md.
    microbatch_size, first_iteration: of request-level alone. None: a batch is not cut, and begins as FasterTransformer
    has it begin.
    Of iteration-level alone: max_num_batched_tokens: most input tokens of an iteration; target_itl: seconds that there
    are to be between two tokens of a request, as far as that can be foretold. None: no bound. fairness: how clients
    share. prefix_caching: requests share keys and values of equal beginnings (docs/prefix_reuse.md).
    """

    max_bs: int = 64
    policy: PolicyName = "iteration-level"
    microbatch_size: int | None = None
    first_iteration: FirstIteration | None = None
    fairness: Fairness = "none"
    max_num_batched_tokens: int | None = None
    target_itl: float | None = None
    prefix_caching: bool = False

    def __post_init__(self) -> None:
        if self.prefix_caching and not may_share_prefixes(self.policy):
            text = f"{self.policy} is a system to compare with, which shares nothing: only iteration-level does"
            raise ConfigError("--enable-prefix-caching", text)
        _check_at_least("--max-num-seqs", self.max_bs, 1)
        _check_choice("--scheduling-policy", self.policy, POLICY_NAMES)
        if self.first_iteration is not None:
            _check_choice("--first-iteration", self.first_iteration, FIRST_ITERATIONS)
        for name, value in (("--microbatch-size", self.microbatch_size), ("--first-iteration", self.first_iteration)):
            if value is not None and self.policy != "request-level":
                raise ConfigError(name, f"means something for request-level only, not for {self.policy}")
        if self.microbatch_size is not None:
            _check_at_least("--microbatch-size", self.microbatch_size, 1)
            if self.microbatch_size > self.max_bs:
                raise ConfigError("--microbatch-size", f"must be at most --max-num-seqs, {self.max_bs}")
        self._check_bounds()

    def _check_bounds(self) -> None:
        _check_choice("--fairness", self.fairness, FAIRNESSES)
        given = {
            "--fairness": self.fairness != "none",
            "--max-num-batched-tokens": self.max_num_batched_tokens is not None,
            "--target-itl": self.target_itl is not None,
        }
        for name, is_given in given.items():
            if is_given and self.policy != "iteration-level":
                raise ConfigError(name, f"means something for iteration-level only, not for {self.policy}")
        if self.max_num_batched_tokens is not None:
            _check_at_least("--max-num-batched-tokens", self.max_num_batched_tokens, 1)
            if self.max_num_batched_tokens < self.max_bs:
                text = f"must be at least --max-num-seqs, {self.max_bs}: each request of a batch brings a token"
                raise ConfigError("--max-num-batched-tokens", text)
        if self.target_itl is not None and not MIN_TARGET_ITL <= self.target_itl <= MAX_TARGET_ITL:
            raise ConfigError("--target-itl", f"must be from {MIN_TARGET_ITL * 1e3:g}ms to {MAX_TARGET_ITL:g}s")


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """How the model is cut: into stages of consecutive layers, and each stage into shards, a process for each of these.

    layer_split: layers of every stage; None = such that all stages take about as long.
    worker_timeout: seconds after which a worker that does not answer is taken for lost.
    timeline: where to write what each worker did when, or None; with a picture beside it.
    data_parallel_size: how many engines with the same settings share this machine: its cores and memory are divided,
    where no setting says how much each takes.
    device_timeout: seconds without any progress in an iteration after which a worker's device is taken for hung.
    """

    pipeline_parallel_size: int = 1
    tensor_parallel_size: int = 1
    layer_split: tuple[int, ...] | None = None
    worker_timeout: float = 30.0
    timeline: Path | None = None
    data_parallel_size: int = 1
    device_timeout: float = 30.0

    def __post_init__(self) -> None:
        _check_at_least("--pipeline-parallel-size", self.pipeline_parallel_size, 1)
        _check_at_least("--tensor-parallel-size", self.tensor_parallel_size, 1)
        _check_at_least("--data-parallel-size", self.data_parallel_size, 1)
        if self.data_parallel_size > MAX_REPLICAS:
            raise ConfigError("--data-parallel-size", f"must be at most {MAX_REPLICAS}")
        if self.layer_split is not None:
            for layers in self.layer_split:
                _check_at_least("--layer-split", layers, 1)
            if len(self.layer_split) != self.pipeline_parallel_size:
                raise ConfigError(
                    "--layer-split",
                    f"names {len(self.layer_split)} stages, --pipeline-parallel-size {self.pipeline_parallel_size}",
                )
        for name, seconds in (("--worker-timeout", self.worker_timeout), ("--device-timeout", self.device_timeout)):
            if not 1 <= seconds <= 3600:
                raise ConfigError(name, "must be from 1 to 3600 seconds")

    @property
    def n_workers(self) -> int:
        """Worker processes of an engine."""
        return self.pipeline_parallel_size * self.tensor_parallel_size


@dataclass(frozen=True, slots=True)
class NodesConfig:
    """The machines of an engine. This one is the first of them.

    listen: HOST:PORT where the others join. counts: workers of each machine; None = as even as they come out.
    secret: what all machines have in common; may be empty where only this machine can call, and with `tls`.
    """

    n_nodes: int = 1
    listen: str | None = None
    counts: tuple[int, ...] | None = None
    secret: str = field(default="", repr=False)
    tls: TlsFiles | None = None

    def __post_init__(self) -> None:
        _check_at_least("--nnodes", self.n_nodes, 1)
        if self.secret and len(self.secret) < MIN_SECRET:
            raise ConfigError("--secret-file", f"must hold at least {MIN_SECRET} characters")
        if self.n_nodes > 1 and self.listen is None:
            raise ConfigError("--listen-workers", "say where the other machines are to join: HOST:PORT")
        if self.listen is not None:
            check_open("--listen-workers", split_address("--listen-workers", self.listen)[0], self.secret, self.tls)
            if self.n_nodes == 1:
                raise ConfigError("--nnodes", "say how many machines there are, this one included")
        if self.counts is not None:
            for count in self.counts:
                _check_at_least("--worker-counts", count, 1)
            if len(self.counts) != self.n_nodes:
                raise ConfigError("--worker-counts", f"names {len(self.counts)} machines, --nnodes {self.n_nodes}")


@dataclass(frozen=True, slots=True)
class RayConfig:
    """That Ray places the workers, on the machines of its cluster that have room.

    address: of the cluster, HOST:PORT; `auto`: the one that runs on this machine; `local`: a new one, of this engine's
    own; None: RAY_ADDRESS, or the one that runs here, or else a new one.
    patience: seconds to wait for room.
    """

    address: str | None = None
    patience: float = 10.0

    def __post_init__(self) -> None:
        if self.address not in (None, "auto", "local"):
            if "://" in str(self.address):
                message = "Ray's clients (ray://) cannot do this: run on a machine of the cluster, and give HOST:PORT"
                raise ConfigError("--ray-address", message)
            split_address("--ray-address", str(self.address))
        if not 0 <= self.patience <= 86400:
            raise ConfigError("--placement-timeout", "must be from 0 to 86400 seconds")


def split_address(name: str, address: str) -> tuple[str, int]:
    """`10.0.0.1:7000`, `[fd00::1]:7000` -> host and port. Raises ConfigError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(name, f"{address!r} is not HOST:PORT, such as 10.0.0.1:7000")
    return host.removeprefix("[").removesuffix("]"), int(port)


def check_open(name: str, host: str, secret: str, tls: TlsFiles | None = None) -> None:
    """Raises ConfigError if others than this machine could call, and none would be asked who he is."""
    try:
        inside = ipaddress.ip_address(host).is_loopback
    except ValueError:
        inside = host == "localhost"
    if not inside and not secret and tls is None:
        raise ConfigError(
            name,
            f"{host} is open to other machines: give --secret-file or ORCASERVE_SECRET, or the --tls flags",
        )


@dataclass(frozen=True, slots=True)
class ScheduleLogConfig:
    """Where the schedule is written, if anywhere: n_files files of part_bytes, the oldest of which goes first."""

    path: Path | None = None
    part_bytes: int = 64 * 2**20
    n_files: int = 4

    def __post_init__(self) -> None:
        _check_at_least("--schedule-log-size", self.part_bytes, MIN_PART_BYTES)
        _check_at_least("--schedule-log-files", self.n_files, 1)


@dataclass(frozen=True, slots=True)
class AdaptersConfig:
    """modules: loaded from the start. max_loras: most that are loaded at a time; max_rank: of each.

    updating: clients may load and unload some. of_successor: this engine takes the place of another.
    """

    modules: tuple[AdapterSource, ...] = ()
    max_loras: int = 8
    max_rank: int = 64
    updating: bool = False
    of_successor: bool = False

    def __post_init__(self) -> None:
        for name, value, most in (
            ("--max-loras", self.max_loras, MAX_LORAS),
            ("--max-lora-rank", self.max_rank, MAX_LORA_RANK),
        ):
            _check_at_least(name, value, 1)
            if value > most:
                raise ConfigError(name, f"must be at most {most}")
        if any(not is_adapter_name(adapter.name) for adapter in self.modules):
            raise ConfigError("--lora-modules", ADAPTER_NAMES)
        if len(self.modules) > self.max_loras:
            text = f"names {len(self.modules)} adapters, --max-loras is {self.max_loras}"
            raise ConfigError("--lora-modules", text)


ADAPTER_NAMES = f"an adapter's name must be 1 to {MAX_NAME} letters, digits or any of _.:/-"


def is_adapter_name(name: str) -> bool:
    return _ADAPTER_NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything the engine process needs.

    deterministic: refuse whatever could make a request's numbers depend on what runs beside it (docs/determinism.md).
    """

    model: ModelConfig
    kv: KVConfig = field(default_factory=KVConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    nodes: NodesConfig = field(default_factory=NodesConfig)
    ray: RayConfig | None = None  # None: workers are processes of this machine, or of those that join by hand
    schedule_log: ScheduleLogConfig = field(default_factory=ScheduleLogConfig)
    deterministic: bool = False
    adapters: AdaptersConfig = field(default_factory=AdaptersConfig)

    def __post_init__(self) -> None:
        n_nodes, n_workers = self.nodes.n_nodes, self.parallel.n_workers
        stages, scheduler = self.parallel.pipeline_parallel_size, self.scheduler
        if scheduler.policy == "request-level" and stages > 1 and scheduler.microbatch_size is None:
            text = f"request-level needs it with {stages} stages: without microbatches they would take turns"
            raise ConfigError("--microbatch-size", text)
        if self.ray is not None:
            self._check_ray()
        if self.deterministic:
            self._check_deterministic()
        if n_nodes == 1:
            return
        if n_nodes > n_workers:
            raise ConfigError("--nnodes", f"must be at most the {n_workers} workers that -pp and -tp make")
        if self.nodes.counts is not None and sum(self.nodes.counts) != n_workers:
            raise ConfigError("--worker-counts", f"must add up to the {n_workers} workers that -pp and -tp make")
        if self.parallel.data_parallel_size > 1:
            raise ConfigError("--data-parallel-size", "leave it out with --nnodes: replicas share one machine")

    def _check_ray(self) -> None:
        backend = "--distributed-executor-backend ray"
        if self.nodes != NodesConfig():
            raise ConfigError("--nnodes", f"leave it out with {backend}, which finds the machines itself")
        if self.parallel.timeline is not None:
            raise ConfigError("--timeline", f"leave it out with {backend}: the clocks of two machines differ")

    def _check_deterministic(self) -> None:
        if self.model.device != "cpu":
            text = f"needs --device cpu, not {self.model.device}: PyTorch rounds a row by how many there are beside it"
            raise ConfigError("--deterministic", text)
        if self.nodes.n_nodes > 1 or self.ray is not None:
            text = "holds on one machine: leave out --nnodes and Ray, for other processors round in another way"
            raise ConfigError("--deterministic", text)

    def for_successor(self, n_slots: int) -> EngineConfig:
        """Settings of an engine in place of this one: as many slots, and time for a cluster to have room again."""
        kv = replace(self.kv, n_slots=n_slots, memory_bytes=None)
        ray = self.ray and replace(self.ray, patience=max(self.ray.patience, SUCCESSOR_PATIENCE))
        return replace(self, kv=kv, ray=ray, adapters=replace(self.adapters, of_successor=True))

    def to_json(self) -> str:
        """One line, for a child of this process: the secret is in it."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> EngineConfig:
        """What to_json wrote; checked again."""
        parts = json.loads(text)
        model, parallel, nodes, log = parts["model"], parts["parallel"], parts["nodes"], parts["schedule_log"]
        split, timeline, tls = parallel["layer_split"], parallel["timeline"], nodes["tls"]
        return cls(
            ModelConfig(**{**model, "path": Path(model["path"])}),
            KVConfig(**parts["kv"]),
            SchedulerConfig(**parts["scheduler"]),
            ParallelConfig(
                **{
                    **parallel,
                    "layer_split": None if split is None else tuple(split),
                    "timeline": None if timeline is None else Path(timeline),
                }
            ),
            NodesConfig(
                **{
                    **nodes,
                    "counts": None if nodes["counts"] is None else tuple(nodes["counts"]),
                    "tls": None if tls is None else TlsFiles(**{name: Path(path) for name, path in tls.items()}),
                }
            ),
            None if parts["ray"] is None else RayConfig(**parts["ray"]),
            ScheduleLogConfig(**{**log, "path": None if log["path"] is None else Path(log["path"])}),
            parts["deterministic"],
            AdaptersConfig(
                **{
                    **parts["adapters"],
                    "modules": tuple(
                        AdapterSource(**{**adapter, "path": Path(adapter["path"])})
                        for adapter in parts["adapters"]["modules"]
                    ),
                }
            ),
        )


MAX_KEY = 1024  # characters of an API key
MAX_KEYS = 10_000  # every one of them is compared with what a request brings
_KEY = re.compile(r"[!-~]+")  # what a header can carry as one word
_KEY_NAME = re.compile(rf"[A-Za-z0-9_.@-][A-Za-z0-9_.@ -]{{0,{MAX_NAME - 1}}}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What lets its holder in. Checked: raises ConfigError, which names the entry and never shows the key.

    name: who the holder is to fairness, metrics and logs. weight, priority: see Terms; the latter is the best one that
    requests with this key can have.
    """

    name: str
    key: str = field(repr=False)
    weight: float = 1.0
    priority: int = 0

    def __post_init__(self) -> None:
        flag = "--api-keys-file"
        if not isinstance(self.name, str) or not _KEY_NAME.fullmatch(self.name):
            raise ConfigError(flag, f"a key's name must be 1 to {MAX_NAME} letters, digits, spaces or any of _.@-")
        whose = f"key {self.name!r}"
        if not isinstance(self.key, str) or not _KEY.fullmatch(self.key) or len(self.key) > MAX_KEY:
            text = f"{whose}: key must be a string of 1 to {MAX_KEY} printable ASCII characters without spaces"
            raise ConfigError(flag, text)
        number = isinstance(self.weight, int | float) and not isinstance(self.weight, bool)
        if not number or not MIN_WEIGHT <= self.weight <= MAX_WEIGHT:
            raise ConfigError(flag, f"{whose}: weight must be a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
        whole = isinstance(self.priority, int) and not isinstance(self.priority, bool)
        if not whole or not MIN_PRIORITY <= self.priority <= MAX_PRIORITY:
            text = f"{whose}: priority must be an integer from {MIN_PRIORITY} to {MAX_PRIORITY}"
            raise ConfigError(flag, text)


POOLINGS = ("auto", *(pooling.value for pooling in Pooling))
TOOL_CALL_PARSERS = ("hermes", "json_list", "llama3_json", "mistral", "pythonic")


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """Everything the endpoint process needs beside the engine's facts.

    strict: fields without effect are errors. files_dir: where files and batches are kept; None: nowhere.
    files_dir_given: the user said which folder, so that it must be usable from the start.
    tool_call_parser: the format in which the model writes calls of tools; None: what its chat template says.
    pooling: of which tokens' hidden states embeddings are made; auto: as the model's files say, else of the last.
    trust_request_chat_template: requests may bring chat templates, which are programs.
    log_requests: log a line for each. otlp_traces_endpoint: URL of a collector of traces; None: what the environment
    says, if anything.
    api_keys: who may come in; none: everybody may.
    max_queued_reqs, max_queued_tokens: most choices that wait for their first batch, and most prompt tokens of those;
    None: as `orcaserve.serving.door` has it for the engine; math.inf: no bound.
    stall_timeout: seconds without an iteration, though there is work, after which an engine is replaced.
    shutdown_timeout: seconds that running requests have when the server is told to end. shutdown_grace: of these, how
    long new ones are still taken, for those who send them learn by /ready that they should not.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    served_model_name: str | None = None
    api_keys: tuple[ApiKey, ...] = ()
    max_body_bytes: int = 4 * 2**20
    body_timeout: float = 30.0
    write_timeout: float = 60.0
    start_timeout: float = 600.0
    engine_timeout: float = 10.0  # s without a word from the engine, which is then taken for hung and replaced
    sse_keep_alive: float = 15.0  # s of silence of an event stream, after which a comment is sent; 0: never
    log_level: str = "info"
    log_format: str = "text"
    log_requests: bool = False
    otlp_traces_endpoint: str | None = None
    strict: bool = False
    files_dir: Path | None = None
    files_dir_given: bool = False
    max_files_bytes: int = 2**30
    tool_call_parser: str | None = None
    trust_request_chat_template: bool = False
    pooling: str = "auto"
    max_queued_reqs: float | None = None
    max_queued_tokens: float | None = None
    stall_timeout: float = 600.0
    shutdown_timeout: float = 5.0
    shutdown_grace: float = 1.0

    def __post_init__(self) -> None:
        self._check_keys()
        for name, bound in (
            ("--max-num-queued-reqs", self.max_queued_reqs),
            ("--max-num-queued-tokens", self.max_queued_tokens),
        ):
            if bound is not None and not bound >= 0:
                raise ConfigError(name, "must be an integer of 0 or more, or `none`")
        if not MIN_STALL_TIMEOUT <= self.stall_timeout <= 86400:
            raise ConfigError("--stall-timeout", f"must be from {MIN_STALL_TIMEOUT:g} to 86400 seconds")
        if not 0 <= self.shutdown_timeout <= 86400:
            raise ConfigError("--shutdown-timeout", "must be from 0 to 86400 seconds")
        if not 0 <= self.shutdown_grace <= 3600:
            raise ConfigError("--shutdown-grace", "must be from 0 to 3600 seconds")
        if self.tool_call_parser is not None:
            _check_choice("--tool-call-parser", self.tool_call_parser, TOOL_CALL_PARSERS)
        _check_choice("--pooling", self.pooling, POOLINGS)
        if self.otlp_traces_endpoint is not None:
            check_url("--otlp-traces-endpoint", self.otlp_traces_endpoint)
        if not 0 <= self.port <= 65535:
            raise ConfigError("--port", "must be from 0 to 65535")
        if not MIN_ENGINE_TIMEOUT <= self.engine_timeout <= MAX_ENGINE_TIMEOUT:
            span = f"{MIN_ENGINE_TIMEOUT:g} to {MAX_ENGINE_TIMEOUT:g}"
            raise ConfigError("--engine-timeout", f"must be from {span} seconds")
        if self.sse_keep_alive != 0 and not MIN_KEEP_ALIVE <= self.sse_keep_alive <= MAX_KEEP_ALIVE:
            span = f"0 (none), or from {MIN_KEEP_ALIVE:g} to {MAX_KEEP_ALIVE:g} seconds"
            raise ConfigError("--sse-keep-alive-interval", f"must be {span}")

    def _check_keys(self) -> None:
        """Two entries with one name would be one client, and two with one key nobody could tell apart."""
        if len(self.api_keys) > MAX_KEYS:
            raise ConfigError("--api-keys-file", f"may hold at most {MAX_KEYS} keys")
        names, keys = set[str](), dict[str, str]()
        for entry in self.api_keys:
            if entry.name in names:
                raise ConfigError("--api-keys-file", f"two keys are named {entry.name!r}")
            if entry.key in keys:
                raise ConfigError("--api-keys-file", f"{keys[entry.key]!r} and {entry.name!r} have the same key")
            names.add(entry.name)
            keys[entry.key] = entry.name


def check_url(name: str, url: str) -> None:
    """Raises ConfigError unless it is the URL of an HTTP server."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or plain(url) != url or " " in url:
        raise ConfigError(name, "must be the URL of an HTTP server, such as http://127.0.0.1:4318")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(name, f"must be one of {', '.join(choices)}")


def _check_at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(name, f"must be an integer of {least} or more")
