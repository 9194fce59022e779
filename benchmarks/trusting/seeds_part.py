"""Runs the real controller, decisions and store through simulated faults, and counts what was lost or done twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.running.results import Finding, listed
from tests.quick_store import empty_store
from tests.simulation.simulation import Simulation

SEEDS_OF_CASE = 50
TITLE = "Simulated faults"
HEADER = ("seeds", "failed", "terms", "crashes", "pauses", "case")
ABOUT = """\
Two controllers on one database (SQLite in memory) and one simulated cluster, in virtual time. Each seed draws one or
two studies and when what goes wrong (`tests/simulation` lists the faults). A seed fails if a trial or an
acknowledged metric is missing or counts twice, if a device ever holds more than it has, or if a study never ends.
*Terms* counts how often a controller became the leader."""
KINDS = ("lost", "duplicated", "oversubscribed", "stuck")


@dataclass(frozen=True, slots=True)
class Case:
    """Consecutive seeds."""

    first: int
    num: int

    def __str__(self) -> str:
        return f"seeds {self.first} to {self.first + self.num - 1}"


def cases(quick: bool, seed: int) -> Sequence[Case]:
    if quick:
        return [Case(1000 * seed, 20)]
    return [Case(1000 * seed + first, SEEDS_OF_CASE) for first in range(0, 1000, SEEDS_OF_CASE)]


@dataclass(frozen=True, slots=True)
class Result:
    """Counts over the seeds of a case. ``why`` has the first failure, if any."""

    seeds: int
    lost: int
    duplicated: int
    oversubscribed: int
    stuck: int
    terms: int
    crashes: int
    pauses: int
    why: str = ""

    @property
    def failed(self) -> int:
        """Seeds that failed, in any way."""
        return self.lost + self.duplicated + self.oversubscribed + self.stuck

    def row(self) -> list[str]:
        return [str(count) for count in (self.seeds, self.failed, self.terms, self.crashes, self.pauses)]


def measure(case: Case, seconds: float) -> Result:
    """Run the seeds of a case, one after another; ``seconds`` is not used, as time is virtual."""
    tally: Counter[str] = Counter()
    why = ""
    for seed in range(case.first, case.first + case.num):
        simulation = Simulation(empty_store(), seed)
        try:
            simulation.run()
        except AssertionError as error:
            tally[kind_of(str(error))] += 1
            why = why or str(error).splitlines()[0]
        tally.update(terms=simulation.world.term, crashes=simulation.num_crashes, pauses=simulation.num_pauses)
    counts = {name: tally[name] for name in (*KINDS, "terms", "crashes", "pauses")}
    return Result(seeds=case.num, **counts, why=why)


def kind_of(failure: str) -> str:
    """Classifies the failure of a seed: one of ``KINDS``."""
    if "not finished" in failure:
        return "stuck"
    if "over-subscribed" in failure:
        return "oversubscribed"
    return "duplicated" if "completed by" in failure or "twice" in failure else "lost"


def figures(results: Sequence[Result]) -> dict[str, float]:
    failed = {f"seeds_{kind}": sum(getattr(result, kind) for result in results) for kind in KINDS}
    return {"seeds": sum(result.seeds for result in results), **failed}


def notes(findings: Sequence[Finding]) -> list[str]:
    """The first failure of each case that has any."""
    return listed(findings, lambda finding: finding.values["why"])
