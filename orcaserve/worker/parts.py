"""RunsPart: what a worker's controller needs of a backend that runs a part of a model; and which one it gets.

On the CPU parts run on its own kernels and pass on numpy arrays; on any other device they run in PyTorch and pass on
its tensors. Torch is imported for the latter alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from orcaserve.config import EngineConfig
from orcaserve.core import ConfigError
from orcaserve.core.spans import Span
from orcaserve.data_plane.protocol import Place
from orcaserve.worker.among import Among
from orcaserve.worker.backend import Backend, check_floats
from orcaserve.worker.plan import EncoderDecoderPlan, Plan
from orcaserve.worker.resources import available_memory

if TYPE_CHECKING:
    from orcaserve.data_plane.device_tensors import Meeting, TensorPlane


class RunsPart(Backend, Protocol):
    """A Backend whose iterations begin with hidden states of the stage before, or end with some for the next.

        expect(n)          when the control message comes, on its thread: the transfer begins while others are computed
        iterate(...)       as any Backend's; tokens mean something at the first shard of the last stage only
        settle()           after every iteration: an iteration none of whose entries could be run is passed on too

    spans: what was done since somebody last cleared it.
    """

    spans: list[Span]

    def join(self, plane: Any) -> None:
        """plane: a DataPlane of whatever it is that this backend passes on."""

    def expect(self, n_rows: int) -> None: ...
    def settle(self) -> None: ...


def load_part(
    config: EngineConfig, plan: Plan | EncoderDecoderPlan, place: Place, n_threads: int, among: Among
) -> RunsPart:
    """Load the part of that place for the configured device. Raises ModelError or ConfigError."""
    if config.model.device != "cpu":
        check_floats(config)
        if isinstance(plan, EncoderDecoderPlan):
            from orcaserve.worker.encoder_decoder_part_backend import EncoderDecoderPartBackend

            return EncoderDecoderPartBackend(config, plan.part(place), n_threads, among)
        from orcaserve.worker.reference_part_backend import ReferencePartBackend

        return ReferencePartBackend(config, plan.part(place), n_threads, among)
    assert isinstance(plan, Plan), "a model with an encoder runs in PyTorch: settle_device has seen to it"
    try:
        from orcaserve.worker.part_backend import PartBackend
    except ImportError as error:
        raise ConfigError("--device", f"the CPU's kernels are not here ({error}): take --device reference") from error

    return PartBackend(config, plan, place, n_threads, among)


def meet_on_device(config: EngineConfig, among: Among, meeting: Meeting) -> TensorPlane:
    """The data plane of parts in PyTorch. Raises RuntimeError if the other workers do not come."""
    from orcaserve.data_plane.device_tensors import meet
    from orcaserve.worker.devices import torch_device
    from orcaserve.worker.reference_backend import torch_dtype

    return meet(meeting, torch_device(config.model.device, among), torch_dtype(config.model.dtype))


def free_memory(config: EngineConfig, among: Among) -> int:
    """Bytes for keys and values: of this machine for all its workers, or of a worker's GPU for this worker."""
    if not config.model.device.startswith("cuda"):
        return available_memory()
    from orcaserve.worker.devices import free_on_gpu

    return free_on_gpu(config.model.device, among)
