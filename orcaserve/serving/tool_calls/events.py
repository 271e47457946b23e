"""What a parser of calls finds in an answer, in order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """The index-th call of the answer; what follows are its arguments."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments. All of them, joined, are the text of a JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallBreaks:
    """A call that had begun is none. raw: the text of it so far, as the model wrote it."""

    index: int
    raw: str


Event = Content | CallBegins | Arguments | CallBreaks
