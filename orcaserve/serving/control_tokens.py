"""ControlTokens: what clients write in a chat is text, also where it is spelled like a token that ends a turn.

A chat template writes special tokens as text, and the tokenizer finds them there. It would find those that a client
has written just as well. So, where a client's strings hold any, they are marked before the template is rendered, with
characters that occur nowhere else; what is marked afterwards is encoded as text. Where they hold none, nothing is
marked, and the ids are those of the rendered text as it is.

    marked     <|im_start|>user\\nWhat is O<|im_end|>C ?<|im_end|>         O, C: marks
    encoded    [...template's..., as text: "<|im_end|>", " ?", template's <|im_end|>]

A token may also come about by two strings that the template joins. Strings that end like the beginning of a token, or
begin like the end of one, get a mark (X) there, which counts only where a token lies across it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.text.tokenizer import Tokenizer

_PRIVATE = range(0xF0000, 0xFFFFE)  # private-use characters: one text does not hold them all


@dataclass(frozen=True, slots=True)
class Marks:
    """before, after: around a whole token; torn: where half of one ends or begins."""

    before: str
    after: str
    torn: str


class Guarded:
    """Tokens that a client's strings must not become."""

    def __init__(self, tokens: Collection[str]) -> None:
        self._tokens = re.compile(_pattern_of(tokens))
        # Letters alone are too little to go by: words end and begin with them.
        parts = [(token[:n], token[n:]) for token in tokens for n in range(1, len(token))]
        self._heads = {head for head, _ in parts if not head.isalnum()}
        self._tails = {tail for _, tail in parts if not tail.isalnum()}
        self._firsts = {token[:1] for token in tokens}
        self._lasts = {token[-1:] for token in tokens}
        self._longest = max(map(len, tokens), default=0)

    def find(self, text: str) -> Iterator[re.Match[str]]:
        return self._tokens.finditer(text)

    def occur_in(self, text: str) -> bool:
        return self._tokens.search(text) is not None

    def is_open(self, text: str) -> bool:
        """Whether it ends like the beginning of a token."""
        end = text[-self._longest :]
        if self._firsts.isdisjoint(end):
            return False
        return any(end[-n:] in self._heads for n in range(1, min(self._longest, len(end) + 1)))

    def is_closing(self, text: str) -> bool:
        """Whether it begins like the end of one."""
        start = text[: self._longest]
        if self._lasts.isdisjoint(start):
            return False
        return any(start[:n] in self._tails for n in range(1, min(self._longest, len(start) + 1)))

    def mark(self, text: str, marks: Marks) -> str:
        marked = self._tokens.sub(lambda found: f"{marks.before}{found[0]}{marks.after}", text)
        before = marks.torn if self.is_closing(text) else ""
        return before + marked + (marks.torn if self.is_open(text) else "")


class ControlTokens:
    """Of one chat template and its tokenizer.

    Guarded are the special tokens, and of the other added tokens those that the template itself writes. In what an
    assistant has said these others count as tokens, as they did when the model wrote them.
    """

    def __init__(self, tokenizer: Tokenizer, literals: str) -> None:
        special = {text for text, token in tokenizer.added.items() if token in tokenizer.special_ids}
        written = {text for text in tokenizer.added if text in literals and not text.isspace()}
        self._tokenizer = tokenizer
        self._special = Guarded(special)
        self._all = Guarded(special | written)

    def mark(self, messages: Any, others: Any) -> tuple[Any, Any, Marks | None]:
        """The same with marks, or just the same and None if there is nothing to be marked.

        messages: a list of objects. others: whatever else of the client the template is given.
        """
        strings = list(_strings([messages, others]))
        whole = any(map(self._all.occur_in, strings))
        torn = any(map(self._all.is_open, strings)) and any(map(self._all.is_closing, strings))
        if not whole and not torn:
            return messages, others, None
        used = set().union(*strings)
        free = (character for character in map(chr, _PRIVATE) if character not in used)
        marks = Marks(next(free), next(free), next(free))

        def for_all(text: str) -> str:
            return self._all.mark(text, marks)

        def for_assistant(text: str) -> str:
            return self._special.mark(text, marks)

        marked = [
            _changed(message, for_assistant if message.get("role") == "assistant" else for_all) for message in messages
        ]
        return marked, _changed(others, for_all), marks

    def encode(self, rendered: str, marks: Marks) -> list[int]:
        """Ids of what the template has made of marked strings. Raises InvalidRequest if the tokenizer cannot do it."""
        ids: list[int] = []
        for at, (piece, as_text) in enumerate(self._pieces(rendered, marks)):
            if at == 0:
                ids += self._tokenizer.encode(piece, add_special_tokens=False)
            else:
                ids += self._continued(piece, as_text)
        return ids

    def _pieces(self, rendered: str, marks: Marks) -> Iterator[tuple[str, bool]]:
        """The text without marks, cut at the client's tokens; whether it is one of them. The first is none."""
        places: dict[int, str] = {}  # in the text without marks: what marks stood before the character there
        parts: list[str] = []
        length = 0
        for part in re.split(f"([{marks.before}{marks.after}{marks.torn}])", rendered):
            if part in (marks.before, marks.after, marks.torn):
                places[length] = places.get(length, "") + part
            else:
                parts.append(part)
                length += len(part)
        text = "".join(parts)
        done = 0
        for found in self._all.find(text):
            start, end = found.span()
            if marks.before in places.get(start, "") or any(i in places for i in range(start + 1, end)):
                yield text[done:start], False
                yield found[0], True
                done = end
        yield text[done:], False

    def _continued(self, piece: str, as_text: bool) -> list[int]:
        """Ids of a piece that is not the first: tokenizers that put a blank before a text must not put it here."""
        if not piece:
            return []
        ids = self._without_first_line(piece, as_text)
        if as_text and self._tokenizer.added.get(piece) in ids:  # the vocabulary makes the token of its letters
            ids = [token for letter in piece for token in self._without_first_line(letter, True)]
            if self._tokenizer.added[piece] in ids:
                raise InvalidRequest("messages", "the messages hold a special token that cannot be written as text")
        return ids

    def _without_first_line(self, piece: str, as_text: bool) -> list[int]:
        def encode(text: str) -> list[int]:
            if as_text:
                return self._tokenizer.encode_as_text(text)
            return self._tokenizer.encode(text, add_special_tokens=False)

        line = self._tokenizer.encode("\n", add_special_tokens=False)
        ids = encode("\n" + piece)
        return ids[len(line) :] if ids[: len(line)] == line else encode(piece)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _changed(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_changed(item, change) for item in value]
    return value


def _pattern_of(texts: Collection[str]) -> str:
    """A pattern for the longest of the texts that begins at a place, in a time that does not grow with their number:
    what several of them begin with stands once. Nothing matches if there are none."""
    return _branches(sorted({text for text in texts if text})) if any(texts) else "(?!)"


def _branches(texts: list[str]) -> str:
    """texts: sorted, not empty, all different; one may be ""."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text[:1], []).append(text[1:])
    ends_here = groups.pop("", None) is not None
    options = [re.escape(first) + _branches(rest) for first, rest in groups.items()]
    if not options:
        return ""
    if len(options) == 1 and not ends_here:
        return options[0]
    choice = f"(?:{'|'.join(options)})"
    return f"{choice}?" if ends_here else choice
