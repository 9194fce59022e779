"""The example of models that no FSDP plan fits: what the comments in its study promise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from estimators.axes import Spread
from scamp_service.model import Sized
from scamp_service.sizing.estimate import equal_devices
from scamp_service.sizing.sizer import ProcessSizer
from scamp_service.study.parse import parse_study
from scamp_service.study.user_code.bundling import bundle_code
from tests.sizing import MemoryBlobs, Sizing
from workloads.loading import load_workload

STUDY = Path(__file__).parents[2] / "examples" / "shapes.yaml"
SPEC = parse_study(STUDY.read_text())
CANDIDATES: dict[str, dict[str, Any]] = {start["shape"]: {**SPEC.fixed, **start} for start in SPEC.start_with}

AXIS = {"small": "", "wide layers": "tp", "many layers": "pp", "long context": "recompute", "large volumes": "spatial"}
"""The axis without which a shape does not fit."""


@pytest.fixture(scope="module")
def sizing(tmp_path_factory: pytest.TempPathFactory, warm_traces: None) -> Iterator[tuple[Sizing, str]]:
    blobs = MemoryBlobs()
    sizer = ProcessSizer(blobs, tmp_path_factory.mktemp("traces"))
    yield Sizing(sizer), blobs.put(bundle_code(STUDY, SPEC.workload))
    sizer.close()


def test_every_shape_is_tried() -> None:
    assert list(CANDIDATES) == list(AXIS)


SLOW = ("large volumes", "many layers")  # each takes more than a minute of processor time
WHOLE = [pytest.param(shape, 96, {}, marks=[pytest.mark.soak] * (shape in SLOW), id=shape) for shape in AXIS]
SMALLER = pytest.param("large volumes", 56, {"side": 24}, id="smaller volumes on smaller devices")


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize(("shape", "mib", "smaller"), [*WHOLE, SMALLER])
def test_each_shape_gets_the_plan_that_it_needs(
    shape: str, mib: int, smaller: dict[str, Any], sizing: tuple[Sizing, str]
) -> None:
    sizer, sha256 = sizing
    cluster = equal_devices(4, mib)
    sized = sizer.size({**CANDIDATES[shape], **smaller}, workload=SPEC.workload, code=sha256, cluster=cluster)
    assert isinstance(sized, Sized), sized
    assert sized.prediction.reserved_mib <= mib
    used = {name for name, value in sized.plan.values.items() if value != Spread().values[name]}
    assert AXIS[shape] in used if AXIS[shape] else not used
    compared = [option.words for option in sized.options]
    assert any(text.startswith("1 rank") for text in compared) and str(sized.plan) in compared


@pytest.mark.parametrize("shape", AXIS)
def test_each_shape_is_a_model_with_data(shape: str) -> None:
    workload = load_workload(SPEC.workload, STUDY.parent)({**CANDIDATES[shape], "depth": 1, "side": 16, "context": 16})
    batch = workload.train_batch(torch.arange(2))
    loss = workload.loss(workload.build_model(), batch)
    assert loss.ndim == 0 and torch.isfinite(loss)
