"""Predicts the cost of a candidate's plans on given devices, without running them and without Ray or a service.

Traces and policy are those of a study, so an estimate shows what a study would do. On a GPU, which this machine need
not have, a rank's peak is the memory that PyTorch's allocator reserves, by replay. That is not verified on a GPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from estimators.devices.catalogue import gpu
from estimators.devices.kind import DeviceKind
from estimators.memory import GPU_MARGIN, VIRTUAL_MARGIN, Margin, largest_micro_batch, predict_stages
from estimators.model import MIB, Candidate, Layout, PeakCurve, Plan, Prediction
from estimators.peaks.envelope import PeakTable
from estimators.peaks.reserved import ReservedCurve
from estimators.peaks.units import Unit
from estimators.profile import ModelProfile
from estimators.trace import Trace, profile_of
from placement.model import VIRTUAL_KIND, Cluster, Device
from placement.option import Known, NoPlan, Option
from placement.planning.answers import ChosenPlan, Untraced
from placement.planning.planner import choose
from placement.planning.question import Question, degrees, margin_for
from placement.planning.traced_options import list_options
from scamp_service.cluster.devices.gpu_nodes import usable_mib
from scamp_service.errors import InvalidInput
from scamp_service.model import Json
from scamp_service.settings import Settings
from scamp_service.sizing.calibration import CPU, calibrated
from scamp_service.sizing.candidates import candidates_of, is_study
from scamp_service.sizing.early_answers import Hear, early_answer
from scamp_service.sizing.plan_search import Answer, Missing, PlanSearch, run_search, search_plan
from scamp_service.sizing.step_seconds import PredictedStep, predicted_step
from scamp_service.sizing.tracing.trace_pool import TracePool
from scamp_service.sizing.tracing.trace_process import TraceFailed
from scamp_service.sizing.tracing.traces import Tracer
from scamp_service.sizing.tracing.under_way import UnderWay
from scamp_service.study.spec import TRACE_SECONDS
from scamp_service.study.user_code import check_code
from scamp_service.study.values import shown_value

ANY_MIB = 2**40
"""MiB of devices that hold any plan: for questions about how large devices must be."""

UNVERIFIED = ("outside_bytes", "smallest_capacity_bytes", "step_seconds", "compute_seconds", "communication_share")
"""Fields that on GPUs rest on published figures, on assumptions, or on a replay that was not compared with a GPU."""
MEASURED_ALONE = ("outside_bytes", "step_seconds", "compute_seconds", "communication_share")
"""Fields among them that ``scamp calibrate`` measures for single-rank plans."""


def estimate(
    what: str,
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
    cluster, kind = target(settings, device, count, mib, any_size=not is_study(what))
    wanted = candidates_of(what, params or {}, 1, working_dir)
    profiles = settings.data_dir / "profiles"
    with Estimator(wanted.workload, wanted.code, profiles, kind, expandable, seconds=seconds) as estimator:
        return estimator.estimate(wanted.candidates[0], cluster, wanted.share(cluster))


def target(
    settings: Settings, device: str | None, count: int | None, mib: int | None, *, any_size: bool = False
) -> tuple[Cluster, DeviceKind | None]:
    """(devices to estimate for, their kind or None if it is unknown). Raises ``InvalidInput``.

    With ``any_size``, devices whose size nobody has named (``mib``, ``device``, SCAMP_DEVICE_MIB) hold any plan.
    """
    if device is None:
        unnamed = any_size and "device_mib" not in settings.model_fields_set
        default_mib = ANY_MIB if unnamed else settings.device_mib
        cluster = devices(settings.virtual_devices if count is None else count, default_mib if mib is None else mib)
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
    return devices(1 if count is None else count, mib or offered_mib, kind.name), kind


@dataclass(frozen=True, slots=True)
class Estimate:
    """The plans of one rank and of FSDP, and the plan that a study would choose, which may be another one.

    Plans that the model's hints exclude are not among the ``options``, so there may be none. ``refused`` says why plans
    are missing, if some cannot be traced.
    """

    params: Json
    batch: int
    profile: ModelProfile
    options: Sequence[Option]
    choice: ChosenPlan | NoPlan
    margin: Margin
    kind: DeviceKind | None = None
    refused: str = ""

    @property
    def units(self) -> Sequence[Unit]:
        """The costs of the model's units."""
        return self.profile.units

    @property
    def of_any_size(self) -> bool:
        """Whether no size of the devices is given, so that every plan fits."""
        return bool(self.options) and self.options[0].offered_mib == ANY_MIB

    @property
    def reason(self) -> str:
        """Why a study would choose this plan, and what is assumed; without a size of the devices, how large they must
        be."""
        if not self.of_any_size:
            return self.choice.reason + self.profile.assumed
        first, least = self.options[0], min(self.options, key=lambda option: option.prediction.reserved_mib)
        words = f"{first.plan}: needs a device of {first.prediction.reserved_mib} MiB"
        if least is not first:
            words += f"; least: {least.prediction.reserved_mib} MiB per device on {least.plan}"
        if asked := self.profile.divisions.constraints.words:
            words += f"; {asked}"
        return f"{words}{self.profile.assumed}. To fit a device, name it with --mib or --device"

    @property
    def on_gpu(self) -> bool:
        """Whether the devices are GPUs rather than virtual devices."""
        return self.kind is not None and self.kind.memory is not None

    def step_time(self, option: Option) -> PredictedStep | None:
        """Time of one optimizer step, as a study predicts it.

        None when nothing was calibrated or traced, when the plan does not fit, and for several devices whose links are
        unknown.
        """
        return predicted_step(self.profile, option.plan, self.kind) if option.fits else None

    def outside_bytes(self, option: Option) -> int:
        """Bytes of one rank outside of the allocator: CUDA context, workspaces, NCCL. 0 on virtual devices."""
        memory = self.kind.memory if self.kind else None
        return memory.outside_bytes(option.plan.world_size) if memory else 0

    def smallest_capacity_bytes(self, option: Option) -> int | None:
        """Bytes of the smallest device that a rank of this plan runs on, without a margin; None without a replay."""
        if option.known is Known.STATES or not isinstance(self.profile.curves[option.plan.layout], ReservedCurve):
            return None
        return option.prediction.needed_bytes + self.outside_bytes(option)

    def largest_micro_batch(self, option: Option) -> int | None:
        """Largest micro-batch with which a rank of this plan fits, whatever the batch.

        None without a trace, in a pipeline, and without a size of the devices.
        """
        layout = replace(option.plan.layout, accumulate=False)
        if self.of_any_size or layout not in self.profile.curves or layout.stage is not None:
            return None
        return largest_micro_batch(self.profile, layout, option.offered_mib, margin=self.margin)

    def may_be_larger(self, option: Option) -> bool:
        """Whether a larger micro-batch than ``largest_micro_batch`` may fit: where peaks follow no formula, only those
        of a few micro-batches are known."""
        largest, curve = self.largest_micro_batch(option), self._curve(option)
        return bool(largest) and isinstance(curve, PeakTable) and not curve.is_followed(largest or 0)

    def _curve(self, option: Option) -> PeakCurve | None:
        return self.profile.curves.get(replace(option.plan.layout, accumulate=False))

    def unverified(self, option: Option) -> list[str]:
        """Names of the values in ``to_json`` that were never compared with measurements on such a device."""
        if self.kind is None or not self.on_gpu:
            return []
        measured = MEASURED_ALONE if self.kind.verified and option.plan.world_size == 1 else ()
        return [name for name in UNVERIFIED if name not in measured]

    def to_json(self) -> dict[str, Any]:
        """One candidate of ``scamp estimate --json``.

        ``parts`` are the bytes of the peak by category; ``largest_micro_batch`` is null without a trace, and
        ``offered_mib`` too without a size of the devices; ``larger_untraced``: larger ones may fit but were not
        traced.
        """
        chosen = self.choice.plan if isinstance(self.choice, ChosenPlan) else None
        return {
            "params": dict(self.params),
            "batch": self.batch,
            "num_params": self.profile.num_params,
            "state_bytes": self.profile.state_bytes,
            "flops_per_sample": self.profile.work[Layout()].per_sample.flops,
            "units": [_unit_json(unit) for unit in self.units],
            "plan": chosen.to_json() if chosen else None,
            "reason": self.reason,
            "assumptions": list(self.profile.assumptions),
            "refused": self.refused,
            "device": self._device_json(),
            "options": [self._option_json(option) for option in self.options],
        }

    def _option_json(self, option: Option) -> dict[str, Any]:
        time = self.step_time(option)
        return {
            "plan": option.plan.to_json(),
            "text": option.words,
            "fits": option.fits,
            "peak_bytes": option.prediction.peak_bytes,
            "evaluation_bytes": option.prediction.evaluation_bytes,
            "parts": dict(option.prediction.parts),
            "outside_bytes": self.outside_bytes(option),
            "smallest_capacity_bytes": self.smallest_capacity_bytes(option),
            "reserved_mib": option.prediction.reserved_mib,
            "offered_mib": None if self.of_any_size else option.offered_mib,
            "lower_bound": option.is_bound,
            "largest_micro_batch": self.largest_micro_batch(option),
            "larger_untraced": self.may_be_larger(option),
            "step_seconds": time.seconds if time else None,
            "compute_seconds": time.compute_seconds if time else None,
            "communication_share": time.communication_share if time else None,
            "unverified": self.unverified(option),
        }

    def _device_json(self) -> dict[str, Any] | None:
        if self.kind is None:
            return None
        return {
            "name": self.kind.name,
            "rates": self.kind.provenance,
            "figures": {name: asdict(figure) for name, figure in self.kind.figures()},
        }


