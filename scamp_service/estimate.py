"""What the plans of a candidate would cost on given devices, without running any: no Ray, no service.

The same traces and the same policy as in a study, so that what is told here is what a study would do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.table import Table

from estimators.device_kind import DeviceKind
from estimators.memory import largest_micro_batch
from estimators.model import MIB, Layout, ModelProfile
from placement.model import Cluster, Device
from placement.planner import Choice, NoPlan, Option, Untraced, choose, compare
from scamp_service.errors import InvalidInput
from scamp_service.model import Json
from scamp_service.tracing import TraceFailed, TraceProcess, Tracer
from scamp_service.user_code import check_code

TRACE_SECONDS = 600
"""Of processor time: whoever waits for one answer is more patient than a study."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """All plans that a study would choose from, in its order, and which it would take."""

    params: Json
    batch: int
    profile: ModelProfile
    options: Sequence[Option]
    choice: Choice | NoPlan
    kind: DeviceKind | None = None

    def step_seconds(self, option: Option) -> float | None:
        """Of one optimizer step; None where nothing was calibrated or traced, and for gangs, whose communication is
        not in it yet."""
        work = self.profile.work.get(option.plan.layout)
        if self.kind is None or work is None or option.plan.world_size > 1 or not option.fits:
            return None
        return self.kind.seconds(work.step(option.plan.micro_batch, option.plan.num_micro_batches))

    def largest_micro_batch(self, option: Option) -> int | None:
        """With which one rank of such a plan fits, whatever the batch; None where no trace was made."""
        layout = Layout(option.plan.dp_shard, option.plan.recompute)
        if layout not in self.profile.curves:
            return None
        return largest_micro_batch(self.profile, layout, option.offered_mib)

    def to_json(self) -> dict[str, Any]:
        """``parts`` are bytes of the peak by category; ``largest_micro_batch`` is null where no trace was made."""
        chosen = self.choice.plan if isinstance(self.choice, Choice) else None
        return {
            "params": self.params,
            "batch": self.batch,
            "num_params": self.profile.num_params,
            "state_bytes": self.profile.state_bytes,
            "flops_per_sample": self.profile.work[Layout()].per_sample.flops,
            "plan": chosen.to_json() if chosen else None,
            "reason": self.choice.reason,
            "options": [
                {
                    "plan": option.plan.to_json(),
                    "text": str(option.plan) if option.fits else option.words,
                    "fits": option.fits,
                    "peak_bytes": option.footprint.peak_bytes,
                    "parts": dict(option.footprint.parts),
                    "reserved_mib": option.footprint.reserved_mib,
                    "offered_mib": option.offered_mib,
                    "lower_bound": option.at_least,
                    "largest_micro_batch": self.largest_micro_batch(option),
                    "step_seconds": self.step_seconds(option),
                }
                for option in self.options
            ],
        }


class Estimator:
    """One workload's candidates, one after another; a context manager, since it keeps a trace process."""

    def __init__(self, workload: str, code: bytes | None, cache_dir: Path, kind: DeviceKind | None = None) -> None:
        """``code`` is the zip of a user's files; ``kind`` tells the time of steps. Raises ``InvalidInput`` for a
        workload that does not exist."""
        check_code(workload, code, functions=True)
        self._workload, self._code = workload, hashlib.sha256(code).hexdigest() if code else None
        self._tracer = Tracer(_OneBlob(code or b""), cache_dir, TRACE_SECONDS)
        self._process = TraceProcess()
        self._kind = kind

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.end()

    def estimate(self, params: Json, cluster: Cluster) -> Estimate:
        """Raises ``InvalidInput`` when the workload refuses the parameters, or fails."""
        trace = self._trace(params, Layout())
        profile = trace.profile(Layout())
        while isinstance(found := compare(profile, batch=trace.batch, cluster=cluster), Untraced):
            trace = self._trace(params, found.layout)
            profile = profile.with_curve(found.layout, trace.curve, trace.work)
        choice = choose(profile, batch=trace.batch, cluster=cluster)
        assert not isinstance(choice, Untraced), "compare looks at all that choose looks at"
        return Estimate(params, trace.batch, profile, found, choice, self._kind)

    def _trace(self, params: Json, layout: Layout) -> Any:
        wish = (self._workload, self._code, params, layout)
        try:
            return self._tracer.known(*wish) or self._tracer.trace(self._process, *wish)
        except TraceFailed as failed:
            raise InvalidInput(f"{self._workload} with {_listed(params)}: {failed.reason}") from None


def devices(count: int, mib: int) -> Cluster:
    """``count`` equal devices of one node."""
    if count < 1 or mib < 1:
        raise InvalidInput(f"there must be at least one device of at least 1 MiB, got {count} of {mib} MiB")
    return Cluster(tuple(Device(f"here/{index}", "here", index, "virtual", mib) for index in range(count)))


COLUMNS = {
    "params": ("parameters",),
    "grads": ("gradients",),
    "optim": ("optimizer",),
    "activ": ("activations",),
    "gather": ("gathered",),
    "temp": ("scratch",),
    "other": ("buffers", "batch"),
}


def as_table(estimate: Estimate) -> Table:
    """MiB of one rank by category; one plan in a row, the one to be taken in bold. ``rc`` is recompute."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 0, 0, 1))
    timed = ["sec"] if estimate.kind else []
    for heading in ["ranks", "batch", "rc", *COLUMNS, "peak", "reserve", "max", *timed]:
        table.add_column(heading, justify="right", no_wrap=True)
    for option in estimate.options:
        plan, cost, largest = option.plan, option.footprint, estimate.largest_micro_batch(option)
        seconds = estimate.step_seconds(option)
        least = "≥" if option.at_least else ""
        accumulated = f"{plan.num_micro_batches}×" if plan.num_micro_batches > 1 and option.fits else ""
        chosen = isinstance(estimate.choice, Choice) and plan == estimate.choice.plan
        table.add_row(
            str(plan.dp_shard),
            "states" if option.states_alone else f"{accumulated}{plan.micro_batch}",
            "rc" if plan.recompute else "",
            *(_mib(sum(cost.parts.get(name, 0) for name in names)) if cost.parts else "" for names in COLUMNS.values()),
            f"{least}{_mib(cost.peak_bytes)}",
            f"{least}{cost.reserved_mib}",
            "" if largest is None else str(largest),
            *(["" if seconds is None else f"{seconds:.2g}"] if timed else []),
            style="bold green" if chosen else None if option.fits else "dim",
        )
    return table


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:.1f}"


def headline(estimate: Estimate) -> str:
    profile = estimate.profile
    states = f"{profile.num_params:,} parameters, {profile.state_bytes / MIB:.1f} MiB of states"
    flops = f"{profile.work[Layout()].per_sample.flops / 1e9:.3g} GFLOPs a sample"
    return f"{_listed(estimate.params)}: {states}, {flops}, batch {estimate.batch}"


def _listed(params: Mapping[str, Any]) -> str:
    shown = (f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}" for name, value in params.items())
    return " ".join(shown) or "its defaults"


@dataclass(frozen=True, slots=True)
class _OneBlob:
    data: bytes

    def blob(self, sha256: str) -> bytes:
        return self.data
