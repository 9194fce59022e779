"""The example for users of Ray Tune: one real run, whose trials have the ranks that ScaMP predicts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


@pytest.mark.ray
@pytest.mark.soak  # half a minute of processor time; ``test_tune`` asks for the same bundles without a run
def test_each_trial_has_the_processes_that_its_candidate_needs_and_one_that_fits_nowhere_fails(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SCAMP_DATA_DIR": str(tmp_path / "scamp")}
    environment |= {"HOME": str(tmp_path)}  # where Tune writes its results
    command = [sys.executable, "examples/ray_tune.py"]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert ran.returncode == 0, ran.stderr
    small, large, too_large = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"width"')]
    assert (small["num_bundles"], large["num_bundles"]) == (1, 2) and large["plan"].startswith("FSDP over 2 ranks")
    assert 0 < small["loss"] < 5
    assert 0 < large["loss"] < 5
    assert too_large["loss"] is None and "InvalidInput: depth=2 width=288" in too_large["error"]
