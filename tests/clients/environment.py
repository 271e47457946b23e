"""Environments: each client in a folder of its own, reused between runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CONSTRAINTS = Path(__file__).with_name("constraints.txt")
INSTALL_SECONDS = 3600
STAMP = "requirements"  # a file with what was installed: written last, so that half an environment is none
# What would lead a client to other packages than its own environment's
OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


class CannotInstall(Exception):
    """One line that says why."""


class Environment(Protocol):
    def install(self, upgrade: bool) -> None:
        """Make it what is asked for, if it is not. Raises CannotInstall."""

    def version(self) -> str:
        """The client's."""

    def command(self, script: Path) -> list[str]:
        """How a program of ours runs in it."""

    def variables(self) -> Mapping[str, str]:
        """Environment variables for what runs in it."""


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """A virtual environment with the newest releases that fit together.

    module: what a program imports of the client. requirements: none for an environment that was given. least: the
    oldest Python that will do. without: packages that are taken out again.
    """

    folder: Path
    module: str
    requirements: tuple[str, ...]
    least: tuple[int, int] = (3, 11)
    without: tuple[str, ...] = ()

    def install(self, upgrade: bool) -> None:
        if not self.requirements or _is_installed(self.folder, self.requirements, upgrade):
            return
        if not (upgrade and self.python.exists()):
            shutil.rmtree(self.folder, ignore_errors=True)  # half of one, or of other requirements
            _run([_find_python(self.least), "-m", "venv", str(self.folder)])
        pip = [str(self.python), "-m", "pip"]
        install = [*pip, "install", "--quiet", "--constraint", str(CONSTRAINTS), *(["--upgrade"] if upgrade else [])]
        _run([*install, *self.requirements])
        if self.without:
            _run([*pip, "uninstall", "--quiet", "--yes", *self.without])
        (self.folder / STAMP).write_text("\n".join(self.requirements))

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def version(self) -> str:
        code = (
            "from importlib.metadata import packages_distributions as names, version;"
            f"print(version(names()[{self.module!r}][0]))"
        )
        return _run([str(self.python), "-c", code]).strip()

    def command(self, script: Path) -> list[str]:
        return [str(self.python), str(script)]

    def variables(self) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in OURS}
        return {**kept, "PATH": f"{self.folder / 'bin'}:{kept['PATH']}"}


@dataclass(frozen=True, slots=True)
class NodeEnvironment:
    """A folder with node_modules."""

    folder: Path
    module: str
    requirements: tuple[str, ...]

    def install(self, upgrade: bool) -> None:
        for tool in ("node", "npm"):
            if shutil.which(tool) is None:
                raise CannotInstall(f"{tool} is not on this machine")
        if _is_installed(self.folder, self.requirements, upgrade):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "package.json").write_text('{"private": true, "type": "module"}')
        _run(["npm", "install", "--silent", "--prefix", str(self.folder), *self.requirements])
        (self.folder / STAMP).write_text("\n".join(self.requirements))

    def version(self) -> str:
        """With Node's, by which npm chooses releases."""
        package = json.loads((self.folder / "node_modules" / self.module / "package.json").read_text())
        return f"{package['version']} (node {_run(['node', '--version']).strip().removeprefix('v')})"

    def command(self, script: Path) -> list[str]:
        """Node looks for packages from where the program lies."""
        shutil.copy(script, self.folder)
        return ["node", str(self.folder / script.name)]

    def variables(self) -> Mapping[str, str]:
        return os.environ


def _find_python(least: tuple[int, int]) -> str:
    """Ours, or the oldest on this machine that will do. Raises CannotInstall."""
    major, minor = least
    names = [sys.executable, *(f"python{major}.{n}" for n in range(minor, minor + 4)), f"python{major}"]
    code = f"import sys; sys.exit(sys.version_info < {least})"
    for name in names:
        if shutil.which(name) and subprocess.run([name, "-c", code], capture_output=True, check=False).returncode == 0:
            return name
    raise CannotInstall(f"it needs Python {major}.{minor} or newer, which is not on this machine")


def _is_installed(folder: Path, requirements: Sequence[str], upgrade: bool) -> bool:
    stamp = folder / STAMP
    if not upgrade and stamp.exists() and stamp.read_text() == "\n".join(requirements):
        return True
    stamp.unlink(missing_ok=True)
    return False


def _run(command: Sequence[str]) -> str:
    """Its output. Raises CannotInstall with its last words."""
    variables = {name: value for name, value in os.environ.items() if name not in OURS}
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(str(error)) from error
    if done.returncode:
        words = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
        errors = [line for line in words if line.lower().startswith("error")] or words[-1:]
        raise CannotInstall((errors or [f"exit code {done.returncode}"])[0][:300])
    return done.stdout