class Estimator:
    """Estimates candidates of one workload. A context manager, because it owns trace processes."""

    def __init__(
        self,
        workload: str,
        code: bytes | None,
        cache_dir: Path,
        kind: DeviceKind | None = None,
        expandable: bool = False,
        pool: TracePool | None = None,
        *,
        seconds: int = TRACE_SECONDS,
        under_way: UnderWay | None = None,
        hear: Hear = lambda answer: None,
    ) -> None:
        """``code`` is the zip of the user's files. ``kind`` gives the speed of devices and the memory of GPUs, whose
        allocator may have ``expandable`` segments. A given ``pool`` is left running. A trace has ``seconds`` of
        processor time; ``under_way`` is told what is traced, and ``hear`` gets the answer of each new trace as soon as
        it is there. Raises ``InvalidInput`` for a workload that does not exist."""
        check_code(workload, code, functions=True)
        self._workload, self._code = workload, hashlib.sha256(code).hexdigest() if code else None
        self._pool, self._ends_pool = pool or TracePool(), pool is None
        self._kind, self._expandable, self._hear = kind, expandable, hear
        self._on_gpu = kind is not None and kind.memory is not None
        self._tracer = Tracer(
            OneBlob(code or b""),
            cache_dir,
            seconds,
            on_cuda=self._on_gpu,
            under_way=under_way,
            one_workload=self._ends_pool,
        )

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

    def estimate(self, params: Mapping[str, Any], cluster: Cluster, share: int = 1) -> Estimate:
        """Estimate of one candidate, with a ``share`` of the devices as in ``choose``.

        Raises ``InvalidInput`` when the workload refuses the parameters, or fails.
        """
        candidate = self._candidate(params)

        def ask(profile: ModelProfile, batch: int) -> Estimate | Missing:
            question = Question(profile, batch, cluster, self._kind, share)
            found = list_options(question)
            wanted = [option.layout for option in found if isinstance(option, Untraced)]
            if missing := [layout for layout in wanted if layout not in profile.refusals]:
                return Missing(missing)
            choice = choose(question)
            if isinstance(choice, Untraced):
                return Missing([choice.layout])
            options = _with_choice([option for option in found if isinstance(option, Option)], choice, cluster)
            refused = next((_refusal(candidate, profile.refusals[layout]) for layout in wanted), "")
            return Estimate(dict(params), batch, profile, options, choice, margin_for(cluster), self._kind, refused)

        return self._searched(candidate, search_plan(ask, on_gpu=self._on_gpu, expandable=self._expandable))

    def plan(self, params: Mapping[str, Any], cluster: Cluster, share: int = 1) -> ChosenPlan | NoPlan:
        """The plan of ``estimate``, without traces of the options that it lists beside the plan. Raises the same."""

        def ask(profile: ModelProfile, batch: int) -> ChosenPlan | NoPlan | Missing:
            choice = choose(Question(profile, batch, cluster, self._kind, share))
            return Missing([choice.layout]) if isinstance(choice, Untraced) else choice

        search: PlanSearch[ChosenPlan | NoPlan] = search_plan(ask, on_gpu=self._on_gpu, expandable=self._expandable)
        return self._searched(self._candidate(params), search)

    def predict(self, params: Mapping[str, Any], plan: Plan) -> tuple[Prediction, ...]:
        """Prediction for one rank of each pipeline stage under ``plan``, even if a study would not choose such a plan.

        Raises ``InvalidInput`` when the workload refuses the parameters, fails, or does not support the plan.
        """
        candidate = self._candidate(params)
        answers = self._traces(candidate, plan.layouts)
        if why := next((one for one in answers.values() if isinstance(one, str)), None):
            raise InvalidInput(_refusal(candidate, why))
        traces = {layout: one for layout, one in answers.items() if isinstance(one, Trace)}
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
        found: dict[Layout, Trace | str | None] = {layout: self._tracer.known(candidate, layout) for layout in layouts}
        answers = {self._submit(candidate, layout): layout for layout, trace in found.items() if trace is None}
        try:
            for answer in as_completed(answers):
                layout = answers[answer]
                try:
                    found[layout] = trace = answer.result()
                    self._report(candidate, layout, trace)
                except TraceFailed as failed:
                    if layout == Layout():
                        raise InvalidInput(_refusal(candidate, failed.reason)) from None
                    found[layout] = failed.reason
            return {layout: trace for layout, trace in found.items() if trace is not None}
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
    return f"{candidate.workload} with {listed(candidate.params)}: {why}"


