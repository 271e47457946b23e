"""Calls in answers: a parser's events as OpenAI's API writes them, in a stream or in a whole message."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from orcaserve.serving.tool_calls.events import Arguments, CallBegins, CallBreaks, Content, Event
from orcaserve.serving.tool_calls.format import CallFormat
from orcaserve.serving.tool_calls.parser import CallParser

UNBOUNDED = 2**31


@dataclass(frozen=True, slots=True)
class CallReading:
    """How the answers of a request are read: for each choice a parser of its own.

    names: functions that may be called. most: calls of an answer. hidden: marks that content does not show.
    """

    form: CallFormat
    names: Collection[str]
    most: int
    hidden: Collection[str]

    def parser(self) -> CallParser:
        return self.form.parser(self.names, self.most, self.hidden)

    def message(self, text: str, finish_reason: str | None) -> tuple[dict[str, Any], str | None]:
        """The message that a whole text makes, and why it ended. What breaks off as a call is content."""
        parser = self.parser()
        events = [*parser.push(text), *parser.end(cut=finish_reason == "length")]
        content: list[str] = []
        calls: dict[int, dict[str, Any]] = {}
        for event in events:
            match event:
                case Content(text=more):
                    content.append(more)
                case CallBegins(index=index, name=name):
                    calls[index] = _call(self.form.new_id(), name)
                case Arguments(index=index, text=more):
                    calls[index]["function"]["arguments"] += more
                case CallBreaks(index=index, raw=raw):
                    del calls[index]
                    content.append(raw)
        said = "".join(content)
        message: dict[str, Any] = {"role": "assistant", "content": None if calls and not said else said}
        message["refusal"] = None
        if calls:
            message["tool_calls"] = list(calls.values())
        return message, reason_of(parser, finish_reason)


class StreamedCalls:
    """One choice of a stream."""

    def __init__(self, reading: CallReading) -> None:
        self._parser = reading.parser()
        self._silent = True
        self._new_id: Callable[[], str] = reading.form.new_id

    def deltas(self, text: str, finish_reason: str | None) -> list[str]:
        """What each event's delta holds, as JSON."""
        events = self._parser.push(text)
        if finish_reason:
            events += self._parser.end(cut=finish_reason == "length")
            if self._silent and not events:
                events = [Content("")]  # an answer of nothing is an empty text
        self._silent = self._silent and not events
        return [delta for event in events if (delta := self._delta(event))]

    def reason(self, finish_reason: str | None) -> str | None:
        return reason_of(self._parser, finish_reason)

    def _delta(self, event: Event) -> str:
        match event:
            case Content(text=text):
                return f'{{"content":{quote(text)}}}'
            case CallBegins(index=index, name=name):
                function = f'{{"name":{quote(name)},"arguments":""}}'
                members = f'"index":{index},"id":{quote(self._new_id())},"type":"function","function":{function}'
                return f'{{"tool_calls":[{{{members}}}]}}'
            case Arguments(index=index, text=text):
                return f'{{"tool_calls":[{{"index":{index},"function":{{"arguments":{quote(text)}}}}}]}}'
            case CallBreaks():
                return ""  # what was sent cannot be taken back


def reason_of(parser: CallParser, finish_reason: str | None) -> str | None:
    """An answer that ends by itself and holds calls ends for their sake."""
    return "tool_calls" if finish_reason == "stop" and parser.n_whole else finish_reason


def _call(call_id: str, name: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
