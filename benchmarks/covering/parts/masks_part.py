"""Compares predicted peaks of losses that choose by masks with what steps allocate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.covering.asked import Asked
from benchmarks.covering.asking import ask
from benchmarks.covering.compared import Compared
from benchmarks.covering.masked import FORMS
from benchmarks.covering.parts import peaks_part
from benchmarks.covering.parts.peaks_part import counted_peak

TITLE = "Masks"
HEADER = ("predicted MiB", "counted MiB", "error", "assumed", "case")
ABOUT = f"""\
{len(FORMS)} forms of choosing by a mask. Masks of the batch's values select, as in a step. Other masks choose all that
they may, which the answer says: such a prediction is the most that a step can need, and its error is not counted in
`masks_max_pct`. `masks_answered_pct` is the share that has an answer."""
WHOLE = "chooses all"


@dataclass(frozen=True, slots=True)
class Result(Compared):
    """``assumed`` are the words of the assumptions."""

    assumed: str

    def row(self) -> list[str]:
        if self.refusal:
            return ["", "", "refused", self.refusal]
        return [*self.cells((self.predicted, self.measured)), self.assumed]


def cases(quick: bool, seed: int) -> Sequence[Asked]:
    every = [Asked("masked", {"model": form, "batch": 16}) for form in FORMS]
    return every[:1] if quick else every


def measure(case: Asked, seconds: float) -> Result:
    answer = ask(case)
    assumed = ", ".join(assumption.split(" (")[0] for assumption in answer.assumptions)
    measured = 0 if answer.refusal else counted_peak(case, seconds)
    return Result(answer.predicted, measured, answer.refusal, assumed)


def figures(results: Sequence[Result]) -> dict[str, float]:
    answered = [result for result in results if not result.refusal]
    values: dict[str, float] = {"masks": len(results)}
    if results:
        values["masks_answered_pct"] = 100 * len(answered) / len(results)
    if answered:
        values["masks_max_pct"] = max(abs(result.error_pct) for result in answered if WHOLE not in result.assumed)
        values["masks_min_pct"] = min(result.error_pct for result in answered)
    return values


notes = peaks_part.notes
