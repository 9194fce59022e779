"""Rehearsals of clusters that are not here: tests against stand-ins and real daemons, counted by what they show."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from scamp_service.settings import ROOT
from tests.workloads.test_cuda_lines import table

TITLE = "Rehearsals"
HEADER = ("right", "wrong", "skipped", "seconds", "case")
ABOUT = """\
Tests of what is not on this machine: GPUs by a stand-in for NVML's library and by a fake of torch's CUDA calls, a
cluster by Slurm's own daemons on up to three nodes, causes of failed starts that are brought about one by one, backups
that are restored, and objects of Kubernetes, held against its schemas and KubeRay's: `kuberay_objects` are valid, all
of them if none is wrong. *Right* are the cases that passed. The share of the lines that only a GPU runs is that of
[this list](../gpus.md#code-that-only-a-gpu-runs)."""


@dataclass(frozen=True)
class Case:
    """The cases of some tests, counted under ``key``."""

    key: str
    tests: str

    def __str__(self) -> str:
        return self.key


CASES = (
    Case("nvml_cases", "tests/scamp_service/cluster/devices/test_gpu_nodes.py"),
    Case("gpu_studies", "tests/scamp_service/cluster/devices/test_rehearsal.py"),
    Case("cuda_cases", "tests/workloads/test_cuda_lines.py"),
    Case("doctor_causes", "tests/scamp_service/upkeep/test_doctor.py::test_each_cause_is_found"),
    Case("backup_cases", "tests/scamp_service/upkeep/test_backup.py"),
    Case("slurm_cases", "tests/deploy/test_slurm.py"),
    Case("unit_cases", "tests/deploy/test_units.py"),
    Case("kuberay_objects", "tests/deploy/test_kubernetes.py::test_an_object_is_valid"),
    Case("kuberay_cases", "tests/deploy/test_kubernetes.py"),
)


@dataclass(frozen=True, slots=True)
class Result:
    """How many cases were right, wrong and skipped."""

    key: str
    right: int
    wrong: int
    skipped: int
    seconds: float

    def row(self) -> list[str]:
        return [f"{self.right}", f"{self.wrong}", f"{self.skipped}", f"{self.seconds:.0f}"]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    return CASES[:1] if quick else CASES


def figures(results: Sequence[Result]) -> Mapping[str, float]:
    keys: dict[str, float] = {result.key: result.right for result in results}
    keys["cases_wrong"] = sum(result.wrong for result in results)
    keys["gpu_lines_executed_pct"] = 100 * table()[1]
    return keys


def measure(case: Case, seconds: float) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", f"--junitxml={report}", case.tests]
        subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, timeout=seconds, check=False)
        suite = ElementTree.parse(report).getroot()[0]
    total, failures, errors, skipped = (int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped"))
    wrong = failures + errors
    return Result(case.key, total - wrong - skipped, wrong, skipped, float(suite.attrib["time"]))
