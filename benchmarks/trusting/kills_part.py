"""Kills and freezes the processes of a live service while studies run, and counts what was lost or done twice."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.running.results import Finding
from benchmarks.trusting.api_part import p95
from tests.services.kills import Losses, UnderFire
from tests.services.postgres import find_postgres, postgres

KILLS_OF_CASE = 50
TITLE = "Live kills"
HEADER = ("kills", "lost", "twice", "missing", "MiB kept", "median s", "p95 s", "case")
ABOUT = """\
A real service, with a real Ray and ranks that train, on two virtual devices. SIGKILL, or SIGSTOP for 0.5 to 15 s, hits
processes drawn by a seed: the API, the controller, the sink, a rank, a trace process, Ray's head process (GCS), its
node manager (raylet), its guardian, the supervisor, and PostgreSQL where it holds the studies. Up to three are hit in
quick succession. A kill has been recovered from when a controller has worked since, and a rank has reported to the
database; *median s* and *p95 s* are seconds from the kill until then. The time of a freeze counts from its start. After
the last kill all studies run to their end. *Lost* are trials that do not complete, *twice* those that complete or
report a step twice, *missing* those that lack an evaluation or have one that has changed. *MiB kept* is the memory of
the devices that is still reserved after the end."""


@dataclass(frozen=True, slots=True)
class Case:
    """A database and a seed."""

    backend: str
    seed: int
    kills: int
    packs: bool = False

    def __str__(self) -> str:
        return f"{self.kills} kills on {self.backend}, seed {self.seed}{', packs' * self.packs}"


def cases(quick: bool, seed: int) -> Sequence[Case]:
    """500 kills on both databases; none in a quick run, for even a few take longer than that."""
    if quick:
        return []
    backends = ["SQLite", "PostgreSQL"] if find_postgres() else ["SQLite"]
    seeds = range(10 * seed, 10 * seed + 10)
    return [Case(backends[case_seed % len(backends)], case_seed, KILLS_OF_CASE) for case_seed in seeds]


@dataclass(frozen=True, slots=True)
class Result:
    """Counts of one case. ``seconds`` has the time to recovery of each kill, after what was hit; ``why`` the losses."""

    backend: str
    lost: int
    duplicated: int
    missing_metrics: int
    leaked: int
    leaked_mib: int
    seconds: list[tuple[str, float]]
    why: list[str]
    largest_pack: int

    def row(self) -> list[str]:
        counts = (len(self.seconds), self.lost, self.duplicated, self.missing_metrics, self.leaked_mib)
        times = [seconds for _, seconds in self.seconds]
        return [*map(str, counts), f"{statistics.median(times):.1f}", f"{p95(times):.1f}"]


def measure(case: Case, seconds: float) -> Result:
    """Run one case; ``seconds`` is not used, as a case ends when its studies do."""
    server = postgres() if case.backend == "PostgreSQL" else nullcontext()
    with TemporaryDirectory(prefix="scamp-kills-") as folder, server as database:
        return _result(case.backend, UnderFire(Path(folder), case.seed, database, case.packs).run(case.kills))


def _result(backend: str, losses: Losses) -> Result:
    return Result(
        backend=backend,
        lost=len(losses.lost),
        duplicated=len(losses.duplicated),
        missing_metrics=len(losses.missing_metrics),
        leaked=len(losses.leaked),
        leaked_mib=losses.leaked_mib,
        seconds=losses.seconds,
        why=losses.all(),
        largest_pack=losses.largest_pack,
    )


def figures(results: Sequence[Result]) -> dict[str, float]:
    times = [seconds for result in results for _, seconds in result.seconds]
    return {
        "kills": len(times),
        "kills_lost": sum(result.lost for result in results),
        "kills_duplicated": sum(result.duplicated for result in results),
        "kills_missing_metrics": sum(result.missing_metrics for result in results),
        "kills_leaked_mib": sum(result.leaked_mib for result in results),
        "kills_recover_p95_seconds": round(p95(times), 1),
        "backends": len({result.backend for result in results}),
    }


def notes(findings: Sequence[Finding]) -> list[str]:
    """Lists losses, and the time to recovery by what was hit."""
    lines = [f"  {finding.case}: {why}" for finding in findings for why in finding.values["why"]]
    by_victim: dict[str, list[float]] = {}
    for finding in findings:
        for victim, seconds in finding.values.get("seconds", []):
            by_victim.setdefault(victim, []).append(seconds)
    for victim, times in sorted(by_victim.items()):
        middle, longest = statistics.median(times), max(times)
        lines.append(f"  {victim:20} {len(times):4}   median {middle:5.1f} s   longest {longest:5.1f} s")
    return lines
