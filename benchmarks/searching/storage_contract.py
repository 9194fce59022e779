"""Runs the contract suite that Optuna ships for storages on the study database, on SQLite and PostgreSQL."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from scamp_service.settings import ROOT

SUITE = "tests/scamp_service/exchange/test_optuna_storage.py::TestContract"
_COUNTS = re.compile(r"(\d+) (passed|failed|error|skipped)")


def storage_contract(*, with_postgresql: bool) -> Mapping[str, Any]:
    """The tests that passed and failed; those that are skipped need PostgreSQL's server binaries."""
    chosen = [] if with_postgresql else ["-m", "not postgres"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=--import-mode=importlib",
        *chosen,
        SUITE,
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    last = ran.stdout.strip().splitlines()[-1]
    counts = {kind: int(number) for number, kind in _COUNTS.findall(last)}
    databases = "SQLite and PostgreSQL" if with_postgresql else "SQLite"
    print(f"Optuna's storage contract on {databases}: {last.strip('= ')}")
    return {
        "contract_passed": counts.get("passed", 0),
        "contract_failed": counts.get("failed", 0) + counts.get("error", 0),
        "contract_skipped": counts.get("skipped", 0),
    }
