"""TextStream: the text of one choice, token by token, the way the client asked to see it."""

from __future__ import annotations

from collections.abc import Sequence

from orcaserve.core.logprobs import Logprobs
from orcaserve.core.request import FinishReason
from orcaserve.core.sampling_params import SamplingParams
from orcaserve.serving.stop_strings import StopFilter
from orcaserve.text.tokenizer import Tokenizer


class TextStream:
    """Turns a request's tokens into text deltas; joined, they are the whole text, streamed or not.

        stream = TextStream(tokenizer, prompt_ids, params)
        delta = stream.push(token, finish_reason)       # "" while bytes or a possible stop string are held back
        if stream.finish_reason: ...                    # the engine's, or STOP as soon as a stop string is complete

    The caller cancels the request in the engine when `finish_reason` is set and the engine has not ended it.
    shown: special tokens that are text here, whatever the client asked for.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._detokenizer = tokenizer.detokenizer(prompt_ids, params.skip_special_tokens, shown)
        self._stops = StopFilter(params.stop, params.include_stop_str_in_output)
        self._show_stop_token = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self.n_tokens = 0
        self.finish_reason: FinishReason | None = None

    def push(
        self, token: int | None, finish_reason: FinishReason | None = None, logprobs: Logprobs | None = None
    ) -> str:
        """Text to show now. `finish_reason` comes with the request's last news, with or without a token. logprobs: for
        streams that have a use for them (marked_text.py).

        A token that ended the request by its id is counted but not shown, unless the client asked to see it.
        """
        if self.finish_reason is not None:
            return ""
        text = ""
        if token is not None:
            self.n_tokens += 1
            if finish_reason is not FinishReason.STOP or self._show_stop_token:
                text = self._detokenizer.push(token)
        if finish_reason is not None:
            text += self._detokenizer.flush()
        # Before min_tokens nothing may end the request, so a stop string there is ordinary text.
        if self.n_tokens > self._min_tokens or token is None:
            text = self._stops.push(text)
            if self._stops.matched:
                self.finish_reason = FinishReason.STOP
                return text
        if finish_reason is not None:
            self.finish_reason = finish_reason
            text += self._stops.flush()
        return text
