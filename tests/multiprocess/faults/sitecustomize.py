"""For processes that are started with this folder on PYTHONPATH: an iteration raises where a test wants it to.

FAULTS_AT      the role of the process in which it does: `engine`, or a worker's STAGE,SHARD
FAULTS_TOKEN   whenever a request with this token id in its prompt is admitted
FAULTS_FILE    once for each time that this file appears, after so many further iterations as it says: it is removed
"""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

WHERE = "orcaserve.worker.worker"


def role() -> str:
    words = sys.orig_argv
    return words[words.index("--place") + 1] if "--place" in words else "engine"


def faulty(run: Any) -> Any:
    token, file = int(os.environ.get("FAULTS_TOKEN", "-1")), Path(os.environ.get("FAULTS_FILE", ""))
    left: int | None = None

    def run_or_raise(self: Any, batch: Any) -> Any:
        prompts = [e.tokens[: len(e.tokens) - e.n_output] for e in batch.entries if e.params is not None]
        if any(token in prompt for prompt in prompts):
            raise RuntimeError("a fault that a request causes")
        nonlocal left
        if left is None and file.is_file():
            left = int(file.read_text())
        if left == 0:
            left = None
            file.unlink()
            raise RuntimeError("a fault by chance")
        if left is not None:
            left -= 1
        return run(self, batch)

    return run_or_raise


class Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != WHERE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_change(module: Any) -> None:
            execute(module)
            module.Worker.run = faulty(module.Worker.run)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


if os.environ.get("FAULTS_AT") == role():
    sys.meta_path.insert(0, Finder())

# Whoever has a module of this name as well keeps it.
own = os.path.dirname(os.path.abspath(__file__))
for folder in sys.path:
    other = os.path.join(folder, "sitecustomize.py")
    if os.path.abspath(folder) != own and os.path.exists(other):
        found = spec_from_file_location("sitecustomize", other)
        assert found is not None and found.loader is not None
        found.loader.exec_module(module_from_spec(found))
        break
