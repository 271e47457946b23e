"""Backend: a loaded model on some kind of device, behind the few calls that a worker makes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from orcaserve.checkpoint.converted import is_converted
from orcaserve.config import EngineConfig
from orcaserve.core import ConfigError, Logprobs, SamplingParams, UnsupportedModel
from orcaserve.model.adapter import Adapter
from orcaserve.model.encoder_decoder.registry import is_encoder_decoder
from orcaserve.model.encoder_decoder.spec import EncoderDecoderSpec
from orcaserve.model.filled_heads import HEAD_UNIT
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.loader import ModelFiles
from orcaserve.model.part import Part
from orcaserve.model.spec import ModelSpec
from orcaserve.worker.scoring import NOTHING, Wanted

_log = logging.getLogger(__name__)
FLOATS_ONLY = ("auto", "none")  # values of --quantization that need no kernels

Outcome = tuple[Sequence[int], dict[int, str], Mapping[int, Logprobs]]
"""Of an iteration: a token per request, request id -> why it cannot go on, request id -> what was wanted."""


class Remembers(Protocol):
    """What remembers the requests whose tokens are chosen."""

    def admit(
        self,
        request_id: int,
        input_ids: Sequence[int],
        params: SamplingParams,
        stop_ids: frozenset[int],
        seed: int,
        output: Sequence[int],
    ) -> None:
        """output: what was put out for the request before, by an engine that is gone or until it was preempted."""

    def drop(self, request_ids: Iterable[int]) -> None: ...


class Sampler(Remembers, Protocol):
    """What a backend chooses tokens with."""

    def prepare(self) -> None:
        """After an iteration's outcome was passed on: do what the next one need not wait for then."""


class Backend(Protocol):
    """Not thread-safe: one device executor's thread owns it.

    slot_bytes: bytes of one slot of the K/V region: key and value of one token over all layers.
    """

    @property
    def spec(self) -> ModelSpec | EncoderDecoderSpec: ...
    @property
    def sampler(self) -> Sampler: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def progress(self) -> int:
        """Changes whenever a piece of an iteration is begun, and only then. Any thread, also during `iterate`."""

    def allocate(self, n_pages: int) -> None:
        """Make the K/V region. Called once, before the first iteration."""

    def copy_page(self, source: int, target: int) -> None:
        """A page of the K/V region, in all layers that this backend has, between two iterations."""

    @property
    def part(self) -> Part | None:
        """What it has of the model; None if that can have no adapters."""

    def make_adapter(self, adapter: Adapter) -> Any:
        """An adapter of this part, as `add_adapter` takes it. From any thread."""

    def add_adapter(self, number: int, made: Any) -> None:
        """From now on layouts may name it."""

    def remove_adapter(self, number: int) -> None:
        """No layout names it any more. Of no effect for an unknown one."""

    def iterate(
        self,
        token_ids: Int32s,
        layout: Layout,
        request_ids: Sequence[int],
        rows: Sequence[int] | None = None,
        wanted: Wanted = NOTHING,
    ) -> Outcome:
        """Forward and sample: token_ids [N] -> a token per request; the token of one that cannot go on means nothing.

        rows: which of the layout's requests are those of request_ids, for the others are given no token; None: all.
        wanted: log-probabilities, which nobody has who cannot go on; and pools, which are filled.
        """


def settle_device(config: EngineConfig) -> EngineConfig:
    """The settings with PyTorch in the place of the CPU's kernels if these cannot run the model, of which only headers
    are read. Raises ModelError, or ConfigError if the settings need the kernels."""
    if config.model.device != "cpu" or is_converted(config.model.path):
        return config
    missing = ["an encoder"] if is_encoder_decoder(config.model.path) else _lacking(config.model.path)
    if not missing:
        return config
    lack = f"the CPU's kernels lack {', '.join(missing)}"
    for flag, needs_kernels in (
        ("--deterministic", config.deterministic),
        ("--quantization", config.model.quantization not in FLOATS_ONLY),
        ("--kv-cache-dtype", config.kv.dtype == "int8"),
    ):
        if needs_kernels:
            raise ConfigError(flag, f"this model runs in PyTorch, which cannot do it: {lack}")
    if find_spec("torch") is None:
        text = f"{config.model.path.name} runs in PyTorch, which is not here ({lack}): pip install 'orcaserve[torch]'"
        raise UnsupportedModel(text)
    _log.warning("running the model in PyTorch, slowly: %s", lack)
    return replace(config, model=replace(config.model, device="reference"))


def _lacking(path: Path) -> list[str]:
    """What the CPU's kernels cannot run of a model, in words; nothing if there are no kernels."""
    try:
        from orcaserve.native.support import lacking
    except ImportError:  # whoever loads the model says so
        return []
    with ModelFiles(path, HEAD_UNIT) as files:
        return lacking(files.spec)


def load_backend(config: EngineConfig, n_threads: int) -> Backend:
    """Load the model for the configured device. Raises ModelError or ConfigError."""
    if is_encoder_decoder(config.model.path):
        return _encoder_decoder(config, n_threads)
    if config.model.device != "cpu":
        return _reference(config, n_threads)
    try:
        from orcaserve import native  # noqa: F401
    except ImportError as error:
        if config.deterministic:
            raise ConfigError("--deterministic", f"needs the CPU's kernels, which are not here ({error})") from error
        _log.warning("running the model in PyTorch, slowly and with more memory: %s", error)
        return _reference(config, n_threads)
    from orcaserve.worker.native_backend import NativeBackend

    return NativeBackend(config, n_threads)


def check_floats(config: EngineConfig) -> None:
    """Raises ConfigError for settings that only the CPU's kernels know."""
    if config.model.quantization not in FLOATS_ONLY:
        raise ConfigError("--quantization", f"{config.model.quantization} weights need the CPU's kernels: --device cpu")
    if config.kv.dtype == "int8":
        raise ConfigError("--kv-cache-dtype", "int8 keys and values need the CPU's kernels: --device cpu")


def _encoder_decoder(config: EngineConfig, n_threads: int) -> Backend:
    check_floats(config)
    try:
        from orcaserve.worker.encoder_decoder_backend import EncoderDecoderBackend
    except ModuleNotFoundError as error:
        text = f"an encoder-decoder model needs PyTorch ({error}): pip install 'orcaserve[torch]'"
        raise ConfigError("--model", text) from error

    return EncoderDecoderBackend(config, n_threads)


def _reference(config: EngineConfig, n_threads: int) -> Backend:
    check_floats(config)
    try:  # late: it imports torch, which a CPU does without
        from orcaserve.worker.reference_backend import ReferenceBackend
    except ModuleNotFoundError as error:
        raise ConfigError("--device", f"this needs PyTorch ({error}): pip install 'orcaserve[torch]'") from error

    return ReferenceBackend(config, n_threads)
