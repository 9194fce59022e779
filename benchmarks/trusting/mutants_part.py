"""Puts faults into ScaMP's own code, one at a time, and looks whether its tests notice.

Each mutant replaces a few words in one file of a copy of the packages, where the tests of the promise are then run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.running.results import Finding, listed

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("scamp", "api", "scamp_service", "workloads", "placement", "estimators")
COPIED = (*PACKAGES, "benchmarks", "tests", "pyproject.toml")
CONTROL, CLUSTER, STORE = "scamp_service/control", "scamp_service/cluster", "scamp_service/store"
SIMULATED = ("tests/scamp_service/control/test_controller.py",)
TITLE = "Faults in our own code"
HEADER = ("caught", "seconds", "case")
ABOUT = """\
Each mutant is a fault that a programmer could make in what a promise rests on. It is caught if the tests of that
promise fail: the simulation of faults, or tests of the part itself. Tests that need Ray do not take part."""


@dataclass(frozen=True, slots=True)
class Case:
    """A mutant: ``before`` in ``file`` becomes ``after``, and one of ``tests`` must fail."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...] = SIMULATED

    def __str__(self) -> str:
        return self.name


MUTANTS = (
    Case(
        "term: writes of a deposed leader are accepted",
        f"{STORE}/parts/part.py",
        "if self._fence and connection",
        "if False and connection",
        ("tests/scamp_service/store", *SIMULATED),
    ),
    Case(
        "term: ranks obey a controller that was replaced",
        f"{CLUSTER}/worker/rank.py",
        "if term < self._term:",
        "if term < 0:",
        ("tests/scamp_service/cluster/worker/test_rank.py",),
    ),
    Case(
        "lease: it is taken although it was renewed since",
        f"{STORE}/statements.py",
        '_of_seen = sa.and_(_of_lease, _L.c.renewals == bindparam("_renewals"))',
        '_of_seen = sa.and_(_of_lease, bindparam("_renewals") >= 0)',
        ("tests/scamp_service/store",),
    ),
    Case(
        "lease: a standby does not wait",
        f"{CONTROL}/leadership.py",
        "silent >= self._seconds or",
        "silent >= 0 or",
        ("tests/scamp_service/control/test_leadership.py",),
    ),
    Case(
        "lease: a leader is certain for ever",
        f"{CONTROL}/leadership.py",
        "self._lease is not None and self._clock() - self._renewed < self._seconds",
        "self._lease is not None",
        ("tests/scamp_service/control/test_leadership.py",),
    ),
    Case(
        "lease: a frozen rank thinks that the leader is gone",
        f"{CLUSTER}/sink.py",
        "if lease != self._seen or paused:",
        "if lease != self._seen:",
        ("tests/scamp_service/cluster/test_sink.py",),
    ),
    Case(
        "fence: reports of another attempt's token are stored",
        f"{STORE}/statements.py",
        '_A.c.token == bindparam("_token")',
        'bindparam("_token") != ""',
        ("tests/scamp_service/store", *SIMULATED),
    ),
    Case(
        "fence: gangs that the database does not know go on",
        f"{CONTROL}/decide/fence.py",
        "if key not in keys:",
        "if False:",
        ("tests/scamp_service/control/decide", *SIMULATED),
    ),
    Case(
        "ledger: memory that is reserved counts as free",
        "placement/packing/ledger.py",
        "return has_room and gang.mib_per_rank <= account.free_mib",
        "return has_room",
        ("tests/placement/packing", *SIMULATED),
    ),
    Case(
        "ledger: devices that are kept for a gang are given to others",
        "placement/packing/ledger.py",
        "self._kept.update(dict.fromkeys(kept, mib))",
        "pass",
        ("tests/placement/packing",),
    ),
    Case(
        "projects: a quota is off by one",
        "placement/packing/projects.py",
        "devices[holder] + claim.num_ranks > quota.devices",
        "devices[holder] + claim.num_ranks > quota.devices + 1",
        ("tests/placement/packing/test_projects.py",),
    ),
    Case(
        "projects: trials of low priority wait forever",
        "placement/packing/projects.py",
        "return highest if claim.passed_over >= PASSES_BEFORE_RESERVATION else claim.priority",
        "return claim.priority",
        ("tests/placement/packing/test_projects.py",),
    ),
    Case(
        "projects: a trial is stopped before its first checkpoint",
        f"{CONTROL}/decide/preempt.py",
        " and trial.is_kept(attempt)",
        "",
        ("tests/scamp_service/control/decide/test_preempt.py",),
    ),
    Case(
        "ledger: attempts that are being stopped hold nothing",
        f"{CONTROL}/decide/rules/gangs.py",
        "    for attempt, mib in reserved_mibs(list(attempts)):\n",
        '    for attempt, mib in reserved_mibs([one for one in attempts if one.state != "STOPPING"]):\n',
    ),
    Case(
        "ledger: ranks that do not answer hold nothing",
        f"{CONTROL}/decide/snapshot.py",
        "return attempt.key in self.gangs or not self.silent.isdisjoint(attempt.devices)",
        "return attempt.key in self.gangs",
        ("tests/scamp_service/control/decide", *SIMULATED),
    ),
    Case(
        "ledger: gangs are placed on closed devices",
        f"{CONTROL}/decide/rules/gangs.py",
        "if device.id not in s.closed",
        "if True",
        ("tests/scamp_service/control/decide",),
    ),
    Case(
        "retry: a trial is run again although its ranks were done",
        f"{CONTROL}/decide/follow.py",
        "        case Outcome.DONE:\n",
        "        case Outcome.DONE if attempt.attempt > 1:\n",
    ),
    Case(
        "retry: losses are not counted",
        f"{CONTROL}/decide/follow.py",
        "num_lost = weight + (0 if",
        "num_lost = (0 if",
        ("tests/scamp_service/control/decide",),
    ),
    Case(
        "retry: two attempts of a trial at once",
        f"{CONTROL}/decide/place.py",
        "trial.id not in winding_down",
        "True",
        ("tests/scamp_service/control/decide", *SIMULATED),
    ),
    Case(
        "retry: a launch that was lost is not repeated",
        f"{CONTROL}/decide/follow.py",
        "            yield Launch(order_for(s, trial, attempt))\n",
        "            return\n",
        ("tests/scamp_service/control/decide", *SIMULATED),
    ),
    Case(
        "retry: a candidate that the host could not trace fails",
        f"{CONTROL}/decide/size.py",
        "case Unsized(may_pass=True) as",
        'case Unsized(reason="") as',
        ("tests/scamp_service/control/decide", *SIMULATED),
    ),
    Case(
        "retention: a checkpoint that the database has recorded is deleted",
        "workloads/training/checkpoints/retention.py",
        "if name not in needed]",
        "]",
        ("tests/workloads/training/checkpoints/test_retention.py",),
    ),
    Case(
        "retention: a trial does not continue from its checkpoint",
        f"{CONTROL}/decide/rules/orders.py",
        "resume = s.checkpoints.get(trial.id)",
        "resume = None",
    ),
    Case(
        "watchdog: to wait for the database counts as no progress",
        f"{CLUSTER}/worker/rank.py",
        "                self._excuse()\n",
        "",
        ("tests/scamp_service/cluster/worker/test_rank.py",),
    ),
    Case(
        "watchdog: a gang that makes no progress is kept",
        f"{CONTROL}/decide/rules/watch.py",
        "if gang.quiet_seconds <= patience:",
        "if patience:",
        ("tests/scamp_service/control/decide",),
    ),
)


