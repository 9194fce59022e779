"""Trains complete workloads under plans that divide a batch: no check may find a difference, nor take much time.

They are the features of the protocol and the papers, all own files of users in ``examples``, with the ports, and the
live study. All are known to train one curve, so every alarm is a false one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.curves.forks import in_forks
from benchmarks.features.feature import Feature
from benchmarks.features.papers import PAPERS
from benchmarks.features.running import predicted_peak, reports_of
from benchmarks.features.table import EXAMPLES, FEATURES
from benchmarks.living.alone import FOLDER
from benchmarks.living.drawn import BATCH, WORKLOAD, draw
from estimators.model import Plan
from scamp_service.search.proposals import Search
from scamp_service.study.parse import parse_study
from scamp_service.study.workload_names import is_file
from workloads.loading import load_workload
from workloads.refusals import WorkloadError, explain
from workloads.training.guard.division import DependsOnDivision
from workloads.training.runtime import lost_its_peers

FEW, MANY = 6, 200
"""Steps of features and papers, and those of trainings whose time counts."""
SECONDS = 60.0
"""For an example to load."""
NUM_LIVE = 3
"""Candidates of the live study."""


@dataclass(frozen=True, slots=True, eq=False)
class Complete:
    """A workload, a plan under which it trains, and the number of steps."""

    feature: Feature
    plan: Plan
    steps: int

    def __str__(self) -> str:
        return f"{self.feature.name}, {self.plan}"


def complete() -> Iterator[Complete]:
    """All workloads, those whose time counts last, under plans that divide a batch.

    Those whose time counts take turns with two plans. Each of the others has the two of its plans that those before it
    use least, so that every plan is among them.
    """
    uses = Counter[Plan]()
    for feature in (*FEATURES, *PAPERS):
        plans = [plan for plan in feature.plans if plan.layout.divides_batch]
        rarest = sorted(plans, key=uses.__getitem__)[:2]
        uses.update(rarest)
        yield from (Complete(feature, plan, FEW) for plan in rarest)
    files = [file for file in sorted(EXAMPLES.glob("**/*.yaml")) if "workload:" in file.read_text()]
    long = [example for file in files if (example := _example(file))]
    for number, params in enumerate(draw(0, NUM_LIVE, MANY).candidates):
        long.append(_divided(f"live study, trial {number}", WORKLOAD, FOLDER, params, BATCH))
    yield from (Complete(feature, feature.plans[number % 2], MANY) for number, feature in enumerate(long))


def _example(file: Path) -> Feature | None:
    """The first candidate of a study with a user's file that trains each candidate by itself, or None."""
    spec = parse_study(file.read_text())
    if not is_file(spec.workload) or spec.search.one_shot is not None:
        return None
    (params,) = Search(spec).propose([], 0, 1)
    batch = params.get("batch") or in_forks([partial(_default_batch, spec.workload, file.parent, params)], SECONDS)[0]
    return _divided(str(file.relative_to(EXAMPLES)), spec.workload, file.parent, params, batch)


def _default_batch(workload: str, folder: Path, params: Mapping[str, Any]) -> int:
    """In a fork, as a training would otherwise look for what it keeps in the files of all other examples, too."""
    return load_workload(workload, folder)(params).default_batch


def _divided(name: str, workload: str, folder: Path, params: Mapping[str, Any], batch: int) -> Feature:
    plans = Plan(batch // 2, 2), Plan(batch // 2, dp_shard=2)
    return Feature(name, workload, plans, params, folder=folder)


def figures(answers: Mapping[Complete, Mapping[str, Any]]) -> dict[str, float]:
    kinds = Counter(next(iter(answer)) for answer in answers.values())
    shares = [
        answer["check_share"] for case, answer in answers.items() if case.steps == MANY and "check_share" in answer
    ]
    return {
        "complete_trained": kinds["check_share"],
        "false_alarms": kinds["alarm"],
        "complete_failed": kinds["error"],
        "guard_cost_pct": 100 * fmean(shares) if shares else 0.0,
    }


def trained(case: Complete, folder: Path, seconds: float) -> dict[str, Any]:
    """{"check_share": share of the time}, {"refused": why} as a study would, {"alarm": words} or {"error": words}."""
    (traced,) = in_forks([partial(predicted_peak, case.feature, case.plan)], seconds)
    if not isinstance(traced, dict) or "error" in traced:
        return {"refused": str(traced)}
    folder.mkdir()
    ranks = [partial(train_rank, case, rank, folder) for rank in range(case.plan.world_size)]
    answers = in_forks(ranks, seconds)
    ended = [answer for answer in answers if isinstance(answer, dict) and "lost" not in answer]
    for kind in ("refused", "alarm", "error", "check_share"):
        if of_kind := [answer for answer in ended if kind in answer]:
            return of_kind[0]
    return {"error": str(answers)}


def train_rank(case: Complete, rank: int, folder: Path) -> dict[str, Any]:
    """How one rank fared, as ``trained`` says; {"lost": …} if another one has ended."""
    try:
        reports = reports_of(case.feature, case.plan, rank, folder, case.steps, max(1, case.steps // 4))
    except DependsOnDivision as error:
        return {"alarm": str(error)}
    except WorkloadError as error:
        return {"refused": str(error)}
    except BaseException as error:
        return {"lost": str(error)} if lost_its_peers(error) else {"error": explain(error, case.feature.folder)}
    return {"check_share": reports.check_share}
