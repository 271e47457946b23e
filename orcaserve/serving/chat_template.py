"""Chat templates: Jinja from a model's files, run in an immutable sandbox with limits on time and output.

A template is a program that came with a download and runs on what a client sent. It sees plain data only, cannot reach
Python's internals, and cannot run longer than MAX_SECONDS or write more than MAX_OUTPUT characters.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from types import FrameType
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import loopcontrols

from orcaserve.core.errors import CheckpointError, InvalidRequest
from orcaserve.serving.template_sandbox import Generation, Sandbox, begin_rendering, size_of

MAX_SECONDS = 2.0
MAX_OUTPUT = 8 * 2**20  # characters
MAX_MESSAGE = 200  # characters of a template's own complaint that are passed on
_REASONING = ("reasoning_content", "thinking", "reasoning")
_PROBE = "a-text-to-look-for"


class ChatTemplate:
    """A compiled chat template.

    source: Jinja text; special_tokens: `bos_token` and its like, which templates write.
    variables: names that the template looks for. literals: all text that stands in it, with NUL between pieces.
    Raises CheckpointError if the source is not a template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
            self.variables = frozenset(meta.find_undeclared_variables(tree))
        except (jinja2.TemplateError, RecursionError) as error:
            raise CheckpointError("the model's chat template is not valid Jinja") from error
        texts = {node.data for node in tree.find_all(nodes.TemplateData)}
        texts |= {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
        self.literals = "\0".join(sorted(texts))

    @cached_property
    def takes_parts(self) -> bool:
        """Whether it writes the texts of a content that is a list of parts, rather than the list."""
        return self._writes([{"type": "text", "text": _PROBE}])

    @cached_property
    def takes_text(self) -> bool:
        """Whether it writes a content that is a text."""
        return self._writes(_PROBE)

    @cached_property
    def takes_system(self) -> bool:
        """Whether it writes what a system message says."""
        return self._writes(_PROBE, "system", [{"role": "user", "content": "a"}])

    def knows(self, word: str) -> bool:
        """Whether it asks for a role, or writes one, of this name."""
        return word in self.literals.split("\0")

    def _writes(self, content: Any, role: str = "user", others: Sequence[Mapping[str, Any]] = ()) -> bool:
        try:
            text = self.render([{"role": role, "content": content}, *others])
        except InvalidRequest:
            return False
        return _PROBE in text and f"'{_PROBE}'" not in text and f'"{_PROBE}"' not in text

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **extra: Any) -> str:
        """The prompt for `messages` (plain data, `role` and `content` each). extra: further variables.

        Raises InvalidRequest with the template's own words if it refuses them, and with fixed words if it fails.
        """
        plain = [_with_reasoning({k: v for k, v in message.items() if v is not None}) for message in messages]
        names: dict[str, Any] = {"tools": None, "documents": None, **self._special_tokens, **extra}
        parts: list[str] = []
        size = 0
        try:
            begin_rendering()
            with _Deadline(MAX_SECONDS):
                for part in self._template.generate(
                    messages=plain, add_generation_prompt=add_generation_prompt, **names
                ):
                    size += len(part)
                    if size > MAX_OUTPUT:
                        raise InvalidRequest("messages", "the chat template writes too much for these messages")
                    parts.append(part)
        except _Refused as error:
            raise InvalidRequest("messages", f"the chat template refuses: {_shorten(str(error))}") from error
        except _TooSlow as error:
            raise InvalidRequest("messages", "the chat template takes too long for these messages") from error
        except InvalidRequest:
            raise
        except Exception as error:  # a template can raise anything; what it says may hold the client's text
            raise InvalidRequest("messages", "the chat template cannot render these messages") from error
        return "".join(parts)


class _Refused(Exception):
    """A template called raise_exception()."""


class _TooSlow(BaseException):
    """A template ran past its time. Not an Exception: nothing inside Jinja may swallow it."""


class _Deadline:
    """Ends the code of this thread with _TooSlow after `seconds`, at its next line or call.

    A trace function costs a template some microseconds and needs no process of its own. A single operation inside C
    is not interrupted, which is why the sandbox bounds those that can grow.
    """

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        if time.monotonic() > self._until:
            raise _TooSlow
        # Measuring is bounded by itself, and would take many times as long.
        return None if frame.f_code is size_of.__code__ else self._trace


def _environment() -> Sandbox:
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: object = "") -> None:
    raise _Refused(str(message))


def _strftime_now(pattern: str) -> str:
    if len(pattern) > MAX_MESSAGE:
        raise ValueError("a pattern for a time is short")
    return datetime.now().strftime(pattern)


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """What a model thought has several names; templates read one or the other. As transformers has it."""
    thought = next((message[name] for name in _REASONING if name in message), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}


def _shorten(message: str) -> str:
    words = " ".join(message.split())
    return words if len(words) <= MAX_MESSAGE else words[: MAX_MESSAGE - 1] + "…"
