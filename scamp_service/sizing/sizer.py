"""Sizes candidates outside of the controller's thread: traces the layouts that the planner asks for, until it chooses.

It implements the ``Sizer`` of ``control.executor``. ``traces`` makes the traces, and the planner decides what fits.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from estimators.devices.kind import DeviceKind
from estimators.learned_seconds import SlowDowns, factor_for, learn_slow_downs, way_kind
from estimators.memory import Extra
from estimators.model import Layout, Plan, Prediction
from estimators.profile import ModelProfile
from estimators.trace import Trace
from placement.exact.study_planner import StudyPlanner
from placement.model import Cluster, Offer
from placement.option import NoPlan, Option
from placement.planning.answers import Answer, ChosenPlan, Untraced
from placement.planning.learned import choose_learned
from placement.planning.question import Question
from placement.planning.step_seconds import pipeline_step, predicted_step, with_memory
from scamp_service.control.executor import Demand, Unsized
from scamp_service.model import Choice, RecordedPipeline, Sized
from scamp_service.patience import TRACE_SECONDS
from scamp_service.sizing.batches import LargestBatch, largest_batch, other_batches, with_other_batches
from scamp_service.sizing.plan_search import Missing, PlanSearch, search_plan
from scamp_service.sizing.tracing.trace_pool import START_SECONDS
from scamp_service.sizing.tracing.trace_process import Interrupted, TraceFailed, TraceProcess
from scamp_service.sizing.tracing.traces import Blobs, Tracer
from workloads.batch import BatchRequest, with_batch

log = logging.getLogger("scamp.sizing")

UNKNOWN_WAY = "in the slowest way in which this family has run"
PATIENCE_SECONDS = 10.0
"""A trace may hold up other studies for this long, unless it is the only one of its study."""
WORKERS = 2  # traces that are made at once


Planner = Callable[[Question], Answer]
"""The policy that turns a question into a plan; ``placement.exact.study_planner.StudyPlanner`` is one."""


@dataclass(slots=True, eq=False)
class _Job:
    trial_id: int
    study_id: int
    demand: Demand
    cluster: Cluster
    search: PlanSearch[Sized | Unsized | LargestBatch] = field(repr=False)
    layouts: Sequence[Layout]
    batch_reason: str = ""  # if its batch was chosen
    offer: Offer = ()  # of the whole cluster; ``cluster`` has only the devices that the study may use
    trace_key: str = ""  # of the trace that it needs next
    num_traces: int = 0
    structure: str = ""
    since: float = field(default_factory=time.monotonic)  # when it began to wait for a process


@dataclass(slots=True)
class _Turns:
    """Whose turn it is: that of the study with the fewest jobs in progress, and then of the one that waits longest.

    A job's turn is one trace. Every other turn of a study goes to the candidate with the fewest traces, so that a small
    one that fits at once does not wait for all the layouts of a large one. The other turns go to the oldest candidate,
    so that a large one does not wait for all the small ones that keep arriving.
    """

    num_turns: Counter[int] = field(default_factory=Counter)  # of each study
    latest: dict[int, int] = field(default_factory=dict)  # study → number of its latest turn, of all studies

    def next(self, waiting: Sequence[_Job], in_progress: Sequence[_Job]) -> _Job:
        """The job of ``waiting`` whose turn it is, and note its turn."""
        busy = Counter(job.study_id for job in in_progress)
        study = min(
            {job.study_id for job in waiting}, key=lambda study: (busy[study], self.latest.get(study, -1), study)
        )
        fewest_first = self.num_turns[study] % 2 == 0
        of_study = [job for job in waiting if job.study_id == study]
        job = min(of_study, key=lambda job: (job.num_traces if fewest_first else 0, job.trial_id))
        self.latest[study] = self.num_turns.total()
        self.num_turns[study] += 1
        return job


class ProcessSizer:
    """Sizes candidates in ``workers`` threads, each with a trace process. A further process starts when a candidate has
    waited as long as a start takes: at the start of a first study ranks need the cores, too.

    Studies take turns, and so do the candidates of each. A trace that holds up other studies while its own study has
    another one in progress is ended after a while and made again later, and so is one that nobody needs any more. A
    candidate that needs a trace which another one makes just now, as they differ in numbers only, waits for that.
    """

    def __init__(
        self,
        blobs: Blobs,
        cache_dir: Path,
        workers: int = WORKERS,
        *,
        planner: Planner | None = None,
        kind_of: Callable[[Cluster], DeviceKind | None] = lambda cluster: None,
        kinds_of: Callable[[Cluster], Mapping[str, DeviceKind]] = lambda cluster: {},
        has_news: Callable[[], None] = lambda: None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        """``planner`` is by default that of studies.

        ``kind_of`` gives the speed of a cluster's fastest devices, None where it is not known, and ``kinds_of`` that of
        each kind. ``has_news`` is called, in any thread, when there is another result.
        """
        self._planner, self._has_news, self._start_seconds = planner or StudyPlanner(), has_news, start_seconds
        self._kind_of, self._kinds_of = kind_of, kinds_of
        self._tracers = [Tracer(blobs, cache_dir, TRACE_SECONDS, on_cuda=on_cuda) for on_cuda in (False, True)]
        self._changed = threading.Condition()
        self._turns = _Turns()
        self._in_progress: dict[TraceProcess, tuple[_Job, float]] = {}  # with the time since when
        self._waiting: list[_Job] = []
        self._open: dict[int, _Job] = {}
        self._results: dict[int, Sized | Unsized] = {}
        self._closed = False
        self._processes = [TraceProcess() for _ in range(workers)]
        self._threads = [
            threading.Thread(target=self._work, args=(process, number == 0), name="sizer", daemon=True)
            for number, process in enumerate(self._processes)
        ]
        for thread in self._threads:
            thread.start()

    def request(self, trial_id: int, demand: Demand, cluster: Cluster) -> None:
        """Start sizing a trial. No effect while it is sized, until its result is forgotten, or without devices."""
        with self._changed:
            if trial_id in self._open or trial_id in self._results or not cluster.devices or self._closed:
                return
            if not (able := cluster.of_kinds(demand.kinds)).devices:
                self._results[trial_id] = Unsized(cluster.why_none_of(demand.kinds), True, offer=cluster.offer)
                self._has_news()
                return
            search = self._search(demand, able)
            job = _Job(trial_id, demand.study_id, demand, able, search, next(search), offer=cluster.offer)
            self._open[trial_id] = job
            self._queue(job)

    def results(self) -> Mapping[int, Sized | Unsized]:
        """Results by trial id that have not been forgotten. Regular calls also end the traces that hold up others."""
        with self._changed:
            self._end_some()
            return dict(self._results)

    def forget(self, trial_ids: Sequence[int]) -> None:
        """Drop the results of these trials, and stop sizing them."""
        with self._changed:
            for trial_id in trial_ids:
                self._results.pop(trial_id, None)
                self._open.pop(trial_id, None)

    def held_up(self) -> Mapping[int, Sequence[int]]:
        """Trials that wait because every process has traced another trial for a while, by the ids of those."""
        with self._changed:
            now, busy = time.monotonic(), list(self._in_progress.values())
            if len(busy) < len(self._processes) or any(now - since <= PATIENCE_SECONDS for _, since in busy):
                return {}
            before = tuple(sorted({job.trial_id for job, _ in busy}))
            return {job.trial_id: before for job in self._waiting if self._open.get(job.trial_id) is job}

    def close(self) -> None:
        """End the trace processes and drop all requests."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for process in self._processes:
            process.kill()
        for thread in self._threads:
            thread.join()

    def _work(self, process: TraceProcess, warm_up: bool) -> None:
        if warm_up and not self._tracers[False].cache.has_any():  # cached traces may be enough for the first candidates
            process.start()
        while (job := self._next(process)) is not None:
            try:
                result = self._advance(job, process)
            except Interrupted:
                result = None
                job.num_traces += 1
            except TraceFailed as failed:
                result = Unsized(failed.reason, failed.infeasible, job.structure, may_pass=failed.may_pass)
            except Exception as error:  # our own bug: this trial fails, and the thread continues with the others
                log.exception("sizing of trial %s failed", job.trial_id)
                result = Unsized(f"sizing failed: {type(error).__name__}: {error}", infeasible=False)
            with self._changed:
                del self._in_progress[process]
                self._changed.notify_all()
                if self._open.get(job.trial_id) is not job:
                    continue  # forgotten meanwhile
                if result is None:
                    job.since = time.monotonic()
                    self._queue(job)
                else:
                    del self._open[job.trial_id]
                    self._results[job.trial_id] = result
                    self._has_news()
        process.end()

    def _queue(self, job: _Job) -> None:
        (layout,) = job.layouts
        job.trace_key = self._tracers[job.cluster.has_gpus].cache.key(job.demand.candidate, layout)
        self._waiting.append(job)
        self._changed.notify_all()

    def _next(self, process: TraceProcess) -> _Job | None:
        """The job whose turn it is; None once this is closed."""
        with self._changed:
            while not self._closed:
                self._waiting = [job for job in self._waiting if self._open.get(job.trial_id) is job]
                in_progress = [job for job, _ in self._in_progress.values()]
                under_way = {job.trace_key for job in in_progress}
                ready = [job for job in self._waiting if job.trace_key not in under_way]
                pause = self._pause(process, ready)
                if ready and pause <= 0.0:
                    job = self._turns.next(ready, in_progress)
                    self._waiting.remove(job)
                    self._in_progress[process] = job, time.monotonic()
                    return job
                self._changed.wait(pause if ready else None)
            return None

    def _pause(self, process: TraceProcess, ready: Sequence[_Job]) -> float:
        """Seconds until ``process`` may take a job: a further one does not start yet for what the first does sooner."""
        if process is self._processes[0] or process.pid is not None or not ready:
            return 0.0
        return min(job.since for job in ready) + self._start_seconds - time.monotonic()

    def _end_some(self) -> None:
        """End old traces while a trial waits: those that no trial needs, and those that hold up other studies.

        A trace holds them up if its study has several in progress, while a study that waits has none."""
        newest_first = list(self._in_progress.items())[::-1]
        waiting = {job.study_id for job in self._waiting if self._open.get(job.trial_id) is job}
        needed = Counter(job.study_id for _, (job, _) in newest_first if self._open.get(job.trial_id) is job)
        if not waiting or len(newest_first) < len(self._processes):
            return
        for process, (job, since) in newest_first:
            is_needed = self._open.get(job.trial_id) is job
            yields = not is_needed or (needed[job.study_id] > 1 and any(not needed[study] for study in waiting))
            if yields and time.monotonic() - since > PATIENCE_SECONDS:
                log.info("a trace of trial %s is ended after %.0f s: others wait", job.trial_id, PATIENCE_SECONDS)
                process.interrupt()
                needed[job.study_id] -= is_needed

    def _advance(self, job: _Job, process: TraceProcess) -> Sized | Unsized | None:
        """Search with the cached traces and at most one new one; returns None when it needs more in another turn."""
        tracer, has_traced = self._tracers[job.cluster.has_gpus], False
        try:
            while True:
                (layout,) = job.layouts  # the planner of a study asks for one layout at a time
                trace: Trace | str | None = tracer.cached(job.demand.candidate, layout)
                if trace is None:
                    if has_traced:
                        return None
                    trace, has_traced = self._traced(tracer, process, job.demand, layout), True
                job.num_traces += 1
                if isinstance(trace, Trace):
                    job.structure = trace.structure
                job.layouts = job.search.send({layout: trace})
        except StopIteration as end:
            match end.value:
                case LargestBatch(samples, reason):  # from here on it is sized as any candidate with this batch
                    candidate = job.demand.candidate
                    candidate = replace(candidate, params=with_batch(candidate.params, samples))
                    job.demand, job.batch_reason = replace(job.demand, candidate=candidate), reason
                    job.search = self._search(job.demand, job.cluster)
                    job.layouts = next(job.search)
                    return None
                case Sized() as sized:
                    return replace(sized, batch_reason=job.batch_reason)
                case Unsized(offer=None) as unsized:
                    return unsized
                case Unsized() as unsized:  # other kinds may be there, which it may not use: only new devices count
                    return replace(unsized, offer=job.offer)
            raise AssertionError(end.value) from None

    def _traced(self, tracer: Tracer, process: TraceProcess, demand: Demand, layout: Layout) -> Trace | str:
        """The trace, or why there is none.

        Raises ``TraceFailed`` for the plain layout, as the candidate then has no plan, and where a later try may do.
        """
        try:
            return tracer.trace(process, demand.candidate, layout, demand.trace_seconds)
        except TraceFailed as failed:
            if layout == Layout() or failed.may_pass:
                raise
            log.info("%s cannot be traced under %s: %s", demand.candidate.workload, layout, failed.reason)
            return failed.reason

    def _search(self, demand: Demand, cluster: Cluster) -> PlanSearch[Sized | Unsized | LargestBatch]:
        request = BatchRequest.of(demand.candidate.params)
        policy = self._largest_batch if request.takes_largest else self._plan

        def ask(profile: ModelProfile, batch: int) -> Sized | Unsized | LargestBatch | Missing:
            return policy(demand, cluster, replace(profile, traits=profile.traits | demand.traits), batch)

        return search_plan(ask, on_gpu=cluster.has_gpus)

    def _largest_batch(
        self, demand: Demand, cluster: Cluster, profile: ModelProfile, most: int
    ) -> LargestBatch | Unsized | Missing:
        """The largest batch that fits, up to ``most`` samples."""
        match self._choose(
            demand, Question(profile, most, cluster, self._kind_of(cluster), kinds=self._kinds_of(cluster))
        ):
            case Untraced(layout):
                return Missing([layout])
            case NoPlan(reason=reason):
                return Unsized(reason, infeasible=True, structure=profile.structure, offer=cluster.offer)
            case ChosenPlan() as chosen:
                under = {layout: demand.learned_bytes(layout) for layout in demand.learned}
                extra = Extra(under, evaluation=demand.evaluation)
                request = BatchRequest.of(demand.candidate.params)
                return largest_batch(request, chosen, profile, cluster, extra)

    def _choose(self, demand: Demand, question: Question) -> Answer:
        def ask(extra: Extra) -> Answer:
            return self._planner(replace(question, extra=replace(extra, evaluation=demand.evaluation)))

        return choose_learned(ask, demand.own_attempts, demand.learned)

    def _plan(self, demand: Demand, cluster: Cluster, profile: ModelProfile, batch: int) -> Sized | Unsized | Missing:
        """The plans for each kind of devices of the cluster; if no kind alone holds the candidate, that for all.

        ``cluster`` has the devices that the study may use; if these are of one kind, there may be others.
        """
        fastest, kinds = self._kind_of(cluster), self._kinds_of(cluster)
        of_kinds = cluster.by_kind
        planned: list[Sized] = []
        if len(of_kinds) > 1 or demand.kinds:
            speeds = {name: kinds.get(name, fastest) for name in of_kinds}
            for name in sorted(of_kinds, key=lambda name: _seconds_per_flop(speeds[name])):
                devices = of_kinds[name]
                question = Question(profile, batch, devices, speeds[name], len(devices.devices), plan=demand.plan)
                sized = self._plan_on(demand, question, name)
                if isinstance(sized, Missing):
                    return sized
                if isinstance(sized, Sized):
                    planned.append(sized)
        if planned:
            return _together(planned)
        question = Question(profile, batch, cluster, fastest, len(cluster.devices), kinds=kinds, plan=demand.plan)
        return self._plan_on(demand, question)

    def _plan_on(self, demand: Demand, question: Question, name: str = "") -> Sized | Unsized | Missing:
        """The plan for the question's devices, with others for them; ``name`` is their kind, if it is not for any."""
        profile, cluster, kind = question.profile, question.cluster, question.kind
        slow_downs = learn_slow_downs(demand.past, cluster.devices[0].kind, kind.sharing) if kind else {}
        question = replace(question, slow_downs=slow_downs)
        match self._choose(demand, question):
            case Untraced(layout):
                return Missing([layout])
            case NoPlan(reason=reason):
                return Unsized(reason, infeasible=True, structure=profile.structure, offer=cluster.offer)
            case ChosenPlan(plan=plan, prediction=prediction, reason=reason) as chosen:
                timed = partial(choice_of, profile=profile, kind=kind, slow_downs=slow_downs, name=name)
                choice = timed(plan, prediction)
                sized = Sized(
                    structure=profile.structure,
                    choice=choice,
                    reason=reason + profile.assumed + learned_in_words(choice, slow_downs),
                    learned_bytes=demand.learned_bytes(plan.layout),
                    options=chosen.options,
                    num_params=profile.num_params,
                    frozen_bytes=profile.frozen_bytes,
                    flops_per_sample=profile.flops_per_sample,
                    is_uneven=profile.is_uneven,
                )
                choices = faster_ones(choice, (timed(option.plan, option.prediction) for option in chosen.wider))
                grown: list[Option] = []
                for other in other_batches(demand, question.batch) if kind else ():
                    match self._choose(demand, replace(question, batch=other)):
                        case Untraced(layout):
                            return Missing([layout])
                        case ChosenPlan(options=options, wider=wider):
                            grown += [option for option in (*options[-1:], *wider) if option.fits]
                other_choices = [timed(option.plan, option.prediction) for option in grown]
                sized = replace(sized, choices=with_other_batches(choice, choices, other_choices))
                return replace(sized, pipeline=recorded_pipeline(sized, profile, kind))


