"""Memory of a pack against that of its members in processes of their own."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.running.process import last_line
from benchmarks.sharing.drawn import alone, job_of, together
from estimators.model import MIB

TITLE = "Memory"
HEADER = ("together MiB", "alone MiB", "ratio", "case")
ABOUT = """\
The most memory that a process has had, as the kernel counts it, above what it had with all libraries after a training
of another size. *Alone*: the sum over a process for each member. A member that joins has its own frozen weights for as
long as it takes to see that they are equal."""
NUM, STEPS = 8, 4


@dataclass(frozen=True)
class Case:
    """A pack of adapters of a model of this width."""

    width: int

    def __str__(self) -> str:
        return f"{NUM} adapters, width {self.width}"


@dataclass(frozen=True, slots=True)
class Result:
    """Bytes of the pack, and of all members alone."""

    together_bytes: int
    alone_bytes: int

    def row(self) -> list[str]:
        mibs = self.together_bytes / MIB, self.alone_bytes / MIB
        return [*(f"{mib:.1f}" for mib in mibs), f"{self.together_bytes / self.alone_bytes:.2f}"]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    return [Case(256)] if quick else [Case(512), Case(1024)]


def figures(results: Sequence[Result]) -> Mapping[str, Any]:
    return (
        {"pack_memory_ratio": max(result.together_bytes / result.alone_bytes for result in results)} if results else {}
    )


def measure(case: Case, seconds: float) -> Result:
    def grown(numbers: Sequence[int]) -> int:
        line = last_line("-m", __name__, json.dumps([case.width, list(numbers)]), seconds=seconds)
        return int(line)

    return Result(grown(range(NUM)), sum(grown([number]) for number in range(NUM)))


def _grown(width: int, numbers: Sequence[int]) -> int:
    """Bytes by which this process grows while it trains these members."""
    with tempfile.TemporaryDirectory() as folder:

        def job(number: int, of_width: int) -> Any:
            params = {"rank": 4, "batch": 4, "lr": 1e-3 * (1 + number), "steps": STEPS, "width": of_width}
            return job_of(number, params, Path(folder, str(of_width)), report_every=STEPS)

        alone(job(NUM, 64))
        Path("/proc/self/clear_refs").write_text("5")  # forgets the highest use so far
        before = _kib("VmRSS")
        together([job(number, width) for number in numbers], {})
        return (_kib("VmHWM") - before) * 1024


def _kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    print(_grown(*json.loads(sys.argv[1])))
