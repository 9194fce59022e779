"""Counts the lines in which ordinary training scripts and their ports in ``examples/ports`` differ."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PORTS = Path(__file__).parents[2] / "examples" / "ports"
TITLE = "Ports of ordinary scripts"
ABOUT = """\
Four scripts were written first, as people write them, each with its own loop: `before.py` in the folders of
`examples/ports`. `after.py` is the same file with the class that ScaMP trains, so it still runs alone; `study.yaml` has
the options of its command line. Lines that are not blank are counted: *added* and *removed* are those of a diff, and a
line that was changed counts in both. *Changed* is their sum in percent of the script's lines."""
HEADER = ("lines", "added", "removed", "changed", "lines of the study", "case")


@dataclass(frozen=True, slots=True)
class Case:
    """A script."""

    folder: Path
    is_adapter: bool

    def __str__(self) -> str:
        return f"{self.folder.name}, by an adapter" if self.is_adapter else self.folder.name


def cases(quick: bool, seed: int) -> Sequence[Case]:
    return [
        Case(folder, "workloads.adapters" in (folder / "after.py").read_text())
        for folder in sorted(PORTS.iterdir())
        if (folder / "before.py").exists()
    ]


@dataclass(frozen=True, slots=True)
class Result:
    """Numbers of lines that are not blank."""

    num_lines: int
    num_added: int
    num_removed: int
    num_study_lines: int
    is_adapter: bool

    @property
    def changed_pct(self) -> float:
        """Added and removed lines, in percent of the script's."""
        return 100 * (self.num_added + self.num_removed) / self.num_lines

    def row(self) -> list[str]:
        counts = map(str, (self.num_lines, self.num_added, self.num_removed))
        return [*counts, f"{self.changed_pct:.0f} %", str(self.num_study_lines)]


def measure(case: Case, seconds: float) -> Result:
    """Compare the script with its port; ``seconds`` is not used."""
    before, after, study = (_lines(case.folder / name) for name in ("before.py", "after.py", "study.yaml"))
    marks = [line[0] for line in difflib.ndiff(before, after)]
    return Result(len(before), marks.count("+"), marks.count("-"), len(study), case.is_adapter)


def figures(results: Sequence[Result]) -> dict[str, float]:
    """The largest share of lines that changed, and the most lines that a port by an adapter took."""
    return {
        "ports": len(results),
        "port_lines_changed_pct": max(result.changed_pct for result in results),
        "port_adapter_lines": max((result.num_added for result in results if result.is_adapter), default=0),
    }


def _lines(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if line.strip()]
