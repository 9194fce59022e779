"""Trains drawn programs as studies do, with an interruption, and compares each with one rank that nobody interrupts.

A program gets a drawn plan that divides its batch, unless its trace says why it may not be divided. If the training
finds that its curve depends on the division, it begins anew under a plan that does not divide. It is interrupted at a
drawn step, either paused there, or killed some steps after its last checkpoint, and resumes in new processes. If it
finds that it resumes differently, it begins anew, uninterrupted. What was not divided is also trained in two
micro-batches and unguarded, to see whether that was needed.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.curves.forks import CRASHED, HANGS, in_forks
from benchmarks.curves.programs import program
from benchmarks.curves.running import Attempt, Idiom, train
from estimators.constraints import PlanConstraints
from estimators.model import Divisions, Layout, Plan
from estimators.traits import Traits
from placement.planning.ways import list_ways
from workloads.sandbox.answers import answer

BATCH, STEPS = 16, 8
MOST_PLANS = 3
"""Plans that are tried before one is taken that does not divide the batch."""
TOLERANCE = 1e-4
SECONDS = 900.0
HEADING = "## Programs drawn from a grammar\n"
_COMMAND = "python -m benchmarks.same_curve --drawn N --seed FIRST --results FILE --write PAGE"
_ABOUT = """\
Programs of users are drawn from a grammar (`benchmarks/curves/parts.py`): losses, hooks, state, schedules and
optimizers. Many depend on how a batch is divided, or keep what a checkpoint must have. Each is trained for
eight steps under a drawn plan that divides its batch, unless its trace or the training itself says why it may not be
divided, and is paused or killed at a drawn step. *Wrong*: a loss or metric differs by more than 1e-4 from that of one
rank that nobody interrupts. `drawn_divided_pct`: of the programs that train rightly divided, those that were trained
so; what was not is trained once more in two micro-batches, unguarded, to know that.
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program fared: ``kind`` is equal, wrong, refused, failed or hangs; ``how`` says how it was trained.

    ``is_divided``: it was trained under a plan that divides its batch. ``may_be``: that plan, or two micro-batches,
    train the right curve.
    """

    kind: str
    how: str
    difference: float = 0.0
    is_divided: bool = False
    may_be: bool = False


def asked(idiom: Idiom, layout: Layout) -> dict[str, Any]:
    """The answer to a study that asks for a trace of the program under a layout, and first whether it runs at all."""
    request = {
        "workload": idiom.workload,
        "code_dir": str(idiom.folder),
        "code_zip": None,
        "on_cuda": False,
        "equal_blocks": None,
        "layout": asdict(layout),
    }
    if layout == Layout():
        tried = answer({**request, "ask": "dry run", "params": [{}], "metrics": ["loss"]})
        if wrong := tried.get("error") or tried["wrong"]:
            return {"error": wrong}
    traced = answer({**request, "ask": "trace", "params": {}})
    return {name: traced[name] for name in ("error", "traits", "divisions") if name in traced}


def outcome_of(number: int, folder: Path) -> Outcome:
    """How a program fares, which is written into a new folder. One that is wrong is trained in fp64 as well: where its
    curve is then that of one rank, it is rounding that grew, as in a training that diverges, or whose optimizer scales
    gradients that would be zero without rounding."""
    outcome = _outcome_of(program(number), number, folder)
    if outcome.kind == "wrong":
        exact = _outcome_of(
            program(number).replace(_CLASSES, f"torch.set_default_dtype(torch.float64)\n{_CLASSES}"), number, folder
        )
        if exact.kind == "equal" and exact.is_divided == outcome.is_divided:
            return replace(exact, how=f"{exact.how}, in fp64; in fp32 rounding grows to {outcome.difference:.1g}")
    return outcome


_CLASSES = "\nCLASSES, "


def _outcome_of(text: str, number: int, folder: Path) -> Outcome:
    draws = random.Random(f"plans {number}")
    folder.mkdir()
    (folder / "drawn.py").write_text(text)
    idiom = Idiom(folder, "drawn.py:Program")
    try:
        return _outcome(idiom, draws)
    finally:
        shutil.rmtree(folder)


def _outcome(idiom: Idiom, draws: random.Random) -> Outcome:
    (traced,) = in_forks([partial(asked, idiom, Layout())], SECONDS)
    if not isinstance(traced, dict):
        return Outcome("failed", str(traced))
    if "error" in traced:
        return Outcome("refused", traced["error"])
    divisions = Divisions(**{**traced["divisions"], "constraints": PlanConstraints()})
    first, rest = _interruption(draws)
    straight = Attempt(STEPS, report_every=first.report_every, guard=False)
    (reference,) = in_forks([partial(train, idiom, Plan(BATCH), 0, idiom.folder / "whole", straight)], SECONDS)
    if not isinstance(reference, dict) or "values" not in reference:
        return Outcome("refused" if "refused" in reference else "failed", f"one rank: {reference}")

    def of_plans(plans: Sequence[Plan], how: str) -> Outcome | None:
        """The outcome of the first plan that its traces accept, as a study chooses; None if they refuse all."""
        for number, plan in enumerate(plans):
            folder = idiom.folder / f"{len(how)}-{number}"
            ranks, resumed = _trained(idiom, plan, folder, first, rest)
            outcome = _compared(ranks, reference, f"{how}{plan}, {resumed}")
            if outcome.kind in ("equal", "alarm") or not _is_refused(idiom, plan):
                return outcome
        return None

    def may_be_divided() -> bool:
        ranks = _ranks(idiom, Plan(BATCH // 2, 2), idiom.folder / "unguarded", straight)
        return _compared(ranks, reference, "").kind == "equal"

    divided, undivided = (_plans(divisions, draws, divides=divides) for divides in (True, False))
    refusal = Traits(**traced["traits"]).refusal(Layout(accumulate=True))
    why = f"its trace: {refusal}: " if refusal else ""
    if not why:
        outcome = of_plans(divided[:MOST_PLANS], "")
        if outcome is not None and outcome.kind != "alarm":
            return replace(outcome, is_divided=True, may_be=outcome.kind == "equal")
        why = f"alarm: {outcome.how}: " if outcome is not None else "traces refuse plans that divide it: "
    outcome = of_plans([undivided[0], Plan(BATCH)], why)
    assert outcome is not None
    return replace(outcome, may_be=may_be_divided())


def _interruption(draws: random.Random) -> tuple[Attempt, Attempt]:
    """The first attempt, which pauses or is killed, and the one that resumes, whose step is not known yet."""
    if draws.random() < 0.5:
        return Attempt(STEPS, until=draws.randrange(1, STEPS)), Attempt(STEPS)
    report_every = draws.randrange(1, 4)
    dies_in = draws.randrange(report_every + 1, STEPS + 1)
    return Attempt(STEPS, dies_in=dies_in, report_every=report_every), Attempt(STEPS, report_every=report_every)


def _plans(divisions: Divisions, draws: random.Random, *, divides: bool) -> list[Plan]:
    """Plans of each kind on one and two ranks, in a drawn order, which divide the batch or don't."""
    kinds: dict[object, list[Plan]] = {}
    for way in (*list_ways(divisions, 1), *list_ways(divisions, 2)):
        num = way.dp_shard * way.dp_replicate
        for micro_batches in (1, 2, 4):
            if micro_batches < way.pp:
                continue
            size = BATCH // num // micro_batches
            plans = [Plan(size, micro_batches, **way.values)]
            if num > 1 and draws.random() < 0.2:  # uneven shares
                uneven = size + size // 4
                plans.append(Plan(uneven, micro_batches, shares=(uneven, 2 * size - uneven), **way.values))
            for plan in plans:
                if any(layout.divides_batch for layout in plan.layouts) == divides:
                    kind = (way.dp_shard, way.dp_replicate, way.zero1, way.tp, way.pp, micro_batches > 1)
                    kinds.setdefault(kind, []).append(plan)
    chosen = [draws.choice(plans) for plans in kinds.values()]
    draws.shuffle(chosen)
    return sorted(chosen, key=lambda plan: plan.world_size) if draws.random() < 0.6 else chosen  # they take less time


