"""Lets a hostile workload try to read what is not its own, in a service that runs users' code as another user."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache

from benchmarks.running.results import Finding
from tests.services.hostile import HostileService, why_not
from tests.services.hostile_cases import CASES

TITLE = "A hostile workload"
HEADER = ("read", "hung", "case")
ABOUT = """\
A service under `SCAMP_USER_CODE_USER`, with PostgreSQL, an API token and a private Ray; a study whose code leaves traps
in its trial's folder, and tries by itself what the case says, in a rank and in the process that traces it. *Read* is 1
where something was read, written or run that is not the trial's own, *hung* where a request, a trial or a removal did
not end. Each case has first shown that the service's user, or a reader without protection, gets there. Left out is what
[the limits](../security.md) name: ranks read the files of other studies directly, and may attack Ray."""


@dataclass(frozen=True, slots=True)
class Result:
    """1 or 0 each."""

    read: int
    hung: int

    def row(self) -> list[str]:
        return [str(self.read), str(self.hung)]


def cases(quick: bool, seed: int) -> Sequence[str]:
    return [] if why_not() else list(CASES)[:: 10 if quick else 1]


def measure(case: str, seconds: float) -> Result:
    """Run one case. Raises ``AssertionError`` for one that shows nothing; ``seconds`` is not used."""
    outcome = CASES[case](_service())
    return Result(int(outcome.read), int(outcome.hung))


def figures(results: Sequence[Result]) -> dict[str, float]:
    return {
        "hostile_cases": len(results),
        "hostile_read": sum(result.read for result in results),
        "hostile_hung": sum(result.hung for result in results),
    }


def notes(findings: Sequence[Finding]) -> list[str]:
    """Why there is nothing, and each case that went wrong."""
    if why := why_not():
        return [f"hostile: skipped: {why}"]
    wrong = [finding.case for finding in findings if finding.values["read"] or finding.values["hung"]]
    return [f"hostile: {case}" for case in wrong]


@cache
def _service() -> HostileService:
    """The service of all cases; it ends with this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    return HostileService(stack)
