"""Searches plans by Aceso's published profile of V100 GPUs, and scores them by Aceso's own cost model.

Profile and cost model are in a checkout of Aceso's repository that the user names by ``--aceso``; nothing of it is
here. Without it the part has no cases.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from benchmarks.planning.aceso_profile import FOLDER, Assumptions, Machine, Profile, ways_of
from benchmarks.planning.aceso_score import Score, config_of, score_of
from benchmarks.running.results import Finding
from estimators.model import MIB
from placement.exact.search import StagedPlan, search_or_none
from placement.exact.ways import Way

OPTIONS = {"aceso": "checkout of github.com/microsoft/SuperScaler, branch Aceso: its profile and its cost model"}
TITLE = "Plans by Aceso's profile"
HEADER = ("seconds", "by its model", "Aceso", "search s", "making s", "MB", "plan", "case")
ABOUT = """\
Aceso (Liu et al., EuroSys 2024) searches plans by changing a plan where it is slowest, with a profile of operators on
V100 GPUs and a cost model. Here the exact search gets costs from the same profile, and the plan that it finds is scored
by Aceso's own cost model, both from a checkout that `--aceso` names: branch Aceso of github.com/microsoft/SuperScaler.
"seconds" are those of a step that the search predicts, "by its model" those that Aceso's cost model predicts for the
same plan, and "Aceso" those that it predicts for Aceso's plan: with 12,000 MB the one that Aceso's search found when we
ran it with 60 s for each number of stages, otherwise the published one, which for one GPU is not searched. "miniset"
and "eurosys" are two profiles in the checkout; Aceso's scripts take the first one for 12,000 MB. "MB" is what its model
predicts for the fullest GPU. All our stages have equal degrees, and only four runs of operators in a layer may be
recomputed; Aceso may choose other degrees for each stage, and any operators. "search s" includes the scores of all
plans that are compared: one or two on one node; on several nodes up to four for each number of stages, because the
search does not know where nodes end. Aceso's published searches took 200 s."""
_REFERENCE = "results/ref/perf_model_time_large_gpt.csv"


@dataclass(frozen=True, slots=True)
class Case:
    """A GPT on a machine; ``known_seconds`` are those of Aceso's plan where its repository does not say them."""

    checkout: Path
    figure: str
    profile: str
    size: str
    num_layers: int
    machine: Machine
    batch: int
    known_seconds: float | None = None

    def __str__(self) -> str:
        machine = self.machine
        nodes = f"{machine.num_nodes} × " if machine.num_nodes > 1 else ""
        size, memory = self.size.replace("_", "."), f"{machine.capacity_mib:,} MB"
        return f"GPT-{size}, {nodes}{machine.gpus_per_node} × {memory}, batch {self.batch}, {self.profile}"


def cases(quick: bool, seed: int, aceso: Path | None = None) -> Sequence[Case]:
    """The small case, and the published ones unless ``quick``; none without a checkout. ``seed`` is not used."""
    if aceso is None:
        return []
    four = Machine(1, 4, 12_000)
    small = Case(aceso, "aceso_1p3b", "miniset", "1_3B", 24, four, 512, 58.76)
    other = Case(aceso, "aceso_1p3b_eurosys", "eurosys", "1_3B", 24, four, 512, 56.60)
    large = [
        Case(aceso, f"aceso_{name}_large", "eurosys", size, num_layers, Machine(num_nodes, num_gpus, 28_000), 1024)
        for name, size, num_layers, num_nodes, num_gpus in (
            ("350m", "350M", 24, 1, 1),
            ("1p3b", "1_3B", 24, 1, 4),
            ("2p6b", "2_6B", 32, 1, 8),
            ("6p7b", "6_7B", 32, 2, 8),
            ("13b", "13B", 40, 4, 8),
        )
    ]
    return [small] if quick else [small, other, *large]