def _is_refused(idiom: Idiom, plan: Plan) -> bool:
    """Whether a trace refuses a layout of the plan, so that no study would choose it."""
    layouts = [layout for layout in plan.layouts if layout != Layout()]
    answers = (in_forks([partial(asked, idiom, layout)], SECONDS)[0] for layout in layouts)
    return any(not isinstance(answered, dict) or "error" in answered for answered in answers)


def _trained(idiom: Idiom, plan: Plan, folder: Path, first: Attempt, rest: Attempt) -> tuple[list[dict[str, Any]], str]:
    """The answers of ranks that are interrupted and resume from the last checkpoint, and where that was."""
    ranks = _ranks(idiom, plan, folder, first)
    how = f"paused at {first.until}" if first.until else f"killed in {first.dies_in}"
    if not all("values" in rank for rank in ranks):
        return ranks, how
    begun = max(ranks[0]["checkpoints"], default=0)
    again = _ranks(idiom, plan, folder, replace(rest, resume=begun))
    if why := next((rank["anew"] for rank in again if "anew" in rank), ""):
        return _ranks(idiom, plan, folder, rest), f"{how}, resumed at {begun}, began anew: {why}"
    if "values" in ranks[0] and all("values" in rank for rank in again):
        again[0]["values"] = [pair for pair in ranks[0]["values"] if pair[0] <= begun] + again[0]["values"]
    return again, f"{how}, resumed at {begun}"


