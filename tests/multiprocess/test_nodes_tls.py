"""Two machines that speak TLS with each other, and who is not let in; real processes, certificates made by openssl."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import Serve
from two_machines import FLOATS, LONG, Pair, Process, pair_of

from orcaserve.core.tls import TlsFiles

sys.path.insert(0, str(Path(__file__).parents[1]))
from certificates import Authority

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl"),
]


def flags(files: TlsFiles) -> tuple[str, ...]:
    return "--tls-cert", str(files.cert), "--tls-key", str(files.key), "--tls-ca", str(files.ca)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def pair(ours: Authority, served_model: Path) -> Iterator[Pair]:
    """Without a secret."""
    own = flags(ours.issue("server")), flags(ours.issue("node"))
    with pair_of(served_model, own=own, secret="") as pair:
        yield pair


def test_text_and_recovery_are_as_ever(pair: Pair, served_model: Path) -> None:
    one = Serve(str(served_model), "--port", "0", *FLOATS)
    try:
        expected = one.text(**LONG)
    finally:
        one.stop()
    (worker,) = pair.children(pair.node)
    stream = pair.streaming(**LONG)
    os.kill(worker, signal.SIGKILL)
    assert stream.result(240) == expected


def refused(*words: str) -> str:
    """The last line of a worker that is to end at once, for a setting."""
    started = time.monotonic()
    process = Process((), "worker", *words, secret="")
    assert process.end() == 2, process.text
    assert time.monotonic() - started < 25, "it is no hang"
    return process.log[-1].removeprefix("orcaserve: ").rstrip()


def test_who_is_not_let_in(
    pair: Pair, ours: Authority, served_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    join = ("--join", pair._join, "--model", str(served_model))
    stranger = Authority(tmp_path_factory.mktemp("other")).issue("stranger")
    line = refused(*join, *flags(stranger))
    assert line == f"--tls-ca: the certificate of {pair._join} is not of the authority in --tls-ca"
    old = ours.issue("old", expired=True)
    assert refused(*join, *flags(old)) == f"--tls-cert: {old.cert} has expired"
    assert refused(*join) == f"--tls-cert: {pair._join} speaks TLS: give --tls-cert, --tls-key and --tls-ca"
    assert refused(*join, "--tls-cert", str(old.cert)) == "--tls-key: is missing: all three --tls flags go together"
    gone = TlsFiles(old.cert, old.key, old.ca.with_name("gone"))
    assert refused(*join, *flags(gone)) == f"--tls-ca: {gone.ca} cannot be read: No such file or directory"


def test_a_server_whose_files_are_of_no_use_does_not_wait_for_anybody(ours: Authority, served_model: Path) -> None:
    old = ours.issue("old", expired=True)
    cut = ("-pp", "2", "--nnodes", "2", "--listen-workers", "127.0.0.1:7763", "--port", "0")
    process = Process((), "serve", str(served_model), *cut, *flags(old), secret="")
    assert process.end() == 2, process.text
    assert process.log[-1] == f"orcaserve: --tls-cert: {old.cert} has expired\n"


def test_beyond_loopback_certificates_do_instead_of_a_secret(ours: Authority, served_model: Path) -> None:
    """It gets as far as to find that the address is none of this machine's."""
    cut = ("-pp", "2", "--nnodes", "2", "--listen-workers", "192.0.2.1:7000", "--port", "0")
    process = Process((), "serve", str(served_model), *cut, *flags(ours.issue("server")), secret="")
    assert process.end() == 2, process.text
    assert process.log[-1].startswith("orcaserve: --listen-workers: cannot listen on 192.0.2.1:7000"), process.text
