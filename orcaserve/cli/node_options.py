"""Flags for several machines, and the secret that they share."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from orcaserve.config import MIN_SECRET, NodesConfig
from orcaserve.core.errors import ConfigError
from orcaserve.core.tls import TlsFiles


def numbers(text: str) -> tuple[int, ...]:
    """`8,7,8,7` -> (8, 7, 8, 7)."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 8,7,8,7") from error


def add_node_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "several machines",
        "The workers of -pp and -tp may run on several machines, each of which has the model's files. This one\n"
        "waits for the others, on which `orcaserve worker --join HOST:PORT` runs (docs/distributed.md).",
    )
    group.add_argument(
        "--nnodes", type=int, default=1, metavar="N", help="machines, this one included (default: %(default)s)"
    )
    group.add_argument(
        "--listen-workers", "--master-addr", metavar="HOST:PORT", help="where the others join; they must reach it"
    )
    group.add_argument(
        "--node-rank",
        type=int,
        default=0,
        metavar="R",
        help="0 serves; any other joins it at --master-addr, as `orcaserve worker` does (default: %(default)s)",
    )
    group.add_argument(
        "--worker-counts",
        type=numbers,
        metavar="N,N,...",
        help="workers of each machine, this one first; dealt stage by stage; default: as even as they come out",
    )
    add_secret_argument(group)


def add_secret_argument(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--secret-file",
        type=Path,
        metavar="FILE",
        help="holds the secret that all machines share (16 characters or more, readable by its owner only); needed on "
        "any address but loopback's; or ORCASERVE_SECRET in the environment",
    )
    for flag, what in (
        ("--tls-cert", "this machine's certificate, made out to DNS:orcaserve; with the next two, machines speak TLS "
         "and ask each other for certificates, instead of the secret or beside it"),
        ("--tls-key", "its private key, readable by its owner only"),
        ("--tls-ca", "the authority that has signed the certificates of all machines"),
    ):  # fmt: skip
        group.add_argument(flag, type=Path, metavar="FILE", help=what)


def read_tls(args: argparse.Namespace) -> TlsFiles | None:
    """None without the flags. Raises ConfigError if there are only some of them."""
    given = {flag: getattr(args, flag) for flag in ("tls_cert", "tls_key", "tls_ca")}
    if not any(given.values()):
        return None
    for flag, path in given.items():
        if path is None:
            raise ConfigError("--" + flag.replace("_", "-"), "is missing: all three --tls flags go together")
    return TlsFiles(*(Path(os.path.abspath(path)) for path in given.values()))


def read_secret(path: Path | None) -> str:
    """From the file, or else from the environment; empty without either. Raises ConfigError."""
    if path is None:
        secret = os.environ.get("ORCASERVE_SECRET", "").strip()
        if secret and len(secret) < MIN_SECRET:
            raise ConfigError("ORCASERVE_SECRET", f"must hold at least {MIN_SECRET} characters")
        return secret
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError("--secret-file", f"{path} is open to other users: chmod 600 {path}")
        secret = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError("--secret-file", f"{path} cannot be read: {reason}") from error
    if len(secret) < MIN_SECRET:
        raise ConfigError("--secret-file", f"must hold at least {MIN_SECRET} characters")
    return secret


def nodes_config(args: argparse.Namespace) -> NodesConfig:
    """Raises ConfigError. Verbs without these flags run on one machine."""
    if "nnodes" not in args or (args.nnodes, args.listen_workers, args.worker_counts) == (1, None, None):
        return NodesConfig()
    secret = read_secret(args.secret_file)
    return NodesConfig(args.nnodes, args.listen_workers, args.worker_counts, secret, read_tls(args))
