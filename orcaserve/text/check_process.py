"""A process that compiles grammars of clients and says how that went: `python -m orcaserve.text.check_process`.

The library is given whatever a client sends. Its limits hold for what it counts; for all else (a stack that overflows,
memory, time) there are those of the system, and this process, which nothing depends on.

    standard input: a line with the vocabulary, then a line for each grammar: [kind, text]
    standard output: a line when it is ready, then for each grammar a line: null, or why it is refused

It ends with its input, and with its parent.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

from orcaserve.core.errors import InvalidRequest
from orcaserve.core.grammar import Grammar, GrammarKind
from orcaserve.process import die_with_parent, name_process
from orcaserve.text.compiler import TOO_COMPLEX, Compiler
from orcaserve.text.vocabulary import Vocabulary

MAX_SECONDS = 0.5  # of a processor for one grammar; a worker that runs requests will need as long
CPU_SECONDS = 2  # after which the kernel ends this process
MORE_MEMORY = 512 * 2**20  # than the process has with its vocabulary
STACK = 2**20  # less than a worker's threads have: what does not overflow here does not there


def _run(answers: TextIO) -> None:
    compiler = Compiler(Vocabulary.from_json(sys.stdin.readline()))
    _limit_memory()
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        _limit_seconds()
        kind, text = json.loads(line)
        print(json.dumps(_verdict(compiler, GrammarKind(kind), text)), file=answers, flush=True)


def _verdict(compiler: Compiler, kind: GrammarKind, text: str) -> str | None:
    started = time.thread_time()
    try:
        compiler.compile(Grammar(kind, text))
    except InvalidRequest as error:
        return error.message
    return TOO_COMPLEX if time.thread_time() - started > MAX_SECONDS else None


def _limit_memory() -> None:
    with contextlib.suppress(OSError):  # elsewhere than on Linux
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + MORE_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _limit_seconds() -> None:
    used = int(time.process_time()) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used + CPU_SECONDS, resource.RLIM_INFINITY))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parent = parser.parse_args().parent
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not mix with them
    name_process("grammars")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if die_with_parent(parent, signal.SIGKILL):
        threading.stack_size(STACK)
        thread = threading.Thread(target=_run, args=(answers,), name="grammars")
        thread.start()
        thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
