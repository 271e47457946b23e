"""MarkedTextStream: a choice's text, and which tokens it is made of; Echo: a prompt as the beginning of such a text.

A token's `text_offset` is the number of characters that the tokens before it have completed. So tokens that share a
character have the offset at which it stands, and a token that shows nothing that of the next one that does. Byte tokens
of vocabularies of pieces are decoded run by run: all of a run have the offset of its first character.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orcaserve.core import FinishReason, Logprobs, SamplingParams, TokenLogprobs
from orcaserve.serving.text_stream import TextStream
from orcaserve.text.detokenizer import Detokenizer
from orcaserve.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Mark:
    """A token of a choice's text, and its offset there. logprobs: None for the first token of an echoed prompt."""

    token: int
    offset: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class Taken:
    """What has come with a choice's text since the last look. marks: of the text that was shown, if the request asks
    for log-probabilities. ids: tokens generated, whether they are shown or not. first: nothing was taken before.
    prompt: what is told of all its tokens but the first, once, if it was asked for."""

    marks: Sequence[Mark]
    ids: Sequence[int]
    first: bool
    prompt: Sequence[TokenLogprobs] | None = None


class Echo:
    """A prompt as text; made once for all its choices. Special tokens are shown or not as in the output."""

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._detokenizer = tokenizer.detokenizer((), skip_special_tokens)
        self.ids = ids
        self.offsets: list[int] = []
        parts: list[str] = []
        n = 0
        for token in ids:
            self.offsets.append(n)
            parts.append(self._detokenizer.push(token))
            n += len(parts[-1])
        self.text = "".join(parts)

    def detokenizer(self) -> Detokenizer:
        """One that goes on after the prompt."""
        return self._detokenizer.fork()


class MarkedTextStream(TextStream):
    """As a TextStream, with log-probabilities for all text that is shown, in step with it.

    A token is marked once its text is shown to the end; of a text that a stop string cuts, all that begin before the
    cut. A token that ended the request by its id is marked if it is shown.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        echo: Echo | None = None,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(tokenizer, prompt_ids, params, shown)
        if echo is not None:
            self._detokenizer = echo.detokenizer()
        self._counted = self._detokenizer = _Counted(self._detokenizer)
        self._echo = echo
        self._base = 0 if echo is None else len(echo.text)
        self._scores_prompt = params.prompt_logprobs is not None
        self._begun = self._was_taken = False
        self._n_shown = 0  # characters of its own text
        self._waiting: deque[tuple[Mark, int, int]] = deque()  # and from where to where it goes in its own text
        self._marks: list[Mark] = []
        self._prompt: Sequence[TokenLogprobs] | None = None
        self._ids: list[int] = []
        self._sum = 0.0

    @property
    def mean_logprob(self) -> float:
        """Over all tokens so far; 0 without any."""
        return self._sum / self.n_tokens if self.n_tokens else 0.0

    def push(
        self, token: int | None, finish_reason: FinishReason | None = None, logprobs: Logprobs | None = None
    ) -> str:
        if self.finish_reason is not None:
            return ""
        begin = "" if self._begun else self._begin(logprobs)
        start, n_pushed = self._counted.n_characters, self._counted.n_tokens
        text = super().push(token, finish_reason)
        self._n_shown += len(text)
        if token is not None:
            self._ids.append(token)
            if logprobs is not None and logprobs.token is not None:
                self._sum += logprobs.token.logprob
                if self._counted.n_tokens > n_pushed:
                    mark = Mark(token, self._base + start, logprobs.token)
                    self._waiting.append((mark, start, self._counted.n_characters))
        self._release()
        return begin + text

    def take(self) -> Taken:
        """What has come since the last call."""
        taken = Taken(self._marks, self._ids, not self._was_taken, self._prompt)
        self._marks, self._ids, self._was_taken, self._prompt = [], [], True, None
        return taken

    def _begin(self, logprobs: Logprobs | None) -> str:
        """The echoed prompt."""
        self._begun = True
        if self._scores_prompt:
            self._prompt = logprobs.prompt if logprobs is not None else ()
        if self._echo is None:
            return ""
        if self._prompt is not None:
            self._marks += map(Mark, self._echo.ids, self._echo.offsets, [None, *self._prompt])
        return self._echo.text

    def _release(self) -> None:
        """Mark what is shown. A token without a text of its own goes with the next one that has some."""
        if not self._waiting:
            return
        ended, cut = self.finish_reason is not None, self._stops.matched
        n = len(self._waiting) if ended and not cut else 0
        if n == 0:
            for i, (_, start, end) in enumerate(self._waiting, 1):
                if not (start if cut else end - 1) < self._n_shown:
                    break
                if end > start:
                    n = i
        for _ in range(n):
            self._marks.append(self._waiting.popleft()[0])


class _Counted:
    """A Detokenizer, and how much has gone through it."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self.n_tokens = self.n_characters = 0

    def push(self, token: int) -> str:
        text = self._detokenizer.push(token)
        self.n_tokens += 1
        self.n_characters += len(text)
        return text

    def flush(self) -> str:
        text = self._detokenizer.flush()
        self.n_characters += len(text)
        return text

    def fork(self) -> Detokenizer:
        forked = _Counted(self._detokenizer.fork())
        forked.n_tokens, forked.n_characters = self.n_tokens, self.n_characters
        return forked


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What a request wants to know of its text. echo: it begins with the prompt. marked: of which tokens it is made.
    shown: special tokens that are part of it, whatever the client asked for."""

    echo: bool = False
    marked: bool = False
    shown: frozenset[int] = frozenset()

    def streams(self, tokenizer: Tokenizer, ids: Sequence[int], params: SamplingParams) -> Callable[[], TextStream]:
        """Makes the text of each choice of a prompt."""
        if not (self.echo or self.marked):
            return lambda: TextStream(tokenizer, ids, params, self.shown)
        echo = Echo(tokenizer, ids, params.skip_special_tokens) if self.echo else None
        return lambda: MarkedTextStream(tokenizer, ids, params, echo, self.shown)
