"""Keeps the results of a benchmark in a file, so that a later run can continue, and writes them as a page.

A file holds results of one machine and one set of versions; results of another are refused. Only the parts of the
benchmark know what the numbers mean.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from workloads.calibration.machine import cpu_name


@cache
def head_commit() -> str:
    """The commit of this checkout, with a plus if files have changed since; empty if it is none."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        ran = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return ran.stdout.strip()


@dataclass(frozen=True, slots=True)
class Finding:
    """How one case ended: ``values`` has the fields of its part's result; ``failure`` says why there is none."""

    part: str
    case: str
    row: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    failure: str = ""
    day: str = field(default_factory=lambda: str(date.today()))
    commit: str = field(default_factory=head_commit)
    seconds: float = 0.0  # of wall-clock time


def listed(findings: Iterable[Finding], words: Callable[[Finding], str]) -> list[str]:
    """A line for each finding about which ``words`` says something."""
    return [f"  {finding.case}: {text}" for finding in findings if (text := words(finding))]


class Results:
    """All findings by part and case; if there is a file, each finding is written to it at once."""

    def __init__(self, file: Path | None) -> None:
        """Reads ``file`` if it exists. Raises ``ValueError`` if it is of another machine or of other versions."""
        self._file = file
        self._findings: dict[tuple[str, str], Finding] = {}
        if file is None or not file.exists():
            return
        first, *findings = map(json.loads, file.read_text().splitlines())
        if first != setting():
            raise ValueError(f"{file} has results of {first}, but this is {setting()}: name another file")
        for finding in findings:
            self._put(Finding(**finding))

    def add(self, finding: Finding) -> None:
        """Add a finding, in place of an earlier one of the same case, and append it to the file."""
        self._put(finding)
        if self._file is not None:
            lines = [] if self._file.exists() else [setting()]
            with self._file.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in [*lines, asdict(finding)])

    def _put(self, finding: Finding) -> None:
        self._findings[finding.part, finding.case] = finding

    def of(self, part: str, case: str) -> Finding | None:
        """The finding of a case; None if it has not been run."""
        return self._findings.get((part, case))


def setting_words() -> str:
    """The machine and the versions in words."""
    return ", ".join(value if name == "cpu" else f"{name} {value}" for name, value in setting().items())


def setting() -> dict[str, str]:
    """The machine and the versions on which figures depend."""
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
    """One part of the page. ``num_cases`` counts all cases, whether they have been run or not."""

    title: str
    about: str
    header: Sequence[str]
    num_cases: int
    findings: Sequence[Finding]
    figures: Mapping[str, float | Mapping[str, float]]


def page(title: str, command: str, sections: Iterable[Section]) -> str:
    """A page of Markdown with every finding, including bad ones and failures."""
    lines = [f"# {title}", "", f"Measured by `{command}` on {setting_words()}. The command writes this page."]
    for section in sections:
        lines += ["", *_lines(section)]
    return "\n".join(lines) + "\n"


def _lines(section: Section) -> list[str]:
    ran = [finding for finding in section.findings if not finding.failure]
    days = sorted({finding.day for finding in section.findings})
    when = f", {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
    commits = list(dict.fromkeys(finding.commit for finding in section.findings if finding.commit))
    when += f", at {', '.join(commits)}" if commits else ""
    lines = [f"## {section.title}", "", section.about, ""]
    lines += [f"{len(ran)} of {section.num_cases} cases have been run{when}."]
    if ran:
        lines += ["", _line(section.header), _line(["---"] * len(section.header))]
        lines += [_line([*finding.row, finding.case]) for finding in ran]
        lines += ["", *(f"- `{name}`: {_figure(value)}" for name, value in section.figures.items())]
    failed = [f"- {finding.case}: {finding.failure}" for finding in section.findings if finding.failure]
    return lines + (["", "Without a result:", "", *failed] if failed else [])


def _figure(value: float | Mapping[str, float]) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {number:.6g}" for name, number in value.items())
    return f"{value:.6g}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
