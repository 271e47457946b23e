"""PlannedEngine: a model on some hardware, by descriptions alone: nothing is loaded, and no torch imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orcaserve.checkpoint.locate import locate_model, model_name
from orcaserve.config import PAGE_SIZE, EngineConfig
from orcaserve.core import ConfigError
from orcaserve.evaluation.sizes import how_held, model_spec, slot_bytes
from orcaserve.model.spec import ModelSpec
from orcaserve.simulation.cost import CostModel
from orcaserve.simulation.device_memory import KEPT_BACK, DeviceMemory, device_memory
from orcaserve.simulation.hardware import Hardware
from orcaserve.simulation.machine import this_machine
from orcaserve.simulation.models import Cut, ModelSizes
from orcaserve.simulation.paper import ORCA
from orcaserve.simulation.profile import load_profile
from orcaserve.simulation.transformer_cost import TransformerCost
from orcaserve.worker.resources import available_memory

CPU_KEPT_BACK = 512 * 2**20  # bytes: engine, endpoint and workspace beside weights and K/V, of a small model on a CPU
MOST_SHARDS = 8  # devices that one machine connects


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    """One replica. where: its hardware in words. memory: of its fullest device, of which it has `devices`.

    largest_batch: requests beyond which the cost says nothing. workspace: bytes of activations of the longest prompt,
    which are part of what is kept back; None if unknown.
    """

    model: str
    where: str
    cost: CostModel
    memory: DeviceMemory
    devices: int
    context_length: int
    page_size: int = PAGE_SIZE
    largest_batch: int = 256
    workspace: int | None = None

    @property
    def n_slots(self) -> int:
        """Slots that fit, in whole pages."""
        return self.memory.n_slots // self.page_size * self.page_size


def accelerator_engine(sizes: ModelSizes, hardware: Hardware, cut: Cut, kept_back: int = KEPT_BACK) -> PlannedEngine:
    """Raises ConfigError if the model cannot be cut like that."""
    if cut.stages > sizes.n_layers:
        raise ConfigError("-pp", f"{cut.stages} stages are more than the model's {sizes.n_layers} layers")
    if cut.shards > hardware.devices_per_machine:
        raise ConfigError("-tp", f"{cut.shards} shards are more than the {hardware.devices_per_machine} of a machine")
    return PlannedEngine(
        model=sizes.name,
        where=f"{cut.stages} x {cut.shards} {hardware.name}",
        cost=TransformerCost(sizes, hardware, cut, ORCA),
        memory=device_memory(sizes, hardware, cut, kept_back),
        devices=cut.devices,
        context_length=sizes.context_length,
        workspace=round(sizes.context_length * sizes.hidden_size * 9 * 2 / cut.shards),  # hidden states, QKV, MLP
    )


def file_sizes(path: Path, name: str, weight_bits: float = 16, kv_bits: float = 16) -> ModelSizes:
    """Sizes out of a checkpoint's headers. Raises ModelError."""
    return spec_sizes(model_spec(path), name, weight_bits, kv_bits)


def spec_sizes(spec: ModelSpec, name: str, weight_bits: float = 16, kv_bits: float = 16) -> ModelSizes:
    hidden = spec.hidden_size
    table = spec.vocab_size * hidden
    positions = spec.context_length * hidden if spec.rope is None else 0
    return ModelSizes(
        name=name,
        n_layers=spec.n_layers,
        hidden_size=hidden,
        layer_parameters=spec.layer_weights,
        head_parameters=table,
        embedding_parameters=(0 if spec.tied else table) + positions,
        query_width=spec.q_size,
        kv_width=2 * spec.kv_size,
        context_length=spec.context_length,
        weight_bytes=weight_bits / 8,
        kv_bytes=kv_bits / 8,
    )


def smallest_cut(sizes: ModelSizes, hardware: Hardware) -> Cut:
    """The fewest devices that hold the weights and one request of the longest kind; if none do, the most."""
    cut = Cut()
    for cut in cuts(hardware):
        if cut.stages <= sizes.n_layers and device_memory(sizes, hardware, cut).n_slots >= sizes.context_length:
            break
    return cut


def cuts(hardware: Hardware) -> list[Cut]:
    """Ways to cut, fewest devices first: over the devices of a machine, then over several machines."""
    shards = [n for n in (1, 2, 4, 8) if n <= min(MOST_SHARDS, hardware.devices_per_machine)]
    return [*[Cut(1, n) for n in shards], *[Cut(stages, shards[-1]) for stages in (2, 4, 8)]]


def profiled_engine(path: Path, config: EngineConfig, any_machine: bool = False) -> PlannedEngine:
    """This machine with a model, as `orcaserve profile` has measured it.

    Raises ConfigError, naming the field, if the profile is of another model, or (unless any_machine) another machine.
    """
    profile = load_profile(path)
    if not any_machine:
        profile.check_machine(this_machine())
    held = how_held(config)
    profile.check_model({"name": config.model.name, "weights": held.weights, "kv_cache_dtype": held.kv_cache_dtype})
    slot = slot_bytes(held.spec, held.kv_cache_dtype)
    return PlannedEngine(
        model=config.model.name,
        where=f"profile {path.name}: {profile.machine.get('processor', 'a machine')}",
        cost=profile.cost,
        memory=DeviceMemory(available_memory(), CPU_KEPT_BACK, held.weight_bytes, slot),
        devices=1,
        context_length=config.model.max_model_len or held.spec.context_length,
        page_size=config.kv.page_size,
        largest_batch=int(profile.engine.get("max_bs", 64)),
    )


def named_model(model: str | None) -> tuple[Path, str]:
    """Where a model's files are, and its name; nothing is fetched. Raises ModelNotFound."""
    return locate_model(model, fetch=False), model_name(model)
