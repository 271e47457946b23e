"""The table of families of models: `orcaserve models list --supported`, and a part of the README."""

from __future__ import annotations

from orcaserve.model.families import FAMILIES, Family
from orcaserve.model.families.settings import Settings
from orcaserve.native.support import lacking

HEADER = ("family", "config.json", "GGUF", "for example", "runs in", "what is special")

# A config that every family can read: what a family does when nothing is said is what its kernels must know.
_TYPICAL = {
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 128,
    "ffn_dim": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "n_embd": 64,
    "n_layer": 6,
    "n_head": 4,
    "n_positions": 2048,
    "rotary_dim": 8,
    "sliding_window": 1024,
    "embedding_multiplier": 12.0,
}


def rows() -> list[tuple[str, ...]]:
    """One for each family, columns as in HEADER."""
    return [_row(family) for family in FAMILIES]


def _row(family: Family) -> tuple[str, ...]:
    where = "PyTorch" if lacking(family.spec(Settings(_TYPICAL))) else "the CPU's kernels, PyTorch"
    architectures = ", ".join(family.architectures) or "-"
    return family.title, ", ".join(family.model_types), architectures, family.example, where, family.special or "-"


def as_text() -> str:
    """Columns one below the other."""
    table = [HEADER, *rows()]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADER) - 1)]
    lines = ("  ".join((*(cell.ljust(n) for cell, n in zip(row, widths, strict=False)), row[-1])) for row in table)
    return "\n".join(lines)


def as_markdown() -> str:
    lines = [f"| {' | '.join(row)} |" for row in [HEADER, *rows()]]
    return "\n".join([lines[0], "|" + "---|" * len(HEADER), *lines[1:]])
