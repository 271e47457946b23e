"""The paper's two systems on its hardware: ONE set of factors, fitted on figures of a single system each.

    bandwidth_share, split_seconds, split_most    Figure 9b, the 20 points of 101B that are not out of memory
    overhead of Orca                              Orca's 6.81 req/s of 175B at 190 ms (Figure 10b)
    overhead of FasterTransformer                 its peak of 0.49 req/s of 101B (Figure 10a), and its 0.185 req/s
                                                  of 175B at 190 ms: no factor meets both, this one lies between
    all others                                    data sheets, and measurements of A100 machines (docs/evaluation.md)

The comparison of the two at 190 ms is fitted on nothing: it is what comes out.
"""

from __future__ import annotations

from dataclasses import replace

from orcaserve.simulation.device_memory import device_memory
from orcaserve.simulation.hardware import A100_40GB
from orcaserve.simulation.models import PAPER_MODELS
from orcaserve.simulation.transformer_cost import Factors, TransformerCost

ORCA_ENGINE = Factors()
FASTER_TRANSFORMER_ENGINE = replace(ORCA_ENGINE, split_seconds=0.0, padded=True)
ORCA = replace(ORCA_ENGINE, overhead=1.26)
FASTER_TRANSFORMER = replace(FASTER_TRANSFORMER_ENGINE, overhead=1.12)


def paper_cost(model: str, factors: Factors) -> TransformerCost:
    """model: one of the keys of PAPER_MODELS, cut as the paper cut it."""
    sizes, cut = PAPER_MODELS[model]
    return TransformerCost(sizes, A100_40GB, cut, factors)


def paper_slots(model: str) -> int:
    """K/V slots of the whole engine: what fits the fullest device."""
    sizes, cut = PAPER_MODELS[model]
    return device_memory(sizes, A100_40GB, cut).n_slots
