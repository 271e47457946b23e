"""Targets for latency, as users write them: p50_normalized<=190ms, p99_itl<=80ms, ttft_p99<=2s."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from orcaserve.core.errors import ConfigError

EXAMPLES = "p50_normalized<=190ms, p99_itl<=80ms or ttft_p99<=2s"
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_FORM = re.compile(r"\s*(?:p(?P<p>[\d.]+)_(?P<m>[a-z0-9]+)|(?P<m2>[a-z0-9]+)_p(?P<p2>[\d.]+))\s*<=\s*"
                   r"(?P<bound>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>us|ms|s)\s*", re.ASCII)  # fmt: skip


class Metric(StrEnum):
    """What is measured of a request, in seconds."""

    TTFT = "ttft"  # to its first token
    ITL = "itl"  # from one token to the next
    E2E = "e2e"  # to its end
    NORMALIZED = "normalized"  # to its end, divided by its tokens


_SPELLINGS = {**{metric.value: metric for metric in Metric}, "normalised": Metric.NORMALIZED}


@dataclass(frozen=True, slots=True)
class Target:
    """At least `share` of all requests (of all gaps between tokens, for ITL) need at most `bound` seconds."""

    metric: Metric
    share: float
    bound: float

    def __str__(self) -> str:
        bound = f"{self.bound:g}s" if self.bound >= 1 else f"{self.bound * 1e3:g}ms"
        return f"p{self.share * 100:g}_{self.metric}<={bound}"


def parse_target(text: str) -> Target:
    """Raises ConfigError that names what cannot be understood."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ConfigError("--target", f"{text!r} is no target; write one as {EXAMPLES}")
    name = found["m"] or found["m2"]
    if name not in _SPELLINGS:
        raise ConfigError("--target", f"{text!r}: there is no {name!r}; there are {', '.join(Metric)}")
    try:
        percent = float(found["p"] or found["p2"])
    except ValueError:
        percent = 0.0
    if not 0 < percent < 100:
        raise ConfigError("--target", f"{text!r}: a percentile lies between p0 and p100, both excluded")
    bound = float(found["bound"]) * UNITS[found["unit"]]
    if not 0 < bound < 1e9:
        raise ConfigError("--target", f"{text!r}: a bound is more than 0 and less than a billion seconds")
    return Target(_SPELLINGS[name], percent / 100, bound)
