"""Compares the planner's best new plan with the best hand-made one, for models that hand-made plans serve badly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from benchmarks.planning.unlike.drafts import Planned, again_seconds, ideal_seconds
from benchmarks.planning.unlike.emerging import KNOWN, Family, Model, draw
from benchmarks.planning.unlike.hand_plans import best_hand_plan
from benchmarks.planning.unlike.new_plans import best_new_plan
from benchmarks.planning.unlike.plan_pictures import picture
from benchmarks.running.results import Finding

NUM_DRAWN = 6
PICTURES = "plans"
"""Folder of the pictures, beside the page."""

TITLE = "New plans against hand-made ones"
HEADER = ("plain s", "any s", "new s", "ideal s", "ratio", "ratio of any", "why", "picture", "case")
ABOUT = f"""\
Simulated seconds of a step on 32 V100-32 (4 nodes of 8), with the rates and links of the catalogue, which are assumed.
"Plain" is the best hand-made plan of FSDP, tensor × data parallelism and 1F1B × tensor × data parallelism, over all
degrees and micro-batches, with and without recompute of all blocks. "Any" also combines these with sequence
parallelism, ZeRO-1, FSDP and selective recompute, as the libraries of today do, but the same for all units. "New" is
the planner's best plan: a layout for each unit, on the same ranks; co-shard, recompute of some units, uneven cuts,
shared ends (interlaced), 3F1B, and schedules with less idle time; or a plan of "any" if nothing is faster. "Ideal" is
the time of what must be computed, without communication and recompute. "Scores again" in a plan means that attention is
recomputed. All have one cost model and one simulator, and memory is checked for each. `new_plan_ratios` is plain / new,
`new_plan_ratios_of_any` is any / new. Models have the sizes of SuperScaler's public code, a small and the largest one
of each family, with more words or more tokens; attention keeps its scores, unless a case says otherwise. {NUM_DRAWN}
more were drawn by the seed (unseen). SuperScaler reports up to 3.5 × over systems of 2022, on real GPUs; nothing here
has run on a GPU."""


@dataclass(frozen=True)
class Case:
    """A model, and whether its sizes were drawn by the seed."""

    family: Family
    is_drawn: bool = False

    def __str__(self) -> str:
        return f"{self.family.model()}{' (unseen)' if self.is_drawn else ''}"


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of the best plans and of the ideal; infinite, if no plan of a kind fits. ``svg`` is their picture."""

    name: str
    plain_seconds: float
    any_seconds: float
    new_seconds: float
    ideal_seconds: float
    why: str
    svg: str

    @property
    def ratio(self) -> float:
        """How many times as fast the new plan is as the best plain one."""
        return self.plain_seconds / self.new_seconds

    @property
    def ratio_of_any(self) -> float:
        """How many times as fast the new plan is as any that is made by hand."""
        return self.any_seconds / self.new_seconds

    def row(self) -> list[str]:
        """The cells of the table under ``HEADER``, without the case."""
        seconds = (self.plain_seconds, self.any_seconds, self.new_seconds, self.ideal_seconds)
        link = f"[{slug(self.name)}]({PICTURES}/{slug(self.name)}.svg)"
        return [
            *(f"{second:.2f}" for second in seconds),
            f"{self.ratio:.2f}",
            f"{self.ratio_of_any:.2f}",
            self.why,
            link,
        ]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    """All cases, or a few small ones."""
    drawn = [Case(family, is_drawn=True) for family in draw(seed, NUM_DRAWN)]
    return [Case(KNOWN[4])] if quick else [*map(Case, KNOWN), *drawn]


def measure(case: Case, seconds: float) -> Result:
    """The result of one case; ``seconds`` is not used, as nothing is run."""
    model = case.family.model()
    plain, hand = best_hand_plan(model, is_plain=True), best_hand_plan(model, is_plain=False)
    new = best_new_plan(model, hand.seconds if hand else inf) or hand
    if new is None or plain is None:
        raise ValueError("no plan fits on 32 V100-32" if new is None else f"no plain plan fits; {new.words} does")
    assert hand is not None
    ideal = ideal_seconds(model)
    why = _why(model, plain, hand, new, ideal)
    plans = [("plain", plain), ("any", hand), ("new", new)]
    svg = picture(str(case), model, plans if new is not hand else plans[:2])
    return Result(case.family.name, plain.seconds, hand.seconds, new.seconds, ideal, why, svg)


def figures(results: Sequence[Result]) -> dict[str, float | dict[str, float]]:
    """Both ratios of each case."""
    return {
        "new_plan_ratios": {result.name: round(result.ratio, 3) for result in results},
        "new_plan_ratios_of_any": {result.name: round(result.ratio_of_any, 3) for result in results},
    }


def notes(findings: Sequence[Finding]) -> list[str]:
    """Cases without a result."""
    return [f"  {finding.case}: {finding.failure}" for finding in findings if finding.failure]


def write_pictures(findings: Sequence[Finding], page_folder: Path) -> None:
    """Write one file for each case, into a folder beside the page."""
    folder = page_folder / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    for finding in findings:
        if not finding.failure:
            (folder / f"{slug(finding.values['name'])}.svg").write_text(finding.values["svg"])


def slug(name: str) -> str:
    """The name of a picture."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("²", "")).strip("-")


def _why(model: Model, plain: Planned, hand: Planned, new: Planned, ideal: float) -> str:
    """Says which plans these are, where their time goes, and so why the new one wins or does not."""
    shares = [_shares(model, plan, ideal) for plan in (plain, new)]
    said = f"plain: {plain.words} ({_said(shares[0])}); "
    if plain.seconds <= 1.005 * new.seconds:
        return f"{said}nothing to gain: no plan avoids the rest within the memory"
    if new is hand:
        said += "no new plan is faster than one made by hand with today's libraries: "
    else:
        said += "new: "
    most = max(shares[0], key=lambda name: shares[0][name] * plain.seconds - shares[1][name] * new.seconds)
    saves = (shares[0][most] * plain.seconds - shares[1][most] * new.seconds) / plain.seconds
    return f"{said}{new.words} ({_said(shares[1])}), which saves {100 * saves:.0f} % of the plain step by less {most}"


def _shares(model: Model, plan: Planned, ideal: float) -> dict[str, float]:
    """Shares of a step that are not needed for the computation itself."""
    recompute_seconds, idle = again_seconds(model, plan), plan.idle_seconds
    other_seconds = max(0.0, plan.seconds - ideal - recompute_seconds - idle)
    return {
        name: seconds / plan.seconds
        for name, seconds in zip(_LOST, (recompute_seconds, other_seconds, idle), strict=True)
    }


_LOST = ("recompute", "communication and updates", "idle time")


def _said(shares: dict[str, float]) -> str:
    return ", ".join(f"{100 * share:.0f} % {name}" for name, share in shares.items() if share >= 0.005) or "no loss"
