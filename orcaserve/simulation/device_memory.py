"""DeviceMemory: what a model takes of each device, and how many K/V slots the rest holds."""

from __future__ import annotations

from dataclasses import dataclass

from orcaserve.simulation.hardware import Hardware
from orcaserve.simulation.models import Cut, ModelSizes

KEPT_BACK = (
    4 * 2**30
)  # bytes of a device for its runtime, activations and the allocator's loss; the paper's OOM points fit it


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of the fullest device. slot: one token's keys and values over the layers and heads that it has."""

    total: int
    kept_back: int
    weights: int
    slot: int

    @property
    def n_slots(self) -> int:
        """Slots that fit beside the weights; 0 if the weights themselves do not fit."""
        return max(self.total - self.kept_back - self.weights, 0) // self.slot

    @property
    def fits(self) -> bool:
        return self.n_slots > 0


def device_memory(model: ModelSizes, hardware: Hardware, cut: Cut, kept_back: int = KEPT_BACK) -> DeviceMemory:
    """The last stage has the head beside its layers, the first one the tables; the larger of both is counted."""
    layers = -(-model.n_layers // cut.stages)
    beside = max(model.head_parameters, model.embedding_parameters) if cut.stages > 1 else (
        model.head_parameters + model.embedding_parameters
    )  # fmt: skip
    weights = (layers * model.layer_parameters + beside) * model.weight_bytes / cut.shards
    slot = layers * model.kv_width * model.kv_bytes / cut.shards
    return DeviceMemory(hardware.memory_bytes, kept_back, round(weights), max(round(slot), 1))
