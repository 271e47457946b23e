"""Plan: what the planner found, as text, JSON and a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log

from orcaserve.evaluation.pictures.chart import COLOURS, Axis, Chart, Level, Series, draw_chart
from orcaserve.evaluation.pictures.drawing import Drawing
from orcaserve.evaluation.planning.engine import PlannedEngine
from orcaserve.evaluation.planning.search import Carried, Search
from orcaserve.evaluation.targets import Target
from orcaserve.workload.named import Workload

MEMORY, TARGET, SLOTS, SPEED = "memory", "target", "slots", "speed"


@dataclass(frozen=True, slots=True)
class Plan:
    """best, tried: None and empty if the model does not fit. wanted: requests/s to carry, with how many replicas is the
    question. n_devices: what there is, all of it for replicas. At most one of them.

    limit: what binds: memory (nothing fits), target (missed at any load), slots (with more of them there would be more
    load), speed (of the iterations).
    """

    engine: PlannedEngine
    workload: Workload
    targets: Sequence[Target]
    best: Carried | None
    tried: Sequence[Carried]
    limit: str
    wanted: float | None = None
    n_devices: int | None = None

    @property
    def fits(self) -> bool:
        return self.best is not None and self.best.most is not None

    @property
    def replicas(self) -> int:
        if self.n_devices is not None:
            return self.n_devices // self.engine.devices
        if self.wanted is None or self.best is None or not self.best.load:
            return 1
        return max(ceil(self.wanted / self.best.load), 1)

    @property
    def load_of_all(self) -> float:
        """Requests a second of all replicas, which share them evenly."""
        return 0.0 if self.best is None else self.replicas * self.best.load

    def as_json(self) -> dict[str, object]:
        memory, best = self.engine.memory, self.best
        found: dict[str, object] = {
            "model": self.engine.model,
            "hardware": self.engine.where,
            "memory": {
                "total_bytes": memory.total, "kept_back_bytes": memory.kept_back, "weight_bytes": memory.weights,
                "slot_bytes": memory.slot, "n_slots": self.engine.n_slots, "workspace_bytes": self.engine.workspace,
            },
            "workload": self.workload.name,
            "targets": [str(target) for target in self.targets],
            "fits": self.fits,
            "limit": self.limit,
        }  # fmt: skip
        if best is not None:
            found["max_bs"], found["n_slots"], found["replicas"] = best.max_bs, best.n_slots, self.replicas
            found["devices"] = self.replicas * self.engine.devices
            found["req_s"] = best.load
            found["req_s_of_all"] = self.load_of_all
            found["breaks_at_req_s"] = None if best.breaks is None else best.breaks.rate
            found["capacity_req_s"] = best.capacity
            found["tried"] = [
                {"max_bs": one.max_bs, "req_s": one.load, "capacity_req_s": one.capacity,
                 "points": [{"req_s": t.rate, "served_req_s": t.served, "share_of_bound": t.of_bound}
                            for t in one.tries]}
                for one in self.tried
            ]  # fmt: skip
        return found

    def text(self) -> str:
        memory, engine = self.engine.memory, self.engine
        lines = [
            f"{engine.model} on {engine.where}",
            *_memory_lines(engine),
            f"  room for         {engine.n_slots:,} slots: {_longest_fit(engine)}",
        ]
        if self.limit == MEMORY:
            lacking = memory.weights + memory.kept_back + engine.page_size * memory.slot - memory.total
            lines.append(
                f"does not fit: memory binds; each device lacks {_gb(max(lacking, 0))} for the first page alone"
            )
            return "\n".join(lines)
        assert self.best is not None
        goals = " and ".join(map(str, self.targets))
        lines.append(f"workload {self.workload.name}, {self.workload.n} requests; target {goals}")
        if self.best.most is None:
            worst = self.best.breaks
            assert worst is not None
            lines.append(
                f"the target cannot be met: even {worst.rate:.3g} req/s take {worst.of_bound:.2f} of it (best: max_bs "
                f"{self.best.max_bs})"
            )
            return "\n".join(lines)
        best = self.best
        lines += [
            f"  max_bs           {best.max_bs}   (--max-num-seqs {best.max_bs})",
            f"  n_slots          {best.n_slots:,}   (--n-slots {best.n_slots})",
            f"  carries          {best.load:.3g} req/s a replica, at {best.most.of_bound:.0%} of the bound"
            if best.most else "",
            "  breaks at        " + (f"{best.breaks.rate:.3g} req/s" if best.breaks else "what it can carry at most"),
            f"  at most          {best.capacity:.3g} req/s, whatever the latency",
            f"  what binds       {_LIMITS[self.limit]}",
        ]  # fmt: skip
        if self.n_devices is not None:
            lines.append(f"  {self.n_devices} devices are   {self.replicas} replicas: {self.load_of_all:.3g} req/s")
        if self.wanted is not None:
            devices = self.replicas * engine.devices
            lines.append(
                f"  {self.wanted:g} req/s take   {self.replicas} replica{'s' * (self.replicas > 1)} ({devices} devices)"
            )
        lines.append(
            "  by max_bs        " + ", ".join(f"{one.max_bs}: {one.load:.3g}" for one in self.tried) + " req/s"
        )
        return "\n".join(lines)

    def _drawn(self) -> list[Carried]:
        """The best one and those around it, as many as can be told apart."""
        assert self.best is not None
        near = sorted(self.tried, key=lambda one: abs(log(one.max_bs / self.best.max_bs)) if self.best else 0.0)
        return sorted(near[: len(COLOURS)], key=lambda one: one.max_bs)

    def picture(self) -> Drawing:
        """How near each setting comes to the bound, by load."""
        series = [
            Series(
                f"max_bs {one.max_bs}",
                [(t.rate, t.of_bound * 100) for t in one.tries],
                COLOURS[i % len(COLOURS)],
                dashed=one.max_bs != (self.best.max_bs if self.best else 0),
            )
            for i, one in enumerate(self._drawn())
        ]
        goals = " and ".join(map(str, self.targets))
        return draw_chart(
            Chart(
                f"{self.engine.model} on {self.engine.where.split(':')[0]}",
                Axis(f"requests/s ({self.workload.name})", low=0),
                Axis(f"% of {goals}", log=True, high=1000),
                series,
                [Level(100, "the target")],
                width=720,
                height=400,
            )
        )


_LIMITS = {
    SLOTS: "K/V slots: with more memory there would be more load",
    SPEED: "speed: the iterations themselves",
    TARGET: "the target",
}


def make_plan(
    engine: PlannedEngine,
    workload: Workload,
    targets: Sequence[Target],
    wanted: float | None = None,
    seed: int = 0,
    on_setting: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Memory first; then, if the model and the longest request fit, the search."""
    longest = max(arrival.n_input + arrival.asked for arrival in workload.arrivals(1.0, seed))
    if engine.n_slots < min(longest, engine.context_length) or engine.n_slots < engine.page_size:
        return Plan(engine, workload, targets, None, (), MEMORY, wanted)
    search = Search(engine, workload, targets, seed, on_setting)
    best, tried = search.best()
    limit = TARGET
    if best.most is not None:
        batches = {best.max_bs, min(best.max_bs * 4, engine.largest_batch)}
        more = max(search.carried(max_bs, engine.n_slots * 4).load for max_bs in batches)
        limit = SLOTS if more > best.load * 1.05 else SPEED
    tried = [search.drawn(one) if one.max_bs == best.max_bs else one for one in tried]
    return Plan(engine, workload, targets, best, tried, limit, wanted)


def _memory_lines(engine: PlannedEngine) -> list[str]:
    memory = engine.memory
    each = "" if engine.devices == 1 else " a device"
    workspace = (
        "" if engine.workspace is None else f", of them {_gb(engine.workspace)} for the longest prompt's numbers"
    )
    return [
        f"  weights          {_gb(memory.weights)}{each}",
        f"  K/V of a slot    {memory.slot:,} bytes{each}",
        f"  kept back        {_gb(memory.kept_back)}{each} for runtime and workspace{workspace}",
        f"  memory           {_gb(memory.total)}{each}",
    ]


def _longest_fit(engine: PlannedEngine) -> str:
    n = engine.n_slots // engine.context_length
    return f"{n} requests of the longest kind ({engine.context_length:,} tokens)"


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB"