@dataclass(frozen=True, slots=True)
class Result:
    """The plan found, its seconds by the search and by Aceso's cost model, and seconds of finding it."""

    figure: str
    plan: str
    predicted_seconds: float
    scored_seconds: float
    known_seconds: float
    scored_mib: float
    search_seconds: float
    making_seconds: float

    def row(self) -> list[str]:
        """The cells of the table under ``HEADER``, without the case."""
        times = [self.predicted_seconds, self.scored_seconds, self.known_seconds]
        measured = [f"{self.search_seconds:.2f}", f"{self.making_seconds:.2f}"]
        return [*(f"{time:.2f}" for time in times), *measured, f"{self.scored_mib:,.0f}", self.plan]


def figures(results: Sequence[Result]) -> dict[str, float]:
    """Seconds of each plan by Aceso's cost model; of the small case, also those of the search and of making costs."""
    values = {f"{result.figure}_seconds": result.scored_seconds for result in results}
    small = next((result for result in results if result.figure == "aceso_1p3b"), None)
    if small:
        values |= {"aceso_search_seconds": small.search_seconds, "aceso_making_seconds": small.making_seconds}
    return values


def notes(findings: Sequence[Finding]) -> list[str]:
    """Why there are no cases, or every case without a result."""
    if not findings:
        return ["Nothing was compared with Aceso: name a checkout of it by --aceso."]
    return [f"  {finding.case}: {finding.failure}" for finding in findings if finding.failure]


def measure(case: Case, seconds: float) -> Result:
    """The result of one case; ``seconds`` is not used, as all cases are short.

    Raises ``ValueError`` if no plan fits by Aceso's cost model.
    """
    reference_seconds = case.known_seconds or _published_seconds(case.checkout / _REFERENCE, case.size)
    begun = perf_counter()
    profile = Profile(case.checkout / f"{FOLDER}{case.profile}", case.size, case.num_layers, case.machine.gpus_per_node)
    ways = {assumed: ways_of(profile, case.machine, assumed) for assumed in _ASSUMED}
    built_at = perf_counter()
    scored = list(_scored(case, profile, ways))
    ended = perf_counter()
    if not scored:
        raise ValueError("no plan fits by Aceso's cost model: use larger or more devices")
    staged, best = min(scored, key=lambda pair: pair[1].seconds)
    plan = f"{staged.spread.short}, micro-batch {staged.num_micro_batches} × {staged.micro_batch}"
    times = (ended - built_at, built_at - begun)
    return Result(
        case.figure, plan, staged.seconds, best.seconds, reference_seconds, max(best.stage_bytes) / MIB, *times
    )


_ASSUMED = [Assumptions(is_far, is_safe) for is_far in (False, True) for is_safe in (False, True)]


def _scored(
    case: Case, profile: Profile, ways: Mapping[Assumptions, Sequence[Way]]
) -> Iterator[tuple[StagedPlan, Score]]:
    """Yield plans that fit by Aceso's model, with their scores.

    On one node one plan is enough: costs are exact, except that a cut within attention may be charged to the wrong
    side. On several nodes no costs say which borders between stages are between nodes, so the best plan of each number
    of stages is scored, by both assumptions.
    """
    numbers = {way.num_stages for alternatives in ways.values() for way in alternatives}
    on_nodes = [(is_far, {num}) for is_far in (False, True) for num in numbers]
    for is_far, stage_counts in on_nodes if case.machine.num_nodes > 1 else [(False, numbers)]:
        for is_safe in (False, True):
            every = [way for way in ways[Assumptions(is_far, is_safe)] if way.num_stages in stage_counts]
            plan = search_or_none(every, case.machine.devices, batch=case.batch)
            if plan and max((score := _score(case, profile, plan)).stage_bytes) <= case.machine.capacity_bytes:
                yield plan, score
                break


def _score(case: Case, profile: Profile, plan: StagedPlan) -> Score:
    model = {"model_name": "gpt", "model_size": case.size, "num_layers": case.num_layers}
    return score_of(case.checkout, case.profile, config_of(plan, profile.units, model, case.batch), case.machine)


def _published_seconds(file: Path, size: str) -> float:
    """Seconds that Aceso predicts for its own plan of a published size, from the file in its repository."""
    with file.open(newline="") as lines:
        header, *rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    predicted = next(row for row in rows if row[0] == "predict")
    return float(predicted[header.index(size)])
