"""How log-probabilities are written: the arrays of completions, and the entries of chats.

JSON knows no infinity: whatever lies under it is -9999.0. A token is named by its text. One that has a part of a
character only is named by its bytes, as OpenAI's API does: `bytes:\\xe6\\xb1`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quote

from orcaserve.core import TokenLogprobs
from orcaserve.serving.marked_text import Mark
from orcaserve.text.tokenizer import Tokenizer

LOWEST = -9999.0


class LogprobsStyle(ABC):
    """Writes marks as JSON, some at a time: `members` of several calls joined by commas, column by column, are those of
    all marks together. n_top: best tokens that were asked for."""

    columns: tuple[str, ...]

    def __init__(self, tokenizer: Tokenizer, n_top: int) -> None:
        self._tokenizer = tokenizer
        self._n_top = n_top
        self._names: dict[int, str] = {}

    @abstractmethod
    def members(self, marks: Sequence[Mark]) -> tuple[str, ...]:
        """What stands in each of the columns' lists, without brackets."""

    def value(self, parts: Sequence[tuple[str, ...]]) -> str:
        """The JSON of `logprobs`; parts: what `members` has given, in order."""
        lists = zip(self.columns, zip(*parts, strict=True), strict=True)
        return "{" + ",".join(f'"{name}":[{",".join(some)}]' for name, some in lists) + self._rest + "}"

    _rest = ""

    def _name(self, token: int) -> str:
        """A JSON string."""
        name = self._names.get(token)
        if name is None:
            name = self._names[token] = quote(token_name(self._tokenizer.token_bytes(token)))
        return name


class LegacyLogprobs(LogprobsStyle):
    """The parallel arrays of completions: the chosen token is always among `top_logprobs`, which so may have one more
    than were asked for; of two tokens with one name the likelier is told."""

    columns = ("tokens", "token_logprobs", "top_logprobs", "text_offset")

    def members(self, marks: Sequence[Mark]) -> tuple[str, ...]:
        return (
            ",".join([self._name(mark.token) for mark in marks]),
            ",".join(["null" if mark.logprobs is None else number(mark.logprobs.logprob) for mark in marks]),
            ",".join(["null" if mark.logprobs is None else self._top(mark.token, mark.logprobs) for mark in marks]),
            ",".join([str(mark.offset) for mark in marks]),
        )

    def _top(self, token: int, own: TokenLogprobs) -> str:
        named: dict[str, float] = {}
        best = self._n_top  # a prompt may have been told of more
        for i, logprob in zip((*own.top_ids[:best], token), (*own.top_logprobs[:best], own.logprob), strict=True):
            named.setdefault(self._name(i), logprob)
        return "{" + ",".join([f"{name}:{number(x)}" for name, x in named.items()]) + "}"


class ChatLogprobs(LogprobsStyle):
    """The entries of chats."""

    columns = ("content",)
    _rest = ',"refusal":null'

    def __init__(self, tokenizer: Tokenizer, n_top: int) -> None:
        super().__init__(tokenizer, n_top)
        self._bytes: dict[int, str] = {}

    def members(self, marks: Sequence[Mark]) -> tuple[str, ...]:
        return (",".join([self._entry(mark.token, mark.logprobs) for mark in marks if mark.logprobs is not None]),)

    def _entry(self, token: int, own: TokenLogprobs) -> str:
        pairs = zip(own.top_ids, own.top_logprobs, strict=True)
        top = ",".join([f"{{{self._token(i, x)}}}" for i, x in pairs])
        return f'{{{self._token(token, own.logprob)},"top_logprobs":[{top}]}}'

    def _token(self, token: int, logprob: float) -> str:
        raw = self._bytes.get(token)
        if raw is None:
            raw = self._bytes[token] = str(list(self._tokenizer.token_bytes(token)))
        return f'"token":{self._name(token)},"logprob":{number(logprob)},"bytes":{raw}'


class PromptLogprobs:
    """Those of a prompt as vLLM's API has them: for each token an object from ids, its own first, to what is told of
    them; null for the first token. n_top: best tokens that were asked for."""

    def __init__(self, tokenizer: Tokenizer, n_top: int) -> None:
        self._tokenizer = tokenizer
        self._n_top = n_top

    def value(self, ids: Sequence[int], told: Sequence[TokenLogprobs]) -> str:
        """JSON. told: of all ids but the first."""
        return f"[{','.join(['null', *map(self._entry, ids[1:], told)][: len(ids)])}]"

    def _entry(self, token: int, own: TokenLogprobs) -> str:
        entries = {token: (own.logprob, own.rank)}
        for rank, (i, logprob) in enumerate(zip(own.top_ids[: self._n_top], own.top_logprobs, strict=False), 1):
            entries.setdefault(i, (logprob, rank))
        return "{" + ",".join([self._token(i, *numbers) for i, numbers in entries.items()]) + "}"

    def _token(self, token: int, logprob: float, rank: int) -> str:
        name = quote(token_name(self._tokenizer.token_bytes(token)))
        return f'"{token}":{{"logprob":{number(logprob)},"rank":{rank},"decoded_token":{name}}}'


def number(logprob: float) -> str:
    """A finite JSON number; also for what is no number."""
    return repr(logprob if logprob > LOWEST else LOWEST)


def token_name(raw: bytes) -> str:
    """Of a token that stands for these bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
