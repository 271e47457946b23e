"""What of a model the CPU kernels cannot run. Such a model runs in PyTorch."""

from __future__ import annotations

from orcaserve.core.errors import UnsupportedModel
from orcaserve.model.spec import ModelSpec


def lacking(spec: ModelSpec) -> list[str]:
    """In words, empty if they can run all of it."""
    if spec.head_dim % 4:
        return [f"heads of {spec.head_dim} dimensions, which are no multiple of 4"]
    return []


def check_supported(spec: ModelSpec) -> None:
    """Raises UnsupportedModel if the kernels cannot run it."""
    if missing := lacking(spec):
        raise UnsupportedModel(
            f"the CPU's kernels lack {', '.join(missing)}; --device reference runs this model, slowly"
        )
