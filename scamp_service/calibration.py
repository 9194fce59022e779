"""The measured speed of this machine's CPU: kept in the data directory, measured by a child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from estimators.device_kind import DeviceKind
from scamp_service.errors import InvalidInput
from scamp_service.tracing import ROOT, write_atomically


def calibrate(data_dir: Path) -> DeviceKind:
    """Measure, and keep the result. Raises ``InvalidInput`` with the child's last words where that cannot be done."""
    command = [sys.executable, "-m", "workloads.calibrate"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise InvalidInput(f"this machine cannot be calibrated: {words[-1]}")
    kind = DeviceKind.from_json(json.loads(done.stdout.splitlines()[-1]))
    write_atomically(_file(data_dir), json.dumps(kind.to_json()).encode())
    return kind


def calibrated(data_dir: Path) -> DeviceKind | None:
    """What was measured last; None where nothing was, or a file of another version is left."""
    try:
        return DeviceKind.from_json(json.loads(_file(data_dir).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _file(data_dir: Path) -> Path:
    return data_dir / "device_kinds" / "cpu.json"