def _seconds_per_flop(kind: DeviceKind | None) -> float:
    return kind.rates["matmul"].per_flop if kind else math.inf


def _together(planned: Sequence[Sized]) -> Sized:
    """The plans for several kinds of devices as one answer, whose plan is the one for the first of them."""
    first, *others = planned
    if not others:
        return first
    choices = tuple(choice for sized in planned for choice in sized.choices or (sized.choice,))
    plans = "; ".join(f"on {sized.choice.kind} {sized.plan}" for sized in others)
    return replace(first, choices=choices, reason=f"on {first.choice.kind} {first.reason}; {plans}")


def faster_ones(choice: Choice, wider: Iterable[Choice]) -> tuple[Choice, ...]:
    """The choice and those wider ones that are faster by their traces; empty if there is none."""
    choices = [choice]
    for other in wider:
        seconds, least = other.step_seconds, choices[-1].step_seconds
        if seconds is not None and least is not None and seconds < least:
            choices.append(other)
    return tuple(choices) if len(choices) > 1 else ()


def choice_of(
    plan: Plan,
    prediction: Prediction,
    profile: ModelProfile,
    kind: DeviceKind | None,
    slow_downs: SlowDowns,
    name: str = "",
) -> Choice:
    """The plan with the predicted seconds of a step on devices of a ``kind``; ``name``: it is for these devices alone.

    Where the family has not run in this kind of way, it is as slow as in its slowest other one: else what was never
    measured would look faster than what was.
    """
    step = predicted_step(profile, plan, kind)
    seconds, share = (step.seconds, step.waiting_share) if step else (None, None)
    if seconds is None or kind is None or not slow_downs:
        return Choice(plan, prediction, seconds, communication_share=share, kind=name)
    # The prediction already expects ranks to share cores.
    factor = factor_for(plan, slow_downs) / kind.sharing(plan.world_size)
    return Choice(plan, prediction, seconds * factor, factor, share, name)


def learned_in_words(choice: Choice, slow_downs: SlowDowns) -> str:
    """Words for what was learned about the seconds of a step, to follow a reason; empty if nothing was."""
    measured, way = f"{choice.step_factor:.2g}", way_kind(choice.plan)
    evidence = f"on {slow_downs[way].num_trials} trials of this family ({way})" if way in slow_downs else UNKNOWN_WAY
    return "" if measured == "1" else f"; step times × {measured} as measured {evidence}"


def recorded_pipeline(sized: Sized, profile: ModelProfile, kind: DeviceKind | None) -> RecordedPipeline | None:
    """The step of a plan with a pipeline; None for other plans, and where the work of its passes is not known."""
    plan = sized.plan
    if plan.pp == 1 or (step := pipeline_step(profile, plan, kind)) is None:
        return None
    step = with_memory(replace(step, factor=sized.choice.step_factor), profile, sized.prediction.extra_bytes)
    return RecordedPipeline(
        step,
        unit="s" if kind else "FLOP",
        communicates=kind is not None and kind.links is not None,
        offered_mib=next((option.offered_mib for option in sized.options if option.plan == plan), None),
    )
