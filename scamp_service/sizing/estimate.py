"""Predicts the cost of a candidate's plans on given devices, without running them and without Ray or a service.

Traces and policy are those of a study, so an estimate shows what a study would do. On a GPU, which this machine need
not have, a rank's peak is the memory that PyTorch's allocator reserves, by replay. That is not verified on a GPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from estimators.devices.catalogue import gpu
from estimators.devices.kind import DeviceKind
from estimators.memory import GPU_MARGIN, NO_EXTRA, VIRTUAL_MARGIN, Margin, predict_stages
from estimators.model import MIB, Candidate, Layout, Plan, Prediction
from estimators.profile import ModelProfile
from estimators.trace import Trace, profile_of
from placement.exact.study_planner import StudyPlanner
from placement.model import VIRTUAL_KIND, Cluster, Device
from placement.option import NoPlan, Option
from placement.planning.answers import ChosenPlan, Untraced
from placement.planning.question import Question, margin_for
from placement.planning.traced_options import list_options
from scamp_service.cluster.devices.gpu_nodes import usable_mib
from scamp_service.errors import InvalidInput
from scamp_service.patience import TRACE_SECONDS
from scamp_service.settings import Settings
from scamp_service.sizing.batches import LargestBatch, largest_batch
from scamp_service.sizing.calibration import CPU, calibrated
from scamp_service.sizing.candidates import candidates_of, is_study
from scamp_service.sizing.early_answers import Hear, early_answer
from scamp_service.sizing.estimated import ANY_MIB, Estimate, params_in_words
from scamp_service.sizing.plan_search import Answer, Missing, PlanSearch, run_search, search_plan
from scamp_service.sizing.tracing.options import Tracing
from scamp_service.sizing.tracing.trace_pool import TracePool
from scamp_service.sizing.tracing.trace_process import TraceFailed
from scamp_service.sizing.tracing.under_way import UnderWay
from scamp_service.study.user_code.checking import check_code
from workloads.batch import LARGEST, BatchRequest, with_batch


def estimate(
    source: str,
    params: Mapping[str, Any] | None = None,
    *,
    device: str | None = None,
    count: int | None = None,
    mib: int | None = None,
    expandable: bool = False,
    seconds: int = TRACE_SECONDS,
    working_dir: Path | None = None,
) -> Estimate:
    """Estimate of one candidate, with the arguments of ``scamp estimate``. Raises ``InvalidInput``."""
    settings = Settings()
    cluster, kind = target(settings, device, count, mib, any_size=not is_study(source))
    candidates = candidates_of(source, params or {}, 1, working_dir)
    tracing = Tracing(settings.data_dir / "profiles", seconds)
    with Estimator(candidates.workload, candidates.code, tracing, kind, expandable) as estimator:
        return estimator.estimate(candidates.candidates[0], cluster)


def target(
    settings: Settings, device: str | None, count: int | None, mib: int | None, *, any_size: bool = False
) -> tuple[Cluster, DeviceKind | None]:
    """(devices to estimate for, their kind or None if it is unknown). Raises ``InvalidInput``.

    With ``any_size``, devices whose size nobody has named (``mib``, ``device``, SCAMP_DEVICE_MIB) hold any plan.
    """
    if device is None:
        unnamed = any_size and "device_mib" not in settings.model_fields_set
        default_mib = ANY_MIB if unnamed else settings.device_mib
        cluster = equal_devices(
            settings.virtual_devices if count is None else count, default_mib if mib is None else mib
        )
        return cluster, calibrated(settings.data_dir)
    if device.strip().lower() == CPU:
        raise InvalidInput(f"{device!r} is not a GPU: leave --device out for virtual devices")
    try:
        kind = calibrated(settings.data_dir, device) or gpu(device)
    except ValueError as error:
        raise InvalidInput(f"{error}, or run `scamp calibrate` on a machine that has it") from None
    assert kind.memory is not None  # every kind of GPU has one
    # The same as a node offers of a GPU that no other process uses.
    offered_mib = usable_mib(int(kind.memory.total.value) // MIB, settings.max_gangs_per_device)
    if mib is not None and mib > offered_mib:
        raise InvalidInput(f"a device of kind {kind.name} offers at most {offered_mib} MiB, not {mib}")
    return equal_devices(1 if count is None else count, mib or offered_mib, kind.name), kind


class Estimator:
    """Estimates candidates of one workload. A context manager, because it owns trace processes."""

    def __init__(
        self,
        workload: str,
        code: bytes | None,
        tracing: Tracing,
        kind: DeviceKind | None = None,
        expandable: bool = False,
        *,
        hear: Hear = lambda answer: None,
    ) -> None:
        """``code`` is the zip of the user's files. ``kind`` gives the speed of devices and the memory of GPUs, whose
        allocator may have ``expandable`` segments. ``hear`` gets the answer of each new trace as soon as it is there.
        Raises ``InvalidInput`` for a workload that does not exist."""
        check_code(workload, code, functions=True)
        self._workload, self._code = workload, hashlib.sha256(code).hexdigest() if code else None
        self._pool, self._ends_pool = tracing.pool or TracePool(), tracing.pool is None
        self._kind, self._expandable, self._hear = kind, expandable, hear
        self._on_gpu = kind is not None and kind.memory is not None
        self._planner = StudyPlanner()
        self._tracer = tracing.tracer(code, on_cuda=self._on_gpu)
        self._under_way = tracing.under_way or UnderWay()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ends_pool:
            self._pool.__exit__(kind, error, traceback)

    def know_speed(self, kind: DeviceKind | None) -> None:
        """Use the speed of virtual devices that has been measured since this estimator was made."""
        assert not self._on_gpu
        self._kind = kind

    def begin(self, params: Mapping[str, Any]) -> None:
        """Trace the plain layout of a candidate, whose answer ``hear`` gets. Raises the same as ``estimate``."""
        self._traces(self._candidate(params), [Layout()])

    def key(self, params: Mapping[str, Any]) -> str:
        """A key that two candidates share only if their traces, and so their plans, are the same."""
        return self._tracer.cache.key(self._candidate(params), Layout())

    def estimate(self, params: Mapping[str, Any], cluster: Cluster) -> Estimate:
        """Estimate of one candidate on these devices.

        Raises ``InvalidInput`` when the workload refuses the parameters, or fails.
        """
        if params.get("batch") == LARGEST:
            return self._estimate_largest(params, cluster)
        candidate = self._candidate(params)

        def ask(profile: ModelProfile, batch: int) -> Estimate | Missing:
            question = Question(profile, batch, cluster, self._kind)
            examined = list_options(question)
            untraced = [option.layout for option in examined if isinstance(option, Untraced)]
            if missing := [layout for layout in untraced if not profile.refusal(layout)]:
                return Missing(missing)
            choice = self._planner(question)
            if isinstance(choice, Untraced):
                return Missing([choice.layout])
            options = _with_choice([option for option in examined if isinstance(option, Option)], choice)
            reasons = (_refusal(candidate, why) for layout in untraced if (why := profile.refusals.get(layout)))
            return Estimate(
                params=dict(params),
                batch=batch,
                profile=profile,
                options=options,
                choice=choice,
                margin=margin_for(cluster),
                kind=self._kind,
                refused=next(reasons, ""),
            )

        return self._searched(candidate, search_plan(ask, on_gpu=self._on_gpu, expandable=self._expandable))

    def _estimate_largest(self, params: Mapping[str, Any], cluster: Cluster) -> Estimate:
        """The estimate of a candidate with the largest batch that fits, as a study chooses it."""

        def ask(profile: ModelProfile, batch: int) -> LargestBatch | Missing:
            match self._planner(Question(profile, batch, cluster, self._kind)):
                case Untraced(layout):
                    return Missing([layout])
                case ChosenPlan() as chosen:
                    return largest_batch(BatchRequest.of(params), chosen, profile, cluster, NO_EXTRA)
            return LargestBatch(batch, "")

        search: PlanSearch[LargestBatch] = search_plan(ask, on_gpu=self._on_gpu, expandable=self._expandable)
        answer = self._searched(self._candidate(params), search)
        estimate = self.estimate(with_batch(params, answer.samples), cluster)
        return replace(estimate, batch_reason=answer.reason)

    def plan(self, params: Mapping[str, Any], cluster: Cluster) -> ChosenPlan | NoPlan:
        """The plan of ``estimate``, without traces of the options that it lists besides the plan. Raises the same."""

        def ask(profile: ModelProfile, batch: int) -> ChosenPlan | NoPlan | Missing:
            choice = self._planner(Question(profile, batch, cluster, self._kind))
            return Missing([choice.layout]) if isinstance(choice, Untraced) else choice

        search: PlanSearch[ChosenPlan | NoPlan] = search_plan(ask, on_gpu=self._on_gpu, expandable=self._expandable)
        return self._searched(self._candidate(params), search)

    def ask(self, params: Mapping[str, Any], policy: Callable[[ModelProfile, int], Answer | Missing]) -> Answer:
        """The answer of any ``policy`` for the profile and batch of a candidate. Raises the same as ``estimate``."""
        return self._searched(self._candidate(params), search_plan(policy, on_gpu=self._on_gpu))

    def predict(self, params: Mapping[str, Any], plan: Plan) -> tuple[Prediction, ...]:
        """Prediction for one rank of each pipeline stage under ``plan``, even if a study would not choose such a plan.

        Raises ``InvalidInput`` when the workload refuses the parameters, fails, or does not support the plan.
        """
        candidate = self._candidate(params)
        answers = self._traces(candidate, plan.layouts)
        if why := next((reason for reason in answers.values() if isinstance(reason, str)), None):
            raise InvalidInput(_refusal(candidate, why))
        traces = {layout: trace for layout, trace in answers.items() if isinstance(trace, Trace)}
        profile = profile_of(traces, on_gpu=self._on_gpu, expandable=self._expandable)
        return predict_stages(profile, plan, 0, self._margin)

    @property
    def _margin(self) -> Margin:
        return GPU_MARGIN if self._on_gpu else VIRTUAL_MARGIN

    def _candidate(self, params: Mapping[str, Any]) -> Candidate:
        return Candidate(self._workload, self._code, dict(params))

    def _searched(self, candidate: Candidate, search: PlanSearch[Answer]) -> Answer:
        return run_search(search, lambda layouts: self._traces(candidate, layouts))

    def _traces(self, candidate: Candidate, layouts: Sequence[Layout]) -> dict[Layout, Trace | str]:
        """Traces by layout, or why there is none; missing ones are made in parallel.

        Raises ``InvalidInput`` if the plain layout cannot be traced.
        """
        traces: dict[Layout, Trace | str | None] = {
            layout: self._tracer.cached(candidate, layout) for layout in layouts
        }
        answers = {self._submit(candidate, layout): layout for layout, trace in traces.items() if trace is None}
        self._under_way.expect(len(answers))
        try:
            for answer in as_completed(answers):
                self._under_way.end()
                layout = answers[answer]
                try:
                    traces[layout] = trace = answer.result()
                    self._report(candidate, layout, trace)
                except TraceFailed as failed:
                    if layout == Layout():
                        raise InvalidInput(_refusal(candidate, failed.reason)) from None
                    traces[layout] = failed.reason
            return {layout: trace for layout, trace in traces.items() if trace is not None}
        finally:
            for answer in answers:
                answer.cancel()

    def _report(self, candidate: Candidate, layout: Layout, trace: Trace) -> None:
        gpu_options = {"on_gpu": self._on_gpu, "expandable": self._expandable}
        early = early_answer(candidate.params, layout, trace, self._margin, **gpu_options)
        if early is not None:
            self._hear(early)

    def _submit(self, candidate: Candidate, layout: Layout) -> Future[Trace]:
        return self._pool.submit(lambda process: self._tracer.trace(process, candidate, layout))


def _refusal(candidate: Candidate, why: str) -> str:
    return f"{candidate.workload} with {params_in_words(candidate.params)}: {why}"


def _with_choice(options: Sequence[Option], choice: ChosenPlan | NoPlan) -> list[Option]:
    """The options, and that of the chosen plan if it is not among them."""
    if isinstance(choice, NoPlan) or any(option.plan == choice.plan for option in options):
        return list(options)
    offered_mib = next(option.offered_mib for option in choice.options if option.plan == choice.plan)
    return [*options, Option(choice.plan, choice.prediction, offered_mib)]


def equal_devices(count: int, mib: int, kind: str = VIRTUAL_KIND) -> Cluster:
    """Cluster of ``count`` equal devices on one node. Raises ``InvalidInput``."""
    if count < 1 or mib < 1:
        raise InvalidInput(f"there must be at least one device of at least 1 MiB, got {count} of {mib} MiB")
    return Cluster(tuple(Device(f"here/{index}", "here", index, kind, mib) for index in range(count)))
