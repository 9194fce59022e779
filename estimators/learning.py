"""Learns from earlier trials of a family how many bytes the next trial needs beyond its trace, under each layout.

Two quantities are kept apart. Tensors that the trace did not predict are *measured*, exactly. Everything else that a
rank holds is never measured: it is only known whether the rank died at its budget or survived. Which trials form one
family is decided elsewhere. The constant margin of ``memory`` is added to whatever is learned here.

**A layout learns from its own runs only.** It has a trace of its own, so a fault of that trace says nothing about other
layouts: what FSDP over two ranks was found to need must not raise the reservation of one rank.

**The bound** is what is reserved. Of n exchangeable residuals, the next one is at most the ⌈(n + 1) q⌉-th smallest with
a probability of at least q, whatever their distribution (split conformal prediction: Vovk, Gammerman & Shafer 2005,
ch. 2; Lei et al. 2018, JASA 113, sec. 2.2). If n is too small for that rank to exist (n < 9 with q = 0.9), no finite
bound has this property. The largest residual seen is used then, so that the first failure counts at once; without any
residual only the constant margin applies. The trials of a search are not quite exchangeable, so q is an aim, not a
promise.

**The bias** corrects the prediction. It is the median of the measured residuals: half of the family has more.

**The evidence** of a run, in bytes beyond the traced peak and the margin:

- If it measured more tensors than were traced, the evidence is the difference. It is exact, however the run ended. Only
  some steps are measured, so a lower measurement does not prove that less is enough: its difference counts as 0.
- If it ran out of memory, it needs *more* than its reservation and more than was held when it failed. The evidence is
  this lower bound plus a quarter of the traced peak, which is also what its own next attempt gets.
- If another attempt of the same trial measured tensors that explain the failure, the measured tensors are the evidence
  instead: the quarter was a guess, and the measurement replaces it.
- If it finished with ``extra_bytes``, it needs at most those. If failures of the layout ask for more, this counts
  against them. If the run had as much as they ask for, it cannot show whether less would have been enough.

**The decay** finds that out. When ``PATIENCE_TRIALS`` trials have finished, what failures ask for is halved, and halved
again after as many more. Each failure doubles the number of trials that must finish first: if less is not enough after
all, the trial that shows it raises the reservation again, and the next test comes later.

Nothing goes below the margin: a measured peak covers tensors, the enforced budget covers the process, and no run has
measured how much of the margin it used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from statistics import median_low

from estimators.model import MIB, EvaluationExtra, Layout, mib_in_words

COVERED_PERCENT = 90
"""q: one of ten trials of a family may run out of memory and be planned again before all the others reserve more."""

GROWTH_PERCENT = 25
"""How far the next attempt goes beyond an amount known to be too small, in percent of the traced peak. The whole need
may show only bit by bit: a request fails before the rest of the step has asked for memory."""

NOISE_BYTES = MIB // 4
"""Tensors beyond the trace are left to the margin up to this many bytes."""

LEAST_FOR_BIAS = 3
"""Least number of measured trials whose median is trusted. A single trial may be an exception, such as a resumed
attempt that measures a rare step."""

PATIENCE_TRIALS = 16
"""How many trials must finish before what one failure asks for is halved. At most one test in 17 trials then fails,
which is within what q allows."""

WINDOW_TRIALS = 100
"""How many of the newest trials of a family count. A failure is forgotten after this many trials, and a smaller
reservation is tried again; otherwise nothing would ever show that a raised reservation is no longer needed."""


class AttemptPhase(StrEnum):
    """The activity of an attempt when it runs out of memory."""

    START = "its start"
    STEP = "a training step"
    EVALUATION = "an evaluation"
    CHECKPOINT = "a checkpoint"


class Ending(Enum):
    """How an attempt ended, as far as that says how much memory is enough."""

    FINISHED = "finished"
    OUT_OF_MEMORY = "out of memory"
    EVALUATION_OUT_OF_MEMORY = "out of memory in an evaluation"  # says nothing about steps
    DEPENDS_ON_DIVISION = "depends on the division of a batch"  # says nothing about memory
    OTHER = "other"  # still running, stopped early or lost: it is not known how much would have been enough


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """One attempt of an earlier trial, in bytes of one rank. ``layout`` is that of rank 0.

    ``extra_bytes`` were reserved beyond the traced peak and the margin. ``measured_bytes`` is the largest peak of
    tensors in a measured step, 0 if none was; after an out-of-memory it is the bytes that were held plus the request
    that failed. ``predicted_step_seconds`` are ``step_factor`` times as many as without what was learned about time;
    None if no time was predicted. ``measured_step_seconds`` are None if no step was timed. ``evaluation_bytes`` is the
    predicted peak of an evaluation in micro-batches of ``evaluation_batch``. ``why`` says what depends on the
    division of a batch, if it ended by that.
    """

    trial_id: int
    layout: Layout
    device_kinds: Collection[str]
    traced_bytes: int
    extra_bytes: int
    reserved_bytes: int
    measured_bytes: int
    ending: Ending
    study_id: int = 0  # 0: not known
    predicted_step_seconds: float | None = None
    step_factor: float = 1.0
    measured_step_seconds: float | None = None
    micro_batch: int = 1
    evaluation_bytes: int = 0
    evaluation_batch: int = 1
    why: str = ""

    @property
    def held_bytes(self) -> int:
        """Bytes that an attempt that ran out of memory needed at least: all that was reserved was not enough."""
        return max(self.measured_bytes, self.reserved_bytes)

    @property
    def asked_bytes(self) -> int:
        """Bytes beyond the traced peak that its next attempt asks for, after this one ran out of memory."""
        return need_after_out_of_memory(self.traced_bytes, self.reserved_bytes, self.measured_bytes)

    @property
    def step_ratio(self) -> float | None:
        """Measured seconds of a step over those predicted without what was learned; None unless both are known."""
        if not self.predicted_step_seconds or not self.measured_step_seconds:
            return None
        return self.measured_step_seconds * self.step_factor / self.predicted_step_seconds


@dataclass(frozen=True, slots=True)
class Learned:
    """Bytes to add to every traced peak of a family under one layout, and the evidence for them.

    ``extra_bytes`` are reserved. ``bias_bytes`` of them are expected to be tensors, and correct the predicted peak; the
    rest only keeps ranks alive. The counts are of the trials that are evidence. ``num_halvings`` says how often trials
    that finished have halved what failures ask for. ``studies`` are the ids of the studies whose trials needed more
    than their trace.
    """

    layout: Layout = field(default_factory=Layout)
    extra_bytes: int = 0
    bias_bytes: int = 0
    num_trials: int = 0
    num_out_of_memory: int = 0
    num_halvings: int = 0
    studies: tuple[int, ...] = ()

    def __str__(self) -> str:
        trials = (
            f"{self.num_trials} trial{'' if self.num_trials == 1 else 's'} of this family with layout {self.layout}"
        )
        failed = f", {self.num_out_of_memory} of them out of memory" if self.num_out_of_memory else ""
        halved = f", halved {self.num_halvings} × as others finished" if self.num_halvings else ""
        where = f" (study {', '.join(map(str, self.studies))})" if self.studies else ""
        return f"{mib_in_words(self.extra_bytes)} learned from {trials}{failed}{halved}{where}"


def learn(past: Iterable[PastAttempt], device_kinds: Collection[str]) -> dict[Layout, Learned]:
    """Bytes to add under each layout that was run, for a candidate that may run on any of these device kinds.

    The kind that needs most decides. A gang over several kinds is evidence for each of them. The order of ``past`` does
    not matter. Layouts without evidence are left out.
    """
    runs: dict[Layout, list[PastAttempt]] = {}
    for run in past:
        runs.setdefault(run.layout, []).append(run)
    corrections = {layout: _largest(layout, layout_runs, device_kinds) for layout, layout_runs in runs.items()}
    return {layout: learned for layout, learned in corrections.items() if learned.num_trials}


def evaluation_need(runs: Iterable[PastAttempt]) -> EvaluationExtra:
    """Bytes that evaluations need beyond their trace, by the runs of a family in which one ran out of memory.

    It is taken to grow with the micro-batch of the evaluation, so that the next plan has a smaller one. If a smaller
    one of the same trial has failed as well, it does not grow: all of it is added whatever the micro-batch.
    """
    trials: dict[int, dict[int, int]] = {}
    for run in runs:
        if run.ending is Ending.EVALUATION_OUT_OF_MEMORY:
            needs, size = trials.setdefault(run.trial_id, {}), run.evaluation_batch
            need = need_after_out_of_memory(run.evaluation_bytes, run.reserved_bytes, run.measured_bytes)
            needs[size] = max(needs.get(size, 0), need)
    growing = [-(-need // size) for needs in trials.values() if len(needs) == 1 for size, need in needs.items()]
    fixed = [max(needs.values()) for needs in trials.values() if len(needs) > 1]
    return EvaluationExtra(max(growing, default=0), max(fixed, default=0))


def need_after_out_of_memory(traced_bytes: int, reserved_bytes: int, measured_bytes: int) -> int:
    """Bytes beyond the traced peak that the next attempt gets, after one with ``reserved_bytes`` ran out of memory."""
    return max(measured_bytes, reserved_bytes) - traced_bytes + traced_bytes * GROWTH_PERCENT // 100


def upper_bound(residuals: Iterable[int]) -> int:
    """The ⌈(n + 1) q⌉-th smallest of n residuals; the largest if n is too small for that, and 0 if there are none."""
    ordered = sorted(residuals)
    rank = -(-(len(ordered) + 1) * COVERED_PERCENT // 100)
    return ordered[min(rank, len(ordered)) - 1] if ordered else 0


def _largest(layout: Layout, runs: Sequence[PastAttempt], device_kinds: Collection[str]) -> Learned:
    of_kinds = (_learn(layout, [run for run in runs if kind in run.device_kinds]) for kind in sorted(device_kinds))
    return max(of_kinds, key=lambda learned: (learned.extra_bytes, learned.num_trials), default=Learned(layout))


def _learn(layout: Layout, runs: Sequence[PastAttempt]) -> Learned:
    trials: dict[int, list[PastAttempt]] = {}
    for run in runs:
        trials.setdefault(run.trial_id, []).append(run)
    excesses = {
        trial: _tensor_excess(trial_runs) for trial, trial_runs in trials.items() if any(map(_is_exact, trial_runs))
    }
    failed = {
        trial: need for trial, trial_runs in trials.items() if (need := _trial_need(trial_runs, excesses.get(trial, 0)))
    }
    enough = {
        trial: extra
        for trial, trial_runs in trials.items()
        if trial not in failed and (extra := _enough(trial_runs)) >= 0
    }
    survived = [extra for extra in enough.values() if extra < min(failed.values(), default=0)]
    halvings = len(enough) // (PATIENCE_TRIALS << (len(failed) - 1)) if failed else 0
    from_failures = min(upper_bound([*failed.values(), *survived]), max(failed.values(), default=0) >> halvings)
    raising = failed.keys() | {trial for trial, excess in excesses.items() if excess}
    return Learned(
        layout,
        # The larger, not the sum: a reservation that kept a rank alive also held its tensors.
        extra_bytes=max(upper_bound(excesses.values()), from_failures if from_failures > NOISE_BYTES else 0),
        bias_bytes=median_low(excesses.values()) if len(excesses) >= LEAST_FOR_BIAS else 0,
        num_trials=len(excesses.keys() | failed.keys() | (enough.keys() if failed else set())),
        num_out_of_memory=len(failed),
        num_halvings=halvings,
        studies=tuple(sorted({run.study_id for run in runs if run.study_id and run.trial_id in raising})),
    )


def _is_exact(run: PastAttempt) -> bool:
    failed = (Ending.OUT_OF_MEMORY, Ending.EVALUATION_OUT_OF_MEMORY)
    return run.measured_bytes > 0 and run.ending not in failed  # which have a lower bound


def _tensor_excess(runs: Sequence[PastAttempt]) -> int:
    excess = max(run.measured_bytes - run.traced_bytes for run in runs if _is_exact(run))
    return excess if excess > NOISE_BYTES else 0


def _trial_need(runs: Sequence[PastAttempt], measured_excess: int) -> int:
    """The largest need that any out-of-memory attempt of a trial shows; 0 if none ran out of memory.

    ``measured_excess`` are the bytes of tensors beyond the trace that its other attempts measured.
    """
    failed = (run for run in runs if run.ending is Ending.OUT_OF_MEMORY)
    return max((measured_excess if _explains(measured_excess, run) else run.asked_bytes for run in failed), default=0)


def _explains(measured_excess: int, failed: PastAttempt) -> bool:
    """Whether that many bytes of tensors beyond the trace are more than was reserved for them, and with the margin as
    much as was held when the attempt failed."""
    margin_bytes = failed.reserved_bytes - failed.traced_bytes - failed.extra_bytes
    held_excess = failed.measured_bytes - failed.traced_bytes
    return measured_excess > failed.extra_bytes and measured_excess + margin_bytes >= held_excess


def _enough(runs: Sequence[PastAttempt]) -> int:
    """The least ``extra_bytes`` that a trial finished with; -1 if it did not finish, or was only evaluated."""
    finished = (run for run in runs if run.ending is Ending.FINISHED and run.measured_bytes)
    return min((run.extra_bytes for run in finished), default=-1)
