"""The example of a user's own model: what the comments in its study promise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from scamp_service.model import Sized
from scamp_service.sizing.sizer import ProcessSizer
from scamp_service.study.parse import parse_study
from scamp_service.study.user_code.bundling import bundle_code
from tests.sizing import MemoryBlobs, Sizing
from workloads.loading import load_workload
from workloads.training.samples import batch_indices
from workloads.training.step import train_step

pytestmark = pytest.mark.full

STUDY = Path(__file__).parents[2] / "examples" / "convnext.yaml"
SPEC = parse_study(STUDY.read_text())


@pytest.fixture(scope="module")
def code() -> bytes:
    return bundle_code(STUDY, SPEC.workload)


@pytest.fixture(scope="module")
def sizing(tmp_path_factory: pytest.TempPathFactory, code: bytes, warm_traces: None) -> Iterator[tuple[Sizing, str]]:
    blobs = MemoryBlobs()
    sizer = ProcessSizer(blobs, tmp_path_factory.mktemp("traces"))
    yield Sizing(sizer), blobs.put(code)
    sizer.close()


@pytest.mark.parametrize(
    ("number", "num_ranks"),
    [(0, {1}), *(pytest.param(*case, marks=pytest.mark.soak) for case in [(1, {2, 4}), (2, {4})])],
    ids=["one", "several", "four"],
)
def test_its_candidates_need_one_several_and_four_ranks(
    number: int, num_ranks: set[int], sizing: tuple[Sizing, str]
) -> None:
    sizer, sha256 = sizing
    params = {**SPEC.fixed, **SPEC.start_with[number]}
    sized = sizer.size(params, workload=SPEC.workload, code=sha256)
    assert isinstance(sized, Sized), sized
    assert sized.plan.world_size in num_ranks and sized.prediction.reserved_mib <= 96


def test_a_small_one_learns_to_read_digits() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workload = load_workload(SPEC.workload, STUDY.parent)({**SPEC.fixed, **SPEC.start_with[0]})
    model = workload.build_model()
    optimizer = workload.optimizer(model)
    for step in range(40):
        batch = workload.train_batch(batch_indices(workload.num_train, 32, step, seed=0))
        train_step(workload, model, optimizer, [batch], 1)
    with torch.no_grad():
        metrics = workload.evaluate(model, workload.eval_batch(torch.arange(workload.num_eval)))
    assert isinstance(metrics, Mapping)
    assert float(metrics["accuracy"].mean()) > 0.4  # chance: 0.1
