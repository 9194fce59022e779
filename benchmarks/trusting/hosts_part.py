"""Trains gangs over two hosts while one of them loses power, freezes, is cut off or is drained."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.scamp_service.test_hosts import SCENARIOS
from tests.services.hosts import why_not

TITLE = "Several hosts"
HEADER = ("hosts", "seconds", "case")
ABOUT = """\
Each host is a set of Linux namespaces with its own address, disk, process ids, host name and boot clock. Service and
database are on one that does not train, and a gang of four ranks stretches over two others; the commands are those of
docs/hosts.md. In each case the study completes, with each evaluation once, and a host that went wrong costs it one
attempt (two if it comes back and leaves again)."""
_CASES: Mapping[str, Callable[[], int]] = {scenario.__name__.replace("_", " "): scenario for scenario in SCENARIOS}


@dataclass(frozen=True, slots=True)
class Result:
    """Hosts over which the gang stretched, and seconds until the study had ended and everything was shut down."""

    hosts: int
    seconds: float

    def row(self) -> list[str]:
        return [str(self.hosts), f"{self.seconds:.0f}"]


def cases(quick: bool, seed: int) -> Sequence[str]:
    return [] if quick or why_not() else list(_CASES)


def measure(case: str, seconds: float) -> Result:
    """Run one case. Raises ``AssertionError`` if anything is lost; ``seconds`` is not used."""
    began = time.monotonic()
    return Result(_CASES[case](), time.monotonic() - began)


def figures(results: Sequence[Result]) -> dict[str, float]:
    return {"hosts": max(result.hosts for result in results)}
