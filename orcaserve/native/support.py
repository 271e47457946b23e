"""What of a model the CPU kernels cannot run. Such a model runs in PyTorch."""

from __future__ import annotations

from orcaserve.core.errors import UnsupportedModel
from orcaserve.model.filled_heads import HEAD_UNIT
from orcaserve.model.spec import ModelSpec

MOST_EXPERTS = 1024  # csrc/model.h's kMostExperts


def lacking(spec: ModelSpec) -> list[str]:
    """In words, empty if they can run all of it."""
    options = {
        # Other heads are filled up (model/filled_heads.py).
        f"norms of heads of {spec.head_dim} dimensions, which are no multiple of {HEAD_UNIT}": (
            spec.head_dim % HEAD_UNIT != 0
        ),
        f"{spec.n_experts} experts in a layer, more than {MOST_EXPERTS}": spec.n_experts > MOST_EXPERTS,
    }
    return [what for what, is_there in options.items() if is_there]


def check_supported(spec: ModelSpec) -> None:
    """Raises UnsupportedModel if the kernels cannot run it."""
    if missing := lacking(spec):
        raise UnsupportedModel(
            f"the CPU's kernels lack {', '.join(missing)}; --device reference runs this model, slowly"
        )
