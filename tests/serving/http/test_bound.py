"""The address that is listened on: a Unix socket that a killed server left behind is taken over, nothing else is."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from orcaserve.config import ServingConfig
from orcaserve.core import ConfigError
from orcaserve.serving.endpoint import _bound

KILLED = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
os.kill(os.getpid(), 9)
"""


def test_a_socket_is_made_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with _bound(ServingConfig(uds=str(path))) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert listener.getsockname() == str(path)
    assert not path.exists()


def test_the_socket_of_a_killed_server_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "s"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert path.is_socket()
    test_a_socket_is_made_and_removed(tmp_path)


def test_the_socket_of_a_running_server_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with _bound(ServingConfig(uds=str(path))):
        with pytest.raises(ConfigError, match="in use"), _bound(ServingConfig(uds=str(path))):
            pass
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="in use"), _bound(ServingConfig(uds=str(path))):
        pass
    assert path.read_text() == "precious"
