"""A server and one client's environment: what a client's run has at hand."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from environment import Environment

REPOSITORY = Path(__file__).parents[2]
SHOWN_ADDRESS = "127.0.0.1:8000"  # what stands for the server's in commands that people read
SECONDS = 900.0  # a command's, unless said otherwise


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended. code: None if its time was up."""

    code: int | None
    out: str
    err: str

    @property
    def last_words(self) -> str:
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1][:300] if lines else "no output"

    @property
    def problem(self) -> str | None:
        """Why it did not end well, in a line; None if it did."""
        if self.code is None:
            return f"took too long: {self.last_words}"
        return None if self.code == 0 else f"exit code {self.code}: {self.last_words}"


@dataclass(frozen=True, slots=True)
class Bench:
    """base: http://host:port. work: the folder that commands run in; a folder of the model's name in it holds the
    model's tokenizer, where tools that ask a hub for it look first. commands: what has been run, as people type it.
    """

    base: str
    model: str
    work: Path
    environment: Environment
    commands: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.base.removeprefix("http://")

    def call(
        self,
        *command: str,
        through: Path | None = None,
        variables: Mapping[str, str] | None = None,
        seconds: float = SECONDS,
    ) -> Finished:
        """Run a command of the client's environment in the work folder; what it said is kept there.

        through: a program of ours that is run in place of the command's first word. variables: of the environment.
        """
        said = [*(f"{name}={value}" for name, value in (variables or {}).items()), shlex.join(command)]
        self.commands.append(" ".join(said).replace(self.address, SHOWN_ADDRESS).replace(f"{REPOSITORY}/", ""))
        started = [*self.environment.command(through), *command[1:]] if through else command
        return self._run(started, variables or {}, seconds)

    def program(self, script: Path, *arguments: str, seconds: float = SECONDS) -> Finished:
        """Run a program of ours with the client's interpreter."""
        return self.call(script.name, *arguments, through=script, seconds=seconds)

    def _run(self, command: Sequence[str], variables: Mapping[str, str], seconds: float) -> Finished:
        name = f"{len(self.commands)}-{Path(command[0]).name}"
        out, err = self.work / f"{name}.out", self.work / f"{name}.err"
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                command, cwd=self.work, env={**self.environment.variables(), **variables}, stdin=subprocess.DEVNULL,
                stdout=stdout, stderr=stderr, start_new_session=True,
            )  # fmt: skip
            code: int | None
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
        return Finished(code, out.read_text(errors="replace"), err.read_text(errors="replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and whatever it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
