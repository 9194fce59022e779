"""A user's file imports no machinery, and the default optimizer checks its numbers."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import cast

import pytest
from torch import nn

from scamp import Workload
from tests.services.processes import ROOT
from tests.waiting import PATIENCE_SECONDS

LOADED = """
import sys
from scamp import Chain, Spatial, Split, Workload, hints
ours = ("scamp", "api", "scamp_service", "workloads", "placement", "estimators")
print(*sorted(name for name in sys.modules if name.partition(".")[0] in ours))
"""


@pytest.mark.full
def test_what_a_users_file_imports_brings_no_mechanism_along() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    names = ["datasets", "experts", "hints", "inheritance", "protocol", "seeds", "trial"]
    expected = ["scamp", "scamp.installed", "scamp.workload", *(f"scamp.workload.{name}" for name in names)]
    assert (done.stdout.split(), done.stderr) == (expected, "")


def test_the_default_optimizer_names_the_parameter_that_is_no_number() -> None:
    workload = cast(Workload, SimpleNamespace(params={"weight_decay": None}))
    with pytest.raises(ValueError, match="weight_decay is None, but the default optimizer needs a number"):
        Workload.optimizer(workload, nn.Linear(2, 2))
