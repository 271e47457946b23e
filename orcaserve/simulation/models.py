"""ModelSizes: what a Transformer's cost and memory depend on; the paper's models; and how a model is cut."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """layer_parameters: of one layer's matrices. head_parameters: of the output head; embedding_parameters: of tables
    that are only looked up in (0 if the head is the table). kv_width: numbers that one layer keeps of a token: its key
    and value. query_width: numbers of a token's queries. weight_bytes, kv_bytes: of one parameter; of one such number.
    """

    name: str
    n_layers: int
    hidden_size: int
    layer_parameters: int
    head_parameters: int
    embedding_parameters: int
    query_width: int
    kv_width: int
    context_length: int
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0

    @property
    def all_weight_bytes(self) -> int:
        parameters = self.n_layers * self.layer_parameters + self.head_parameters + self.embedding_parameters
        return round(parameters * self.weight_bytes)

    @property
    def slot_bytes(self) -> int:
        """Keys and values of one token over all layers."""
        return round(self.n_layers * self.kv_width * self.kv_bytes)


@dataclass(frozen=True, slots=True)
class Cut:
    """Stages (the paper's inter-layer) and shards of each stage (intra-layer); a device for each shard."""

    stages: int = 1
    shards: int = 1

    def __post_init__(self) -> None:
        assert self.stages >= 1 and self.shards >= 1

    @property
    def devices(self) -> int:
        return self.stages * self.shards


def gpt(name: str, n_layers: int, hidden_size: int, vocabulary: int = 50257, context_length: int = 2048) -> ModelSizes:
    """A GPT-3 in 16-bit floats: four matrices of H x H in attention, two of H x 4H after it, a tied head."""
    return ModelSizes(
        name=name,
        n_layers=n_layers,
        hidden_size=hidden_size,
        layer_parameters=12 * hidden_size**2,
        head_parameters=vocabulary * hidden_size,
        embedding_parameters=context_length * hidden_size,  # of positions
        query_width=hidden_size,
        kv_width=2 * hidden_size,
        context_length=context_length,
    )


# The paper's models, and how it cut them.
PAPER_MODELS = {
    "13b": (gpt("13B", 40, 5120), Cut(1, 1)),
    "101b": (gpt("101B", 80, 10240), Cut(1, 8)),
    "175b": (gpt("175B", 96, 12288), Cut(2, 8)),
    "341b": (gpt("341B", 120, 15360), Cut(4, 8)),
}
