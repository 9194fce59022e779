"""Asks for an estimate of each family of ``transformers``, as a user gets it, and shows every refusal with its reason.

Nothing runs for real here: ``families.py`` lists families that do, and why others are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.covering.asked import Asked
from benchmarks.covering.asking import Answer, ask, tracked, where_refused
from benchmarks.covering.models.listed import LEFT_OUT, LISTED
from benchmarks.running.results import Finding, listed
from estimators.model import MIB

BATCH = 3
TRACKED_EVERY = 16  # MemTracker is asked about every sixteenth family, because it takes as long as all the rest
QUICK = ("gpt2", "vit")
TITLE = "Families of transformers"
HEADER = ("MiB", "wall s", "CPU s", "tracker s", "tracker", "answer", "family")
ABOUT = f"""\
Estimates of {len(LISTED)} families, each from its default configuration made small, one training step with loss and a
batch of {BATCH}, asked for through the trace process, which has not seen the family before. Every one of them runs for
real with the same inputs; {len(LEFT_OUT)} others are left out, because they do not. The columns of the tracker have
torch's `MemTracker` on the same steps of every sixteenth family."""


@dataclass(frozen=True, slots=True)
class Result:
    """``refusal`` is the first line of the reason, empty if there is an answer; ``assumptions`` bound the answer.

    ``refused_at`` is the line of transformers that was refused.
    """

    predicted: int
    wall_seconds: float
    cpu_seconds: float
    refusal: str
    tracker_seconds: float
    tracker_failure: str
    assumptions: list[str] = field(default_factory=list)
    refused_at: str = ""

    def row(self) -> list[str]:
        size = "" if self.refusal else f"{self.predicted / MIB:.0f}"
        answer = "refused" if self.refusal else "bounded" if self.assumptions else "answered"
        seconds = [f"{duration:.1f}" for duration in (self.wall_seconds, self.cpu_seconds, self.tracker_seconds)]
        return [size, *seconds, self.tracker_failure.removeprefix("fails: ") or "answered", answer]


def cases(quick: bool, seed: int) -> Sequence[Asked]:
    return [Asked("models/families", {"family": name, "batch": BATCH}) for name in (QUICK if quick else LISTED)]


def measure(case: Asked, seconds: float) -> Result:
    """The answer for one family; ``seconds`` is not used, because an estimate has its own limit."""
    answer, also = ask(case), LISTED.index(case.params["family"]) % TRACKED_EVERY == 0
    other = tracked(case) if also else Answer(0, 0.0, 0.0, "not asked")
    times = answer.wall_seconds, answer.cpu_seconds
    line = where_refused(case) if answer.refusal else ""
    return Result(answer.predicted, *times, answer.refusal, other.wall_seconds, other.refusal, answer.assumptions, line)


def figures(results: Sequence[Result]) -> dict[str, float]:
    return {
        "families": len(results),
        "families_answered_pct": 100 * sum(not result.refusal for result in results) / len(results),
        "families_bounded": sum(bool(result.assumptions) for result in results),
        "cold_median_seconds": median(result.wall_seconds for result in results),
        "cold_worst_seconds": max(result.wall_seconds for result in results),
        "cold_median_cpu_seconds": median(result.cpu_seconds for result in results),
        **_of_tracker([result for result in results if result.tracker_failure != "not asked"]),
    }


def _of_tracker(results: Sequence[Result]) -> dict[str, float]:
    if not results:
        return {}
    return {
        "tracker_families": len(results),
        "tracker_answered_pct": 100 * sum(not result.tracker_failure for result in results) / len(results),
        "tracker_median_seconds": median(result.tracker_seconds for result in results),
        "tracker_worst_seconds": max(result.tracker_seconds for result in results),
    }


def notes(findings: Sequence[Finding]) -> list[str]:
    """Every refused family with its reason, and every family that is left out of the list."""
    refused = listed(
        findings, lambda f: f"{f.values['refusal']} [{f.values['refused_at']}]" if f.values["refusal"] else ""
    )
    left_out = [f"  {name}: {reason}" for name, reason in LEFT_OUT.items()]
    return [f"{len(refused)} families refused:", *refused, f"{len(left_out)} families left out:", *left_out]
