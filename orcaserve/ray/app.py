"""Our endpoint as an application of Ray Serve: replicas, each with an engine, as many as the queue's tokens need.

serve run orcaserve.ray.app:app
serve run orcaserve.ray.app:build_app model=model.gguf max_replicas=4 num_cpus=8
serve.run(build_app({"model": "model.gguf", "max_replicas": 4, "num_cpus": 8}))
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray
from ray import serve

from orcaserve.cli.main import Parser
from orcaserve.cli.options import engine_config
from orcaserve.cli.serve import add_arguments, serving_config
from orcaserve.config import EngineConfig
from orcaserve.core.errors import ConfigError
from orcaserve.ray.autoscaling import SLOTS, TOKENS, TokensPolicy
from orcaserve.serving.hosted import HostedEndpoint

NAME = "orcaserve"
MAX_ONGOING = 10_000  # requests of a replica: they wait in its engine, whose queue is the one that is counted in tokens
SHUTDOWN_SECONDS = 600.0  # for the requests of a replica that is no longer needed
NOT_HERE = (
    "host", "port", "uds", "nnodes", "listen_workers", "master_addr", "node_rank", "worker_counts",
    "files_dir", "max_files_bytes", "shutdown_timeout", "shutdown_grace", "log_format",
)  # fmt: skip
NUMBERS: dict[str, float] = {
    "min_replicas": 1,
    "max_replicas": 4,
    "tokens_per_replica": 0,
    "num_cpus": 1,
    "upscale_delay_s": 5,
    "downscale_delay_s": 300,
    "metrics_interval_s": 2,
    "look_back_period_s": 10,
}
"""Settings of the deployment, and what they are if nothing is said. Every other one is a flag of `orcaserve serve`."""


class OrcaServe:
    """A replica: endpoint and supervisor, whose engine is a process of its own (or a group of workers)."""

    def __init__(self, words: list[str], cpus: int) -> None:
        """words: flags of `orcaserve serve`. cpus: what threads share, if no flag says how many there are."""
        args = _parse(words)
        engine = _own(engine_config(args), args.data_parallel_size, cpus)
        serving = serving_config(args)
        logging.getLogger("orcaserve").setLevel(args.log_level.upper())
        self._endpoint = HostedEndpoint(serving, engine)

    def __serve_build_asgi_app__(self) -> HostedEndpoint:
        return self._endpoint

    def record_autoscaling_stats(self) -> dict[str, float]:
        return {TOKENS: self._endpoint.n_tokens, SLOTS: self._endpoint.n_slots}

    def check_health(self) -> None:
        """Ray Serve starts another replica in place of one that raises here."""
        if (reason := self._endpoint.why_not_healthy) is not None:
            raise RuntimeError(reason)


def build_app(args: Mapping[str, Any] | None = None) -> serve.Application:
    """An application for `serve.run`. args: NUMBERS, and flags of `orcaserve serve` without their dashes.

    tokens_per_replica: prompt + max_tokens of unfinished requests for which a replica is wanted; 0: as many as its K/V
    region has slots. num_cpus: of a replica. The model is read (or fetched) by each replica on its machine.
    Raises ConfigError.
    """
    settings, words = dict(NUMBERS), list[str]()
    for name, value in (args or {}).items():
        if name in NUMBERS:
            settings[name] = _number(name, value)
        elif name.replace("-", "_") in NOT_HERE:
            raise ConfigError(name, "is Ray Serve's business, or needs a machine of its own: see `serve run --help`")
        else:
            words.append(f"--{name.replace('_', '-')}={value}")
    _parse(words)
    cpus, tokens = int(settings.pop("num_cpus")), int(settings.pop("tokens_per_replica"))
    policy = {
        "policy_function": f"{TokensPolicy.__module__}:{TokensPolicy.__name__}",
        "policy_kwargs": {"tokens_per_replica": tokens},
    }
    deployment = serve.deployment(
        name=NAME,
        max_ongoing_requests=MAX_ONGOING,
        graceful_shutdown_timeout_s=SHUTDOWN_SECONDS,
        ray_actor_options={"num_cpus": cpus},
        autoscaling_config={**settings, "policy": policy},
    )(serve.ingress()(OrcaServe))
    return deployment.bind(words, cpus)


def _own(config: EngineConfig, n_replicas: int, cpus: int) -> EngineConfig:
    """The engine's settings in a replica: with the CPUs that it asked for, and in the cluster that it is in."""
    parallel = replace(config.parallel, data_parallel_size=n_replicas)
    threads = config.model.threads or max(cpus // (parallel.n_workers * n_replicas), 1)
    cluster = config.ray
    if cluster is not None and cluster.address is None:
        cluster = replace(cluster, address=ray.get_runtime_context().gcs_address)
    return replace(config, model=replace(config.model, threads=threads), parallel=parallel, ray=cluster)


def _parse(words: list[str]) -> Any:
    class Raising(Parser):
        def error(self, message: str) -> Any:
            raise ConfigError("build_app", message)

    parser = Raising(prog="build_app", add_help=False)
    add_arguments(parser)
    return parser.parse_args(words)


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(name, f"{value!r} is not a number") from error
    if not 0 <= number < 10**12:
        raise ConfigError(name, "must be a number of 0 or more")
    return int(number) if number.is_integer() else number


app = build_app()