def cases(quick: bool, seed: int) -> Sequence[Case]:
    return MUTANTS[1:4:2] if quick else MUTANTS


@dataclass(frozen=True, slots=True)
class Result:
    """Whether a test failed, and how long that took. ``why`` is the first failure."""

    caught: bool
    seconds: float
    why: str = ""

    def row(self) -> list[str]:
        return ["yes" if self.caught else "NO", f"{self.seconds:.0f}"]


def measure(case: Case, seconds: float) -> Result:
    """Run the tests of a mutant until one fails. Raises ``ValueError`` if its words are not in the file exactly once,
    and ``RuntimeError`` if the tests cannot be run."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "static"))
            else:
                shutil.copy(source, copy / name)
        file = copy / case.file
        text = file.read_text()
        if text.count(case.before) != 1:
            raise ValueError(f"{case.file} has {text.count(case.before)} times what the mutant replaces")
        file.write_text(text.replace(case.before, case.after))
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-n", "0", *case.tests]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return Result(done.returncode == 1, time.monotonic() - began, next(iter(failed), ""))


def figures(results: Sequence[Result]) -> dict[str, float]:
    return {"mutants": len(results), "mutants_caught": sum(result.caught for result in results)}


def notes(findings: Sequence[Finding]) -> list[str]:
    """Every mutant that no test has noticed."""
    return listed(findings, lambda finding: "" if finding.values["caught"] else "not caught")
