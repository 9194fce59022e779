from __future__ import annotations

import subprocess
import sys

from tests.services.processes import ROOT

LOADED = """
import sys
from workloads.protocol import Chain, Spatial, Split, Workload, hints
print(*sorted(name for name in sys.modules if name.startswith("workloads.")))
"""


def test_what_a_users_file_imports_brings_no_mechanism_along() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, timeout=120)
    names = ["datasets", "hints", "inheritance", "protocol", "seeds", "trial"]
    assert (done.stdout.split(), done.stderr) == ([f"workloads.{name}" for name in names], "")
