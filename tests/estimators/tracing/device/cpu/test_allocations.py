"""Operations allocate what is predicted, and fake outputs have the strides of real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.estimating.measuring import heap

pytestmark = pytest.mark.full

AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
STRIDES_ALONE = ("rows", "one image", "two images")
"""Cases whose memory decided no peak and is not predicted."""
OBJECTS_BYTES = {"LSTM": 100 * 1024, "": 40 * 1024}  # what ideep and oneDNN allocate besides memory for numbers


@pytest.fixture(scope="module", params=[{}, AVX2], ids=["this CPU", "AVX2"])
def measured(request: pytest.FixtureRequest) -> list[Any]:
    """For each operation: name, bytes allocated at the peak, bytes predicted, outputs, fake outputs."""
    with heap.counting() as environment:
        run = subprocess.run(
            [sys.executable, "-m", "tests.estimators.tracing.device.cpu.allocations"],
            env={**os.environ, **environment, **request.param},
            capture_output=True,
            text=True,
            check=True,
        )
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_operations_allocate_what_is_predicted(measured: list[Any]) -> None:
    assert len(measured) > 50
    assert {
        name: (peak, predicted) for name, peak, predicted, *_ in measured if not is_close(name, peak, predicted)
    } == {}


def test_fake_outputs_have_the_strides_of_the_real_ones(measured: list[Any]) -> None:
    assert {name: (real, fake) for name, _, _, real, fake in measured if real != fake} == {}


def is_close(name: str, peak: int, predicted: int) -> bool:
    objects = next(num for kind, num in OBJECTS_BYTES.items() if name.startswith(kind))
    return name.startswith(STRIDES_ALONE) or -1024 <= peak - predicted <= objects
