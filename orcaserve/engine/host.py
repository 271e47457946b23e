"""EngineHost: scheduler, loop and engine, put together behind one door. The engine process and LLM both use it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from orcaserve.config import EngineConfig, ScheduleLogConfig, SchedulerConfig
from orcaserve.core import (
    AdapterAnswer,
    AdapterSource,
    ConfigError,
    Engine,
    EngineError,
    EngineFacts,
    EngineStatus,
    FinishReason,
    InvalidRequest,
    IterationReport,
    LiveRequests,
    Progress,
    Request,
    SamplingParams,
    Sink,
)
from orcaserve.core.admission import check_output, check_request
from orcaserve.engine.local import WORKER, LocalEngine
from orcaserve.engine.master import EngineMaster
from orcaserve.process import name_thread
from orcaserve.schedule_log.format import Settings
from orcaserve.schedule_log.recorder import ENDLESS, Run, ScheduleRecorder
from orcaserve.schedule_log.rotating_file import RotatingFile
from orcaserve.scheduler.loop import IterationLoop
from orcaserve.scheduler.policies import PolicySettings, SchedulingPolicy, make_policy
from orcaserve.scheduler.prefix_cache import PrefixCache
from orcaserve.scheduler.scheduler import Scheduler
from orcaserve.worker.executor import DeviceExecutor

_log = logging.getLogger(__name__)
Report = Callable[[IterationReport], None]
WATCH_SECONDS = 0.08  # that lines wait for others while somebody watches: some messages a second


class EngineHost:
    """Runs requests to their end. Every request that was submitted gets exactly one Progress with a finish reason.

    facts: what the loaded model is.
    report: called with the news of each turn, on the loop's thread, or on a submitter's for a request that is refused.
    on_failure: called once, on the loop's thread, if the engine fails; by then every live request was reported.
    """

    def __init__(
        self,
        engine: Engine,
        facts: EngineFacts,
        page_size: int,
        report: Report,
        on_failure: Callable[[str], None] = lambda message: None,
        settings: SchedulerConfig | None = None,
        log: ScheduleLogConfig | None = None,
    ) -> None:
        """Raises ConfigError if the policy could run nothing at all, or the schedule log cannot be made."""
        settings = settings or SchedulerConfig()
        policy = _policy(settings, facts, engine.n_workers)
        reads = facts.source is not None
        if settings.prefix_caching and reads:
            _log.info("%s: its encoder reads prompts whole, so no beginnings are shared", facts.model_name)
            settings = replace(settings, prefix_caching=False)
        prefixes = PrefixCache(page_size, facts.shareable) if settings.prefix_caching else None
        scheduler = Scheduler(
            facts.n_slots, facts.max_bs, engine.n_workers, page_size, policy, prefixes, facts.window, reads
        )
        _check_policy(scheduler, policy, settings, facts)
        self._made_of = _made_of(settings, facts, scheduler, page_size)
        self._run = Run.beginning(time.monotonic())
        self._record = _recorder(log, self._made_of, self._run)
        self._watcher: ScheduleRecorder | None = None
        self.facts = facts
        self._engine = engine
        self._report = report
        self._on_failure = on_failure
        self._status = EngineStatus()
        self._loop = IterationLoop(scheduler, engine, self._publish, record=self._record)
        self._thread = threading.Thread(target=self._serve, name="loop", daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls, config: EngineConfig, report: Report, on_failure: Callable[[str], None] = lambda message: None
    ) -> EngineHost:
        """Load the model into a worker of this process, or its parts into processes of their own; takes seconds.

        On the main thread, if there are such processes: they end with the thread that started them. Raises ModelError,
        ConfigError, or EngineError if a process is lost.
        """
        from orcaserve.worker.backend import settle_device  # late: the engine's socket is there while it is imported

        config = settle_device(config)
        if config.parallel.n_workers > 1 or config.ray is not None:
            master = EngineMaster.load(config)
            return cls._over(master, master.facts, config, report, on_failure)
        from orcaserve.worker.worker import Worker

        executor = DeviceExecutor(f"worker {WORKER}")
        try:
            worker = executor.call(lambda: Worker.load(config))
        except Exception:
            executor.close()
            raise
        engine = LocalEngine(worker, executor, config.parallel.timeline, config.parallel.device_timeout)
        return cls._over(engine, worker.facts, config, report, on_failure)

    @classmethod
    def _over(
        cls, engine: Engine, facts: EngineFacts, config: EngineConfig, report: Report, on_failure: Callable[[str], None]
    ) -> EngineHost:
        try:
            return cls(engine, facts, config.kv.page_size, report, on_failure, config.scheduler, config.schedule_log)
        except ConfigError:
            engine.close()
            raise

    def submit(self, requests: Sequence[Request]) -> None:
        """Hand over new requests, in order of arrival; one that the model cannot run is refused by itself.

        Raises EngineError once the engine has failed or was closed.
        """
        accepted: list[Request] = []
        for request in requests:
            try:
                self._check(request)
                accepted.append(self._begun(request))
            except InvalidRequest as error:
                self.refuse(request.id, error.message)
        if accepted:
            self._loop.submit(accepted)

    def cancel(self, request_ids: Sequence[int]) -> None:
        """End requests early; ids that are not live (any more) are ignored."""
        self._loop.cancel(request_ids)

    def load_adapter(self, adapter: AdapterSource, answer: AdapterAnswer) -> None:
        """Have requests name it from the answer on; other requests go on meanwhile."""
        self._engine.load_adapter(adapter, answer)

    def unload_adapter(self, number: int, answer: AdapterAnswer) -> None:
        """No later request names it; those that have it go on to their ends first."""
        self._loop.unload_adapter(number, answer)

    def watch(self, sink: Sink | None) -> None:
        """Have the schedule told to this sink from now on, or to nobody. Call it from one thread at a time.

        The first line is a header which says how things stand; so it is anew if the sink that there is is named again.
        """
        if sink is None:
            self._watcher = None
        elif self._watcher is None or self._watcher.sink is not sink:
            self._watcher = ScheduleRecorder(
                self._made_of, sink, ENDLESS, run=self._run, n_parts=1, flush_seconds=WATCH_SECONDS
            )
        self._loop.watch(self._watcher)

    def describe(self, answer: Callable[[LiveRequests], None]) -> None:
        """Have `answer` called, on the loop's thread, with all live requests; never if the engine has ended."""
        self._loop.describe(answer)

    def refuse(self, request_id: int, why: str) -> None:
        """Report a request as failed that was never handed to the scheduler."""
        self._report(IterationReport([Progress(request_id, None, FinishReason.ERROR, why)], self._status))

    def close(self) -> None:
        """End every live request as CANCELLED, wait for the iteration in flight, stop. Idempotent."""
        self._loop.stop()
        self._thread.join()

    def kill(self, for_good: bool = False) -> None:
        """Leave nothing behind but this process, which is about to end: other processes of the engine are ended now.

        for_good: no engine follows, so machines that joined need not wait for it.
        """
        self._engine.kill(for_good)
        if self._record is not None:
            self._record.close()

    def _check(self, request: Request) -> None:
        """What the endpoint has checked already, once more: nothing past this point may fail for a request's sake."""
        check_request(request.input_ids, request.params, self.facts)
        check_output(request.output, request.params, self.facts)
        if any(not 0 <= token < self.facts.vocab_size for token in request.stop_ids):
            raise InvalidRequest("stop_token_ids", f"a stop id lies outside 0..{self.facts.vocab_size - 1}")

    def _begun(self, request: Request) -> Request:
        """As the scheduler has it: of a model with an encoder, the token that its decoder begins with is input too."""
        if self.facts.source is None:
            return request
        return replace(request, input_ids=[*request.input_ids, self.facts.source.start])

    def _publish(self, report: IterationReport) -> None:
        self._status = report.status
        self._report(report)

    def _serve(self) -> None:
        name_thread(self._thread.name)
        try:
            self._loop.run()
        except EngineError as error:
            _log.error("the engine has failed: %s", error)
            self._on_failure(str(error))


