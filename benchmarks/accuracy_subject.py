"""Subject: one form of a model, run at the worker's level, that gives all logits and greedy texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from accuracy_measures import Floats

from orcaserve.config import PAGE_SIZE
from orcaserve.model.filled_heads import HEAD_UNIT
from orcaserve.model.kv_manager import KVManager
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.loader import ModelFiles
from orcaserve.native import _kernels
from orcaserve.native.exact_inputs import build_weights
from orcaserve.native.kv_region import KVRegion
from orcaserve.native.model import NativeModel
from orcaserve.native.precision import choose_precision
from orcaserve.worker.resources import available_cores

# token ids [N], their layout, and the rows whose logits are wanted (None: each request's last) -> [rows, vocabulary].
Forward = Callable[[Int32s, Layout, Int32s | None], Floats]


class Subject:
    """form: weights/K/V, for example int8/int8."""

    def __init__(self, form: str, kv: KVManager, forward: Forward) -> None:
        self.form = form
        self._kv = kv
        self._forward = forward

    def logits(self, ids: Sequence[int]) -> Floats:
        """[len(ids), vocabulary]: after every token of a text, in one iteration."""
        layout = self._kv.lay_out([(0, len(ids))])
        try:
            return self._forward(np.array(ids, np.int32), layout, np.arange(len(ids), dtype=np.int32))
        finally:
            self._kv.drop(0)

    def greedy(self, prompts: Sequence[Sequence[int]], n: int) -> list[list[int]]:
        """The n likeliest next tokens of every prompt, one after the other; all prompts in one batch."""
        news: list[Sequence[int]] = list(prompts)
        texts: list[list[int]] = [[] for _ in prompts]
        try:
            for _ in range(n):
                layout = self._kv.lay_out([(request, len(new)) for request, new in enumerate(news)])
                logits = self._forward(np.array(list(chain.from_iterable(news)), np.int32), layout, None)
                news = [[int(token)] for token in logits.argmax(axis=1)]
                for text, new in zip(texts, news, strict=True):
                    text += new
        finally:
            for request in range(len(prompts)):
                self._kv.drop(request)
        return texts


def load_subject(path: Path, form: str, n_tokens: int, n_threads: int | None) -> Subject:
    """The model on the CPU's kernels, with room for the K/V of n_tokens tokens."""
    weights, storage = form.split("/")
    floats = weights in ("float32", "bfloat16")
    team = _kernels.Team(n_threads or available_cores())
    with ModelFiles(path, HEAD_UNIT) as files:
        precision = choose_precision(weights if floats else "auto", "none" if floats else weights, files.matrix_kinds)
        model = NativeModel(files.spec, build_weights(files, precision, team), team)
    kv = KVManager(n_tokens, PAGE_SIZE)
    region = KVRegion(model.spec, kv.n_pages, PAGE_SIZE, storage)
    return Subject(form, kv, lambda ids, layout, rows: model.forward(ids, layout, region, rows))
