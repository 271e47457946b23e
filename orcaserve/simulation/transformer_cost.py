"""TransformerCost: an iteration on accelerators, from data sheets and a handful of factors that are all visible here.

One layer of a stage, for n input tokens of R requests, P parameters of the layer on one device, H numbers a token:

    matrices     max(bytes of P / bandwidth, 2 P n / (peak * efficiency(n)))
    sums         2 all-reduces of n H numbers between the shards
    context      K/V bytes of the context / bandwidth
    products     4 H operations for each (token, token it attends to) of a prompt, at the efficiency of n
    kernels      launches, norms, activation, softmax
    split        attention request by request: a little for each request beside the first, until the device is full

A stage is its layers, the last one the head for one row of each request as well, and sending n H numbers to the next.
The formula and what it is made of are the ones of docs/evaluation.md, which also says where each factor comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orcaserve.simulation.hardware import A100_40GB, Hardware
from orcaserve.simulation.models import Cut, ModelSizes
from orcaserve.simulation.shape import Shape

Table = tuple[tuple[float, float], ...]  # (x, y), x ascending


@dataclass(frozen=True, slots=True)
class Factors:
    """What a system reaches of its hardware. Times in seconds.

    bandwidth_share: of the memory's bandwidth. efficiency: share of the peak by input tokens of the iteration.
    all_reduce: by bytes, between the 8 devices of an A100 machine; other links scale it beyond the first entry.
    kernel_seconds: of a layer, launches and all that is neither matrix nor attention. split_seconds: of a layer, for
    each further request, split_most at most. send_seconds: of handing a batch to the next stage, beside the bytes.
    overhead: factor of everything, for what a serving system does beside its kernels (1 = the engine alone).
    padded: every request is computed as if it were as long as the longest of its batch.
    """

    bandwidth_share: float = 0.76
    efficiency: Table = ((128, 0.40), (256, 0.56), (512, 0.69), (1024, 0.72))
    all_reduce: Table = (
        (256e3, 32e-6), (1e6, 64e-6), (3e6, 81e-6), (8e6, 155e-6), (12e6, 206e-6), (32e6, 411e-6), (64e6, 675e-6),
    )  # fmt: skip
    kernel_seconds: float = 75e-6
    split_seconds: float = 10e-6
    split_most: int = 7
    send_seconds: float = 50e-6
    overhead: float = 1.0
    padded: bool = False


class TransformerCost:
    """The cost of a model, cut over devices. Uneven cuts give the first stages one layer more."""

    def __init__(self, model: ModelSizes, hardware: Hardware, cut: Cut, factors: Factors) -> None:
        self.model, self.hardware, self.cut, self.factors = model, hardware, cut, factors
        short, more = divmod(model.n_layers, cut.stages)
        self._layers = [short + (stage < more) for stage in range(cut.stages)]
        self._by_tokens: dict[int, tuple[float, float, float]] = {}
        self._bytes_per_second = hardware.bandwidth * factors.bandwidth_share
        self._context_seconds = model.kv_width * model.kv_bytes / cut.shards / self._bytes_per_second

    @property
    def n_workers(self) -> int:
        return self.cut.stages

    def stage_seconds(self, shape: Shape) -> Sequence[float]:
        factors, n_requests = self.factors, shape.n_requests
        n_tokens, context = shape.n_tokens, shape.context
        if factors.padded:
            n_tokens = n_requests * shape.longest_input
            context = n_requests * shape.longest_context if context else 0
        known = self._by_tokens.get(n_tokens)
        if known is None:
            known = self._by_tokens[n_tokens] = self._of_tokens(n_tokens)
        by_tokens, by_product, send = known
        layer = by_tokens + context * self._context_seconds + shape.products * by_product
        layer += factors.split_seconds * min(n_requests - 1, factors.split_most)
        times = [(layers * layer + send) * factors.overhead for layers in self._layers]
        times[-1] += self._head(n_requests) * factors.overhead
        return times

    def _of_tokens(self, n: int) -> tuple[float, float, float]:
        """What depends on the number of input tokens alone: of a layer, of a product of attention, of sending."""
        model, hardware, factors = self.model, self.hardware, self.factors
        parameters = model.layer_parameters / self.cut.shards
        speed = hardware.peak * _between(factors.efficiency, n)
        layer = max(parameters * model.weight_bytes / self._bytes_per_second, 2 * parameters * n / speed)
        numbers = n * model.hidden_size * 2
        if self.cut.shards > 1:
            layer += 2 * self._all_reduce(numbers)
        send = factors.send_seconds + numbers / hardware.network if self.cut.stages > 1 else 0.0
        return layer + factors.kernel_seconds, 4 * model.query_width / self.cut.shards / speed, send

    def _all_reduce(self, n_bytes: float) -> float:
        """Seconds. The table's first entry is what any sum takes; what it takes beyond that goes by the link."""
        table = self.factors.all_reduce
        (x, y), (last_x, last_y) = table[-2:]
        if n_bytes > last_x:
            seconds = last_y + (n_bytes - last_x) * (last_y - y) / (last_x - x)
        else:
            seconds = _between(table, n_bytes)
        least = table[0][1]
        return least + (seconds - least) * A100_40GB.link / self.hardware.link

    def _head(self, n_requests: int) -> float:
        parameters = self.model.head_parameters / self.cut.shards
        operations = 2 * parameters * n_requests
        return max(
            parameters * self.model.weight_bytes / self._bytes_per_second,
            operations / (self.hardware.peak * _between(self.factors.efficiency, n_requests)),
        )


def _between(table: Table, x: float) -> float:
    """The line through the table's points, level before the first and after the last."""
    before = table[0]
    for point in table:
        if x <= point[0]:
            if point is before:
                break
            return before[1] + (point[1] - before[1]) * (x - before[0]) / (point[0] - before[0])
        before = point
    return before[1]
