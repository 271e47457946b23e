"""A model over two machines: what one gives, with a cable that is slow or cut; and who is not let in."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from server_process import Serve
from slow_cable import SlowCable
from two_machines import FLOATS, LONG, SECRET, Pair, Process, pair_of

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, and uses network namespaces"),
]
PROMPTS = ("a", "the sea is", "0123456789 " * 4)
FEW = 10  # tokens
HOSTS, SLOW_HOSTS = ("10.213.77.1", "10.213.77.2"), ("10.213.78.1", "10.213.78.2")


@contextmanager
def one_process(model: Path) -> Iterator[Serve]:
    serve = Serve(str(model), "--port", "0", *FLOATS)
    try:
        yield serve
    finally:
        serve.stop()


@pytest.fixture(scope="module")
def expected(served_model: Path) -> dict[str, str]:
    """Texts of one process."""
    with one_process(served_model) as serve:
        texts = {prompt: serve.text(prompt, max_tokens=40) for prompt in PROMPTS}
        return texts | {LONG["prompt"]: serve.text(**LONG), "few": serve.text("few", max_tokens=FEW)}


@pytest.fixture(scope="module")
def pair(served_model: Path) -> Iterator[Pair]:
    """Both machines being this one. At the end the server says goodbye, and nothing is left."""
    with pair_of(served_model) as pair:
        yield pair


def check(pair: Pair, expected: dict[str, str]) -> None:
    for prompt in PROMPTS:
        assert pair.complete(prompt=prompt, max_tokens=40) == expected[prompt]


def listening(pid: int) -> set[str]:
    """Addresses at which a process listens, in the kernel's notation."""
    try:
        own = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
    except FileNotFoundError:
        return set()
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines() for name in ("tcp", "tcp6")]
    rows = [line.split() for lines in tables for line in lines]
    return {row[1].split(":")[0][-8:] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}


def test_two_machines_give_the_text_of_one_process(pair: Pair, expected: dict[str, str]) -> None:
    check(pair, expected)
    pids = [*pair.children(pair.serve), *pair.children(pair.node)]
    addresses = set().union(*map(listening, pids))
    assert addresses == {"0100007F"}, "nothing listens at another address than the one chosen"
    for pid in pids:
        assert SECRET.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_worker_of_the_other_machine_dies_and_streams_go_on(pair: Pair, expected: dict[str, str]) -> None:
    (worker,) = pair.children(pair.node)
    stream = pair.streaming(**LONG)
    os.kill(worker, signal.SIGKILL)
    assert not stream.done()
    assert stream.result(240) == expected[LONG["prompt"]]
    pair.serve.says(rf"worker s1r0 \(process {worker} on .* \(127.0.0.1\)\) was ended by SIGKILL")


def test_the_other_machine_dies_and_another_takes_its_place(pair: Pair, expected: dict[str, str]) -> None:
    stream = pair.streaming(**LONG)
    pair.node.end(signal.SIGKILL)
    assert not stream.done()
    pair.serve.says(r"the engine has failed: the machine .* \(127.0.0.1\) is gone")
    pair.node = pair.join(by_rank=True)
    assert stream.result(240) == expected[LONG["prompt"]]


@pytest.mark.parametrize("counts", ["2,2", "3,1"])
def test_shards_on_one_machine_and_on_two(counts: str, served_odd_model: Path) -> None:
    """Whoever is on the same machine shares memory, and others are reached over the network."""
    with one_process(served_odd_model) as serve:
        texts = {prompt: serve.text(prompt, max_tokens=40) for prompt in PROMPTS}
    with pair_of(served_odd_model, cut=("-pp", "2", "-tp", "2", "--worker-counts", counts)) as pair:
        check(pair, texts)
        pids = pair.children(pair.serve) + pair.children(pair.node)
        sharing = [pid for pid in pids if "memfd:orcaserve" in Path(f"/proc/{pid}/maps").read_text()]
        assert len(sharing) == (4 if counts == "2,2" else 3)


