"""What earlier trials of a family tell of the memory that the next one needs beyond its trace, as bytes to add.

Two questions are kept apart. Tensors that the trace did not foresee are *measured*, exactly. What else a rank holds is
never measured: there is only the fact that it died at its budget, or lived. Which trials are of one family is decided
elsewhere; the constant margin of ``memory`` stays below all that is learned here.

**The bound**, which is reserved. Of n exchangeable residuals, the next one is at most the ⌈(n + 1) q⌉-th smallest with
a probability of at least q, whatever their distribution (split conformal prediction: Vovk, Gammerman & Shafer 2005,
ch. 2; Lei et al. 2018, JASA 113, sec. 2.2). Where n is too small for that rank to exist (n < 9 with q = 0.9) no finite
bound has the property: then it is the largest residual seen, so that the first failure teaches at once, and without one
the constant margin. Trials of a search are not quite exchangeable, so q is what is aimed at, not promised.

**The bias**, which corrects what is foretold, is the median of what was measured: half of the family has more.

**What a run is evidence of.** In bytes beyond the traced peak, over the margin:

- It measured more tensors than were traced: the difference, exact, whatever came of it. One early step is measured, so
  that fewer were measured is no proof that fewer will do: such a difference counts as 0.
- It went out of memory: what it needs is *above* its reservation and above what was held when it failed. The value is
  that lower bound and a quarter of the traced peak, which is what its own next attempt gets.
- It finished with ``extra_bytes``: what it needs is at most that. Where failures of the family ask for more, this
  speaks against them; with as much as they ask for, it cannot tell whether less would have done, and is left out.

Nothing goes below the margin: the measured peak is of tensors, the enforced budget is of the process, and no run has
measured how much of the margin it used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median_low

from estimators.model import MIB

COVERED_PERCENT = 90
"""q: of ten trials of a family, one may go out of memory and be healed by itself, before all others reserve more."""

GROWTH_PERCENT = 25
"""How far beyond what is known to be too little the next attempt goes, as a share of the traced peak. A need may show
itself only bit by bit: a request fails before the rest of the step has asked for anything."""

NOISE_BYTES = MIB // 4
"""Tensors beyond the trace up to this are what the margin is for."""

LEAST_FOR_BIAS = 3
"""Trials whose median is believed. One may be an exception, as a resumed attempt that measures a rare step is."""

WINDOW_TRIALS = 100
"""The newest trials of a family are looked at. What an old failure has taught is so tried anew, once in as many trials:
a raised reservation would otherwise never be seen to be needless."""


class Ending(Enum):
    FINISHED = "finished"
    OUT_OF_MEMORY = "out of memory"
    OTHER = "other"  # it still runs, was stopped early or lost: how much would have been enough is not known


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt of an earlier trial, as one rank needed it. ``extra_bytes`` were reserved beyond traced peak and
    margin; ``measured_bytes`` is the peak of tensors in one early step, 0 if there was none, or after an out-of-memory
    what was held and asked for when it failed."""

    trial_id: int
    device_kinds: Collection[str]
    traced_bytes: int
    extra_bytes: int
    reserved_bytes: int
    measured_bytes: int
    ending: Ending
    study_id: int = 0  # 0: not known


@dataclass(frozen=True, slots=True)
class Learned:
    """``extra_bytes`` are to be added to every traced peak of the family, ``bias_bytes`` of them to what is foretold of
    tensors; the rest keeps ranks alive. The counts are of the trials that are evidence, ``studies`` the ids of those
    studies whose trials needed more than their trace."""

    extra_bytes: int = 0
    bias_bytes: int = 0
    num_trials: int = 0
    num_out_of_memory: int = 0
    studies: tuple[int, ...] = ()

    def __str__(self) -> str:
        trials = f"{self.num_trials} trial{'' if self.num_trials == 1 else 's'} of this family"
        failed = f", {self.num_out_of_memory} of them out of memory" if self.num_out_of_memory else ""
        where = f" (study {', '.join(map(str, self.studies))})" if self.studies else ""
        return f"{self.extra_bytes / MIB:.1f} MiB learned from {trials}{failed}{where}"


NOTHING = Learned()


def learn(past: Iterable[Run], device_kinds: Collection[str]) -> Learned:
    """What to add for a candidate that any of these kinds of device may get: the kind that asks for most decides.

    A gang over several kinds tells of each of them. The order of ``past`` does not matter.
    """
    runs = list(past)
    of_kinds = (_learn([run for run in runs if kind in run.device_kinds]) for kind in sorted(device_kinds))
    return max(of_kinds, key=lambda learned: learned.extra_bytes, default=NOTHING)


def need_after_out_of_memory(traced_bytes: int, reserved_bytes: int, measured_bytes: int) -> int:
    """Bytes beyond the traced peak for the next attempt of what went out of memory with ``reserved_bytes``."""
    return max(measured_bytes, reserved_bytes) - traced_bytes + traced_bytes * GROWTH_PERCENT // 100


def upper_bound(residuals: Iterable[int]) -> int:
    """The ⌈(n + 1) q⌉-th smallest of n, or the largest where there are too few for it; 0 of none."""
    ordered = sorted(residuals)
    rank = -(-(len(ordered) + 1) * COVERED_PERCENT // 100)
    return ordered[min(rank, len(ordered)) - 1] if ordered else 0


def _learn(runs: Sequence[Run]) -> Learned:
    trials: dict[int, list[Run]] = {}
    for run in runs:
        trials.setdefault(run.trial_id, []).append(run)
    excesses = {trial: _tensor_excess(own) for trial, own in trials.items() if any(map(_is_exact, own))}
    failed = {trial: need for trial, own in trials.items() if (need := _need(own))}
    least = min(failed.values(), default=0)
    enough = {trial: _enough(own) for trial, own in trials.items() if trial not in failed}
    survived = {trial: extra for trial, extra in enough.items() if extra is not None and extra < least}
    raising = failed.keys() | {trial for trial, excess in excesses.items() if excess}
    return Learned(
        # The larger, not the sum: what kept a rank alive has held its tensors as well.
        extra_bytes=max(upper_bound(excesses.values()), upper_bound([*failed.values(), *survived.values()])),
        bias_bytes=median_low(excesses.values()) if len(excesses) >= LEAST_FOR_BIAS else 0,
        num_trials=len(excesses.keys() | failed.keys() | survived.keys()),
        num_out_of_memory=len(failed),
        studies=tuple(sorted({run.study_id for run in runs if run.study_id and run.trial_id in raising})),
    )


def _is_exact(run: Run) -> bool:
    return run.measured_bytes > 0 and run.ending is not Ending.OUT_OF_MEMORY


def _tensor_excess(runs: Sequence[Run]) -> int:
    excess = max(run.measured_bytes - run.traced_bytes for run in runs if _is_exact(run))
    return excess if excess > NOISE_BYTES else 0


def _need(runs: Sequence[Run]) -> int:
    """Of a trial that went out of memory, the most that any of its attempts has shown; else 0."""
    return max(
        (
            need_after_out_of_memory(run.traced_bytes, run.reserved_bytes, run.measured_bytes)
            for run in runs
            if run.ending is Ending.OUT_OF_MEMORY
        ),
        default=0,
    )


def _enough(runs: Sequence[Run]) -> int | None:
    """What a trial has finished with; None if it has not."""
    return min((run.extra_bytes for run in runs if run.ending is Ending.FINISHED), default=None)
