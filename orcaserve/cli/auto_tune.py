"""`orcaserve serve --auto-tune`: the settings that the planner finds for this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from orcaserve.cli.profile_file import default_profile
from orcaserve.config import EngineConfig
from orcaserve.core.errors import ConfigError

REQUESTS = 300  # of a simulated run


def tuned(config: EngineConfig, targets: Sequence[str] | None, workload_name: str) -> EngineConfig:
    """The same with the planner's max_bs and n_slots. What it found is printed to standard error.

    Raises ConfigError if a target does not parse or cannot be met, if there is no profile of this machine and model, or
    if the settings are not those of a profile: one engine in one process, scheduled by iterations.
    """
    if config.parallel.n_workers > 1 or config.parallel.data_parallel_size > 1:
        raise ConfigError("--auto-tune", "is for one engine in one process, of which a profile tells")
    if config.scheduler.policy != "iteration-level":
        raise ConfigError("--auto-tune", f"plans for iteration-level, not for {config.scheduler.policy}")
    if config.kv.n_slots is not None or config.kv.memory_bytes is not None:
        raise ConfigError("--auto-tune", "chooses n_slots itself: leave out --n-slots and --kv-cache-memory-bytes")
    if not targets:
        raise ConfigError("--auto-tune", 'say what to keep: --target "p50_normalized<=190ms", for example')
    path = default_profile(config.model.name)
    if not path.exists():
        raise ConfigError(
            "--auto-tune", f"there is no profile of {config.model.name}; `orcaserve profile` measures one"
        )
    from orcaserve.evaluation.planning.engine import profiled_engine
    from orcaserve.evaluation.planning.plan import make_plan
    from orcaserve.evaluation.targets import parse_target
    from orcaserve.workload.named import Workload, named_source
    from orcaserve.workload.shape import Shape

    goals = [parse_target(text) for text in targets]
    engine = profiled_engine(path, config)
    shape = Shape(max_input=max(engine.context_length * 3 // 4, 1), max_output=max(engine.context_length // 4, 1))
    plan = make_plan(engine, Workload(workload_name, named_source(workload_name), REQUESTS, shape, 1.0), goals)
    print(plan.text(), file=sys.stderr, flush=True)
    if plan.best is None or not plan.fits:
        raise ConfigError("--target", "no settings keep it on this machine (see above)")
    return replace(
        config,
        scheduler=replace(config.scheduler, max_bs=plan.best.max_bs),
        kv=replace(config.kv, n_slots=plan.best.n_slots),
    )