def test_the_server_is_full(pair: Pair, served_model: Path) -> None:
    late = Process((), "worker", "--join", pair._join, "--model", str(served_model), "--join-timeout", "1")
    assert late.end() == 1
    assert late.log[-1].startswith(f"orcaserve: {pair._join}: the engine has all its machines (tried for 1 s")


@pytest.fixture(scope="module")
def waiting(served_model: Path) -> Iterator[Process]:
    """A server whose other machine does not come."""
    flags = ("-pp", "2", "--nnodes", "2", "--listen-workers", "127.0.0.1:7762", "--port", "0", *FLOATS)
    serve = Process((), "serve", str(served_model), *flags)
    try:
        serve.says("waiting for 1 other")
        yield serve
        assert serve.process.poll() is None
        assert serve.end(signal.SIGTERM) == 0
    finally:
        serve.process.kill()


def refused(code: int, *flags: str, secret: str = SECRET, verb: str = "worker") -> str:
    """The one line of a command that is to end at once."""
    started = time.monotonic()
    process = Process((), verb, *flags, secret=secret)
    assert process.end() == code, process.text
    assert len(process.log) == 1, process.text
    assert time.monotonic() - started < 25
    return process.text.removeprefix("orcaserve: ").rstrip()


def test_who_is_not_let_in(waiting: Process, served_model: Path, odd_model: Path, tmp_path: Path) -> None:
    join, own = ("--join", "127.0.0.1:7762"), ("--model", str(served_model))
    line = refused(2, *join, *own, secret="another secret, as long")
    assert line == "--secret-file: is not the secret of 127.0.0.1:7762: give every machine the same"
    line = refused(2, *join, "--model", str(odd_model))
    assert line.startswith("--model: is llama, layers 5, hidden size 64,") and "but llama, layers 2," in line
    trained = tmp_path / "trained"
    shutil.copytree(served_model, trained)
    data = bytearray((trained / "model.safetensors").read_bytes())
    data[-1] ^= 1  # of the last norm
    (trained / "model.safetensors").write_bytes(data)
    assert "has the server's architecture but other weights" in refused(2, *join, "--model", str(trained))
    assert refused(2, *join, *own, "--node-rank", "2").startswith("--node-rank: must be from 1 to 1")


def test_another_version_is_refused(waiting: Process, served_model: Path) -> None:
    code = (
        "import sys, orcaserve.version as v; v.__version__ = '0.0.1'; from orcaserve.cli.main import main; "
        f"sys.exit(main(['worker', '--join', '127.0.0.1:7762', '--model', {str(served_model)!r}]))"
    )
    environment = {**os.environ, "ORCASERVE_SECRET": SECRET}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert ended.returncode == 1
    assert ended.stderr.startswith("orcaserve: orcaserve is 0.0.1 here, ") and ended.stderr.count("\n") == 1


def test_nobody_there(served_model: Path) -> None:
    line = refused(1, "--join", "127.0.0.1:9", "--model", str(served_model), "--join-timeout", "1")
    assert line == "no engine at 127.0.0.1:9: nobody answers (tried for 1 s; see --join)"


@pytest.mark.parametrize(
    ("flags", "secret", "words"),
    [
        (("--listen-workers", "192.0.2.1:7000"), "", "--listen-workers: 192.0.2.1 is open to other machines: give --"),
        (("--listen-workers", "192.0.2.1:7000"), SECRET, "--listen-workers: cannot listen on 192.0.2.1:7000"),
        (("--listen-workers", "192.0.2.1:7000"), "short", "ORCASERVE_SECRET: must hold at least 16 characters"),
        ((), SECRET, "--listen-workers: say where the other machines are to join: HOST:PORT"),
        (("--listen-workers", "7000"), SECRET, "--listen-workers: '7000' is not HOST:PORT, such as 10.0.0.1:7000"),
        (("--listen-workers", "127.0.0.1:7000", "-tp", "1", "-pp", "1"), SECRET, "--nnodes: must be at most the 1 "),
        (("--listen-workers", "127.0.0.1:7000", "--worker-counts", "2,2"), SECRET, "--worker-counts: must add up to "),
    ],
)  # fmt: skip
def test_wrong_settings(flags: tuple[str, ...], secret: str, words: str, served_model: Path) -> None:
    command = (str(served_model), "--port", "0", "-pp", "2", "--nnodes", "2", *flags, *FLOATS)
    process = Process((), "serve", *command, secret=secret)
    assert process.end() == 2, process.text
    assert process.log[-1].startswith(f"orcaserve: {words}"), process.text


