"""EncoderDecoderPartBackend: a part of a model with two stacks in PyTorch, and its place on the data plane."""

from __future__ import annotations

from torch import Tensor

from orcaserve.config import EngineConfig
from orcaserve.model.encoder_decoder.part import EncoderDecoderPart
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.parameter import Floats
from orcaserve.model.reference.encoder_decoder import EncoderDecoder, load_encoder_decoder_part
from orcaserve.worker.among import Among
from orcaserve.worker.encoder_decoder_backend import NoAdapters
from orcaserve.worker.reference_part_backend import PyTorchPartBackend

_NO_PROMPTS = "no prompt of a model with an encoder is scored or pooled"


class EncoderDecoderPartBackend(NoAdapters, PyTorchPartBackend[EncoderDecoderPart, EncoderDecoder]):
    """A RunsPart (see parts.py). What travels between stages is in encoder_decoder/part.py."""

    def __init__(self, config: EngineConfig, part: EncoderDecoderPart, n_threads: int, among: Among) -> None:
        super().__init__(config, part, n_threads, among, load_encoder_decoder_part)

    def _compute_and_keep(self, token_ids: Int32s, received: Tensor | None, layout: Layout) -> tuple[Tensor, Tensor]:
        raise AssertionError(_NO_PROMPTS)

    def _head(self, states: Tensor, rows: Int32s) -> Tensor:
        raise AssertionError(_NO_PROMPTS)

    def _normed(self, states: Tensor, rows: Int32s) -> Floats:
        raise AssertionError(_NO_PROMPTS)
