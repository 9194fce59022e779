"""Measures the processor time after which ``scamp estimate`` prints its first answer, with nothing kept from before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from scamp_service.settings import ROOT

TITLE = "First answers"
HEADER = ("CPU s", "wall s", "answer", "model")
ABOUT = """\
Seconds until `scamp estimate FILE.py:make` prints its first answer, the peak of one rank, for ordinary models in files
as users write them. Nothing was kept from before. Processor seconds are those of the command and all its processes; the
time by the clock depends on what else runs. `interrupted_pct` is the share in which Ctrl-C then ended the command with
one line and exit code 130."""
INTERRUPTED = "scamp: interrupted\n"
_ANSWER = "; other plans follow"
_FOLDER = Path(__file__).parents[1] / "ordinary"


@dataclass(frozen=True)
class Case:
    """One file of the folder ``ordinary``."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Result:
    """Processor and wall-clock seconds until the ``answer``, and whether Ctrl-C then ended the command as it should."""

    cpu_seconds: float
    wall_seconds: float
    answer: str
    is_interrupted: bool

    def row(self) -> list[str]:
        """The cells of the table under ``HEADER``, without the model."""
        return [f"{self.cpu_seconds:.1f}", f"{self.wall_seconds:.1f}", self.answer]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    names = sorted(file.stem for file in _FOLDER.glob("*.py") if file.stem != "__init__")
    return [Case(name) for name in (names[:1] if quick else names)]


def measure(case: Case, seconds: float) -> Result:
    """The time of one first answer, which is waited for up to ``seconds``.

    Raises ``RuntimeError`` with the last line of stderr where the command ends without one.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", "scamp_service", "estimate", f"{case.name}.py:make"]
        process = subprocess.Popen(
            [*command, "--data-dir", folder],
            cwd=_FOLDER,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        began, said = time.monotonic(), ""
        with process:
            assert process.stderr is not None
            for line in process.stderr:
                said = line.strip() or said
                if said.endswith(_ANSWER) or time.monotonic() - began > seconds:
                    break
            else:
                raise RuntimeError(f"exit code {process.wait()} without an answer: {said}")
            wall_seconds, cpu_seconds = time.monotonic() - began, _cpu_seconds(process.pid)
            process.send_signal(signal.SIGINT)
            last = process.stderr.read()
        if not said.endswith(_ANSWER):
            raise TimeoutError(f"no answer after {seconds:g} s")
        is_interrupted = process.returncode == 130 and last.endswith(INTERRUPTED) and "Traceback" not in last
        return Result(cpu_seconds, wall_seconds, said.removesuffix(_ANSWER), is_interrupted)


def figures(results: Sequence[Result]) -> dict[str, float]:
    seconds = [result.cpu_seconds for result in results]
    return {
        "first_answers": len(results),
        "first_answer_seconds": round(median(seconds), 2),
        "first_answer_max_seconds": round(max(seconds), 2),
        "interrupted_pct": 100.0 * sum(result.is_interrupted for result in results) / len(results),
    }


def _cpu_seconds(pid: int) -> float:
    """Processor seconds of a process and of all its descendants, those that have ended included."""
    times: dict[int, tuple[int, float]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        times[int(status.parent.name)] = int(words[1]), sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")

    def total(parent_id: int) -> float:
        return times[parent_id][1] + sum(total(child) for child, (parent, _) in times.items() if parent == parent_id)

    return total(pid)
