"""`orcaserve worker`: this machine runs a part of a model that another one serves."""

from __future__ import annotations

import argparse
import logging
import os
import signal
from pathlib import Path
from types import FrameType

from orcaserve.checkpoint.locate import DEFAULT_MODEL, locate_model
from orcaserve.cli.log_options import add_log_arguments
from orcaserve.cli.node_options import add_secret_argument, read_secret, read_tls
from orcaserve.core.errors import ConfigError
from orcaserve.logs import set_up

JOIN_TIMEOUT = 30.0  # s


class _Stop(BaseException):
    """SIGTERM came: the usual end."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Join the engine of `orcaserve serve --nnodes N --listen-workers HOST:PORT` on another machine, which says\n"
        "which part of the model to run. When that engine fails, or the network between, join the next one.\n"
        "Ctrl-C ends it, or the end of the server does."
    )
    parser.epilog = "example: orcaserve worker --join 10.0.0.1:7000 --secret-file secret --model model.gguf"
    parser.add_argument(
        "--join", "--master-addr", required=True, metavar="HOST:PORT", help="the server's --listen-workers"
    )
    parser.add_argument(
        "-m", "--model-path", "--model", dest="model", metavar="MODEL",
        help=f"the same model as the server's, on this machine; default: {DEFAULT_MODEL}",
    )  # fmt: skip
    parser.add_argument("-t", "--threads", type=int, metavar="N",
                        help="CPU threads of each worker; default: the cores this process may use, divided among all "
                        "workers of the engine")  # fmt: skip
    add_secret_argument(parser.add_argument_group("who may join"))
    parser.add_argument("--node-rank", type=int, default=0, metavar="R",
                        help="which machine this is, from 1 (the server is 0); default: whichever is free")  # fmt: skip
    parser.add_argument("--join-timeout", type=float, default=JOIN_TIMEOUT, metavar="SECONDS",
                        help="give up if the server is not found at first (default: %(default)g)")  # fmt: skip
    parser.add_argument("--worker-timeout", type=float, default=30.0, metavar="SECONDS",
                        help="a server that answers no ping for so long is lost (default: %(default)g)")  # fmt: skip
    add_log_arguments(parser.add_argument_group("log"))


def run(args: argparse.Namespace) -> int:
    if args.node_rank < 0:
        raise ConfigError("--node-rank", "must be 1 or more")
    if args.threads is not None and args.threads < 1:
        raise ConfigError("--threads", "must be 1 or more")
    for name, value, least in (("--join-timeout", args.join_timeout, 0), ("--worker-timeout", args.worker_timeout, 1)):
        if not least <= value <= 86400:
            raise ConfigError(name, f"must be from {least} to 86400 seconds")
    return run_node(args, args.join, args.model, args.join_timeout)


def run_node(args: argparse.Namespace, join: str, model: str | None, join_timeout: float) -> int:
    """args: with the flags that `serve` has as well."""
    from orcaserve.node.agent import NodeAgent, NodeSettings
    from orcaserve.process import name_process

    name_process("node")
    set_up(args.log_level, args.log_format, "node")
    settings = NodeSettings(
        join=join,
        model=Path(os.path.abspath(locate_model(model))),
        secret=read_secret(args.secret_file),
        tls=read_tls(args),
        threads=args.threads,
        rank=args.node_rank,
        join_timeout=join_timeout,
        worker_timeout=args.worker_timeout,
    )
    signal.signal(signal.SIGTERM, _stop)
    try:
        NodeAgent(settings).run()
    except _Stop:
        logging.getLogger("orcaserve").info("told to end")
    return 0


def _stop(signum: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stop