def _policy(settings: SchedulerConfig, facts: EngineFacts, n_workers: int) -> SchedulingPolicy:
    shortest_first = settings.first_iteration != "whole"
    made_of = PolicySettings(
        n_workers,
        facts.context_length,
        settings.microbatch_size,
        shortest_first,
        fairness=settings.fairness,
        batched_tokens=settings.max_num_batched_tokens,
        target_itl=settings.target_itl,
        whole=facts.source is not None,
    )
    if settings.policy == "request-level" and facts.source is not None:
        text = (
            "request-level computes a request on to the longest text, for which this model's decoder has no positions"
        )
        raise ConfigError("--scheduling-policy", text)
    return make_policy(settings.policy, made_of)


def _check_policy(
    scheduler: Scheduler, policy: SchedulingPolicy, settings: SchedulerConfig, facts: EngineFacts
) -> None:
    """Raises ConfigError if it would refuse even the smallest request."""
    smallest = Request(0, [0] if facts.source is None else [0, 0], SamplingParams(max_tokens=1))
    if not scheduler.could_ever_fit(smallest):
        raise ConfigError(
            "--scheduling-policy",
            f"{settings.policy} reserves {policy.most(smallest)} slots for each request and there are "
            f"{facts.n_slots}: give more --n-slots, or a smaller --max-model-len",
        )


def _made_of(settings: SchedulerConfig, facts: EngineFacts, scheduler: Scheduler, page_size: int) -> Settings:
    return Settings(
        policy=settings.policy,
        max_bs=scheduler.max_bs,
        n_slots=facts.n_slots,
        page_size=page_size,
        n_workers=scheduler.n_workers,
        longest=facts.context_length,
        microbatch_size=settings.microbatch_size,
        shortest_first=settings.first_iteration != "whole",
        model=facts.model_name,
        fairness=settings.fairness,
        batched_tokens=settings.max_num_batched_tokens,
        target_itl=settings.target_itl,
        prefix_caching=settings.prefix_caching,
        shareable=facts.shareable if settings.prefix_caching else None,
        sources=facts.source is not None,
        window=facts.window,
    )


def _recorder(log: ScheduleLogConfig | None, made_of: Settings, run: Run) -> ScheduleRecorder | None:
    """Raises ConfigError if the file cannot be made."""
    if log is None or log.path is None:
        return None
    recorder = ScheduleRecorder(made_of, RotatingFile(log.path, log.n_files), log.part_bytes, run=run)
    recorder.begin()
    return recorder