def _ranks(idiom: Idiom, plan: Plan, folder: Path, attempt: Attempt) -> list[dict[str, Any]]:
    calls = [partial(train, idiom, plan, rank, folder, attempt) for rank in range(plan.world_size)]
    return [rank if isinstance(rank, dict) else {rank: rank} for rank in in_forks(calls, SECONDS)]


def _compared(ranks: Sequence[dict[str, Any]], reference: dict[str, Any], how: str) -> Outcome:
    kinds = (("alarm", "alarm"), ("refused", "refused"), ("error", "failed"), (CRASHED, "failed"), (HANGS, "hangs"))
    for kind, name in kinds:
        if details := [rank[kind] for rank in ranks if kind in rank]:
            return Outcome(name, details[0] if name == "alarm" else f"{how}: {details[0]}")
    ours, other = dict(ranks[0]["values"]), dict(reference["values"])
    if ours.keys() != other.keys():
        return Outcome("wrong", f"{how}: reports of other steps", float("inf"))
    differences = [
        abs(ours[step][name] - value) / max(1.0, abs(value))
        for step, values in other.items()
        for name, value in values.items()
    ]
    largest = max(math.inf if math.isnan(difference) else difference for difference in differences)
    return Outcome("equal" if largest <= TOLERANCE else "wrong", how, largest)


def read(results: Path | None) -> dict[int, Outcome]:
    """The outcomes that were kept in a file, by number."""
    if results is None or not results.exists():
        return {}
    rows = map(json.loads, results.read_text().splitlines())
    return {number: Outcome(**outcome) for number, outcome in rows}


def keep(results: Path, number: int, outcome: Outcome) -> None:
    """Add an outcome to the file."""
    with results.open("a") as file:
        file.write(json.dumps([number, asdict(outcome)]) + "\n")


def figures(outcomes: Mapping[int, Outcome]) -> dict[str, float]:
    kinds = Counter(outcome.kind for outcome in outcomes.values())
    num, divisible = len(outcomes), [outcome for outcome in outcomes.values() if outcome.may_be]
    return {
        "drawn_programs": num,
        "drawn_silently_wrong": kinds["wrong"],
        "drawn_trained_pct": 100 * kinds["equal"] / max(1, num),
        "drawn_failed": kinds["failed"] + kinds["hangs"],
        "drawn_divided_pct": 100 * sum(outcome.is_divided for outcome in divisible) / max(1, len(divisible)),
    }


def section(outcomes: Mapping[int, Outcome]) -> str:
    """A section of Markdown: the figures, how programs were trained, and each that was not trained as by one rank."""
    ways = Counter(
        (outcome.kind, "divided" if outcome.is_divided else outcome.how.partition(":")[0].splitlines()[0])
        for outcome in outcomes.values()
        if outcome.kind == "equal"
    )
    lines = [HEADING, f"Measured by `{_COMMAND}`.", "", _ABOUT]
    lines += [*(f"- `{name}`: {value:g}" for name, value in figures(outcomes).items()), ""]
    lines += [
        "| trained | programs |",
        "| --- | --- |",
        *(f"| {way} | {num} |" for (_, way), num in ways.most_common()),
    ]
    others = [(number, outcome) for number, outcome in sorted(outcomes.items()) if outcome.kind != "equal"]
    if others:
        lines += ["", "| program | outcome | how, or why |", "| --- | --- | --- |"]
    for number, outcome in sorted(others, key=lambda item: item[1].kind, reverse=True):
        how = " / ".join(outcome.how.splitlines()).replace("|", "/")
        lines.append(f"| {number} | {outcome.kind} | {how} |")
    return "\n".join(lines) + "\n"
