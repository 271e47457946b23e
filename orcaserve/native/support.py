"""What of a model the CPU kernels cannot run. Such a model runs in PyTorch."""

from __future__ import annotations

from orcaserve.core.errors import UnsupportedModel
from orcaserve.model.spec import ModelSpec


def lacking(spec: ModelSpec) -> list[str]:
    """In words, empty if they can run all of it."""
    options = {
        f"heads of {spec.head_dim} dimensions, which are no multiple of 4": spec.head_dim % 4 != 0,
        "norms behind attention and MLP": spec.post_norm or not spec.pre_norm,
        "attention and MLP side by side": spec.parallel,
        "norms of queries and keys": spec.qk_norm is not None,
        "sliding windows": any(spec.windows),
        "positions that turn otherwise in some layers": spec.local_rope is not None or bool(spec.unturned),
        "linear biases of scores": bool(spec.alibi),
        "soft caps": bool(spec.attention_softcap or spec.logit_softcap),
        "scaled embeddings, layers or logits": (spec.embedding_scale, spec.residual_scale, spec.logit_scale)
        != (1, 1, 1),
        "a norm of the embedding": spec.embedding_norm,
    }
    return [what for what, is_there in options.items() if is_there]


def check_supported(spec: ModelSpec) -> None:
    """Raises UnsupportedModel if the kernels cannot run it."""
    if missing := lacking(spec):
        raise UnsupportedModel(
            f"the CPU's kernels lack {', '.join(missing)}; --device reference runs this model, slowly"
        )