def _with_choice(options: Sequence[Option], choice: ChosenPlan | NoPlan, cluster: Cluster) -> list[Option]:
    """The options, and that of the chosen plan if it is not among them."""
    if isinstance(choice, NoPlan) or any(option.plan == choice.plan for option in options):
        return list(options)
    offered_mib = dict(degrees(cluster))[choice.plan.world_size]
    return [*options, Option(choice.plan, choice.prediction, offered_mib)]


def _unit_json(unit: Unit) -> dict[str, Any]:
    """JSON of one of ``count`` equal units; bytes and FLOPs are those of one sample."""
    return {
        "name": unit.name,
        "count": unit.count,
        "num_params": unit.num_params,
        "flops": unit.per_sample.flops,
        "bytes_read_and_written": unit.per_sample.num_bytes,
        "activation_bytes": unit.activations.bytes_per_sample,
        "output_bytes": unit.output.bytes_per_sample,
        "most_parts": unit.most_parts,
    }


def listed(params: Mapping[str, Any]) -> str:
    """Parameters in one line."""
    return " ".join(f"{name}={shown_value(value)}" for name, value in params.items()) or "its defaults"


def devices(count: int, mib: int, kind: str = VIRTUAL_KIND) -> Cluster:
    """Cluster of ``count`` equal devices on one node. Raises ``InvalidInput``."""
    if count < 1 or mib < 1:
        raise InvalidInput(f"there must be at least one device of at least 1 MiB, got {count} of {mib} MiB")
    return Cluster(tuple(Device(f"here/{index}", "here", index, kind, mib) for index in range(count)))


@dataclass(frozen=True, slots=True)
class OneBlob:
    """Store of a single zip, for a ``Tracer`` of one workload."""

    data: bytes

    def blob(self, sha256: str) -> bytes:
        """The zip, whatever its hash."""
        return self.data
