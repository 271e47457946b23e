"""GrammarChecker: whether grammars of clients compile, found out in a process apart, and remembered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import select
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from orcaserve.core.errors import SERVER_STOPPING, InvalidRequest
from orcaserve.core.grammar import Grammar
from orcaserve.process import child_environment
from orcaserve.text.vocabulary import Vocabulary

MODULE = "orcaserve.text.check_process"  # by name only: the library of grammars is not needed here
START = 60.0  # s until it is ready
WAIT = 20.0  # s for an answer; the process limits itself to a few seconds of a processor
MAX_WAITING = 64  # grammars that wait to be compiled
MAX_VERDICTS = 256
MAX_VERDICT_CHARACTERS = 2**21  # of the texts of the grammars that are remembered

TOO_COSTLY = "the grammar takes too long or too much memory to compile"

_log = logging.getLogger(__name__)


class GrammarChecker:
    """Used from one event loop. The process is started when there is a first grammar, and again when it has died."""

    def __init__(self, read_vocabulary: Callable[[], Vocabulary]) -> None:
        self._read_vocabulary = read_vocabulary
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")  # the process ends with it
        self._process: subprocess.Popen[bytes] | None = None
        self._verdicts: OrderedDict[Grammar, str | None] = OrderedDict()  # the one that was used last at the end
        self._n_waiting = 0
        self._closed = False

    async def check(self, grammar: Grammar, field: str | None) -> None:
        """Returns if it compiles. Raises InvalidRequest for `field` if not, or (503) if too many others wait."""
        if grammar in self._verdicts:
            self._verdicts.move_to_end(grammar)
            verdict = self._verdicts[grammar]
        else:
            if self._n_waiting >= MAX_WAITING:
                raise InvalidRequest(None, "too many grammars wait to be compiled", code="overloaded", status=503)
            self._n_waiting += 1
            try:
                verdict = await asyncio.get_running_loop().run_in_executor(self._thread, self._find_out, grammar)
            finally:
                self._n_waiting -= 1
        if verdict is not None:
            raise InvalidRequest(field, verdict, code="invalid_grammar")

    def close(self) -> None:
        """End the process, whatever it does. Idempotent."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()  # whoever waits for its answer does so no longer
        self._thread.shutdown(cancel_futures=True)
        if process is not None:
            self._end(process)

    def _find_out(self, grammar: Grammar) -> str | None:
        """On the thread."""
        if grammar in self._verdicts:  # another request had it checked meanwhile
            return self._verdicts[grammar]
        verdict = self._ask(grammar)
        self._verdicts[grammar] = verdict
        size = sum(len(known.text) for known in self._verdicts)
        while len(self._verdicts) > MAX_VERDICTS or size > MAX_VERDICT_CHARACTERS:
            size -= len(self._verdicts.popitem(last=False)[0].text)
        return verdict

    def _ask(self, grammar: Grammar) -> str | None:
        process = self._process or self._start()
        answer = self._say(process, json.dumps([grammar.kind.value, grammar.text]), WAIT)
        if answer is not None:
            verdict = json.loads(answer)
            assert verdict is None or isinstance(verdict, str)
            return verdict
        hangs = process.poll() is None and not self._closed
        self._end(process)
        if hangs:  # it has not even used up its share of a processor
            raise InvalidRequest(None, "grammars take too long to compile now", code="overloaded", status=503)
        return TOO_COSTLY

    def _start(self) -> subprocess.Popen[bytes]:
        """Raises InvalidRequest (5xx) if that does not go well, whatever the grammar is."""
        if self._closed:
            raise InvalidRequest(None, SERVER_STOPPING, code="stopping", status=503)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, "--parent", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # where the library would print pieces of grammars
                env=child_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise InvalidRequest(None, "no process can be started to compile grammars", "no_room", 503) from error
        self._process = process
        if self._say(process, self._read_vocabulary().to_json(), START) is None:
            self._end(process)
            _log.error("the process that compiles grammars does not start: %s -m %s tells why", sys.executable, MODULE)
            raise InvalidRequest(None, "grammars cannot be compiled now", code="internal_error", status=500)
        return process

    @staticmethod
    def _say(process: subprocess.Popen[bytes], line: str, seconds: float) -> bytes | None:
        """The line it answers; None if it does not, in the time or at all."""
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: there will be no answer
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        answer = process.stdout.readline() if ready else b""
        if ready and not answer:
            process.wait()
        return answer or None

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        code = process.wait()
        if not self._closed:
            _log.warning("the process that compiles grammars has ended with code %d; there will be another", code)
        self._process = None
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
