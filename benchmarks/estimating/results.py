"""What a benchmark has found: kept in a file from which a later run goes on, and written as a page.

A file is of one machine and one set of versions; figures of another are not added to it. What the numbers mean is
known to the parts of the benchmark alone.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from workloads.calibration.measure import cpu_name


@dataclass(frozen=True, slots=True)
class Finding:
    """How one case ended: ``values`` are the fields of its part's result, ``failure`` says why there are none."""

    part: str
    case: str
    row: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    failure: str = ""
    day: str = field(default_factory=lambda: str(date.today()))
    seconds: float = 0.0  # by the clock


class Results:
    """All findings by part and case; with a file each is in it as soon as it is known."""

    def __init__(self, file: Path | None) -> None:
        """Raises ``ValueError`` for a file of another machine or other versions."""
        self._file = file
        self._findings: dict[tuple[str, str], Finding] = {}
        if file is None or not file.exists():
            return
        first, *others = map(json.loads, file.read_text().splitlines())
        if first != setting():
            raise ValueError(f"{file} is of {first}, this is {setting()}: name another file")
        for finding in others:
            self._put(Finding(**finding))

    def add(self, finding: Finding) -> None:
        self._put(finding)
        if self._file is not None:
            lines = [] if self._file.exists() else [setting()]
            with self._file.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in [*lines, asdict(finding)])

    def _put(self, finding: Finding) -> None:
        self._findings[finding.part, finding.case] = finding

    def of(self, part: str, case: str) -> Finding | None:
        return self._findings.get((part, case))


def setting() -> dict[str, str]:
    """The machine and the versions that figures depend on."""
    cores = len(os.sched_getaffinity(0))
    packages = {name: _version(name) for name in ("torch", "transformers")}
    return {"cpu": f"{cores} cores of {cpu_name()}", "python": platform.python_version(), **packages}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@dataclass(frozen=True, slots=True)
class Section:
    """One part on the page. ``num_cases`` is how many there are, whether they have been run or not."""

    title: str
    about: str
    header: Sequence[str]
    num_cases: int
    findings: Sequence[Finding]
    figures: dict[str, float]


def page(title: str, command: str, sections: Iterable[Section]) -> str:
    """Markdown, with every finding, bad ones and failures too."""
    versions = ", ".join(value if name == "cpu" else f"{name} {value}" for name, value in setting().items())
    lines = [f"# {title}", "", f"Measured by `{command}` on {versions}; this page is written by it."]
    for section in sections:
        lines += ["", *_lines(section)]
    return "\n".join(lines) + "\n"


def _lines(section: Section) -> list[str]:
    ran = [finding for finding in section.findings if not finding.failure]
    days = sorted({finding.day for finding in section.findings})
    when = f", {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
    lines = [f"## {section.title}", "", section.about, ""]
    lines += [f"{len(ran)} of {section.num_cases} cases have been run{when}."]
    if ran:
        lines += ["", _line(section.header), _line(["---"] * len(section.header))]
        lines += [_line([*finding.row, finding.case]) for finding in ran]
        lines += ["", *(f"- `{name}`: {value:.6g}" for name, value in section.figures.items())]
    failed = [f"- {finding.case}: {finding.failure}" for finding in section.findings if finding.failure]
    return lines + (["", "Without a result:", "", *failed] if failed else [])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