def test_an_open_secret_is_refused(tmp_path: Path, served_model: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o644)
    line = refused(2, "--join", "127.0.0.1:9", "--model", str(served_model), "--secret-file", str(path))
    assert line == f"--secret-file: {path} is open to other users: chmod 600 {path}"


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[str, str]]:
    """Names of two network namespaces, joined by a cable (a veth pair) whose ends are named as they are."""
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip (package iproute2)")
    names = (f"orca{os.getpid()}a", f"orca{os.getpid()}b")
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", "name", names[1], "netns", names[1])
        except OSError as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        for name, address in zip(names, HOSTS, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", name)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", name, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@pytest.fixture(scope="module")
def far(hosts: tuple[str, str], served_model: Path) -> Iterator[Pair]:
    inside = tuple(("ip", "netns", "exec", name) for name in hosts)
    with pair_of(served_model, HOSTS[0], inside, timeout="6") as pair:
        yield pair


def test_over_a_cable(far: Pair, expected: dict[str, str]) -> None:
    check(far, expected)


def test_a_cut_cable(far: Pair, hosts: tuple[str, str], expected: dict[str, str]) -> None:
    stream = far.streaming(**LONG)
    ip("-n", hosts[1], "link", "set", hosts[1], "down")
    cut = time.monotonic()
    far.serve.says(rf"the engine has failed: .*\({HOSTS[1]}\).*(has not answered for 6 s|is gone)", 30)
    print(f"noticed after {time.monotonic() - cut:.1f} s")
    far.serve.says(r"(?s)the engine has failed.*waiting for 1 other", 60)
    assert not stream.done()
    ip("-n", hosts[1], "link", "set", hosts[1], "up")
    assert stream.result(240) == expected[LONG["prompt"]]


@pytest.fixture(scope="module")
def slow(hosts: tuple[str, str], served_model: Path) -> Iterator[tuple[Pair, SlowCable]]:
    """The same over a cable whose packets we carry by hand, so that a delay needs nothing of the kernel but TUN."""
    try:
        cable = SlowCable(hosts, "slow")
    except OSError as error:
        pytest.skip(f"TUN devices cannot be made here: {error}")
    for name, address in zip(hosts, SLOW_HOSTS, strict=True):
        ip("-n", name, "address", "add", f"{address}/24", "dev", "slow")
        ip("-n", name, "link", "set", "slow", "up")
    inside = tuple(("ip", "netns", "exec", name) for name in hosts)
    cable.delay = 0.02
    with pair_of(served_model, SLOW_HOSTS[0], inside) as pair:
        yield pair, cable
    for name in hosts:
        ip("-n", name, "link", "set", "slow", "down")
    cable.close()


@pytest.mark.parametrize("delay", [0.02, 0.2])
def test_over_a_slow_cable(delay: float, slow: tuple[Pair, SlowCable], expected: dict[str, str]) -> None:
    pair, cable = slow
    cable.delay = delay
    started = time.monotonic()
    assert pair.complete(prompt="few", max_tokens=FEW) == expected["few"]
    took = time.monotonic() - started
    print(f"{took / FEW * 1000:.0f} ms for a token at {delay * 1000:.0f} ms each way")
    assert took > FEW * 2 * delay, "a token goes there and back"
    cable.delay = 0.02
