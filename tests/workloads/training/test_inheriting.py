"""A candidate that inherits weights begins with the function of its parent, whatever plan either trains under."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators.model import Plan
from tests.workloads.conftest import Ranks

pytestmark = pytest.mark.full

EXAMPLES = Path(__file__).parents[3] / "examples"
EDGES = [{"op": op} for op in ("conv3", "skip", "pool", "conv1", "conv3", "none")]
BLOCKS = [{"heads": 2, "mlp_ratio": 2}, {"heads": 2, "mlp_ratio": 1}]
PARENTS: dict[str, dict[str, Any]] = {
    "cells.py:Digits": {"width": 8, "depth": 1, "edges": EDGES},
    "vit_space.py:Digits": {"patch": 4, "width": 32, "blocks": BLOCKS},
}
CHILDREN: dict[str, dict[str, Any]] = {
    "cells.py:Digits": {"width": 16, "depth": 2, "edges": EDGES},
    "vit_space.py:Digits": {"patch": 4, "width": 64, "blocks": [{"heads": 4, "mlp_ratio": 4}, *BLOCKS[1:], *BLOCKS]},
}
PLANS = {
    "one rank": Plan(32),
    "FSDP": Plan(16, dp_shard=2),
    "tensor parallel": Plan(32, tp=2),
    "pipeline": Plan(8, 4, pp=2),
}


@pytest.mark.sample
@pytest.mark.parametrize(
    ("workload", "before", "after"),
    [
        ("vit_space.py:Digits", "tensor parallel", "pipeline"),
        ("cells.py:Digits", "FSDP", "one rank"),
        ("vit_space.py:Digits", "pipeline", "FSDP"),
    ],
)
def test_the_first_loss_of_a_child_is_that_of_its_parent_under_any_plans(
    workload: str, before: str, after: str, ranks: Ranks, tmp_path: Path
) -> None:
    same = {"workload": workload, "code_dir": str(EXAMPLES), "checkpoint_root": str(tmp_path)}
    trained = ranks.curve(PLANS[before], 4, params={**PARENTS[workload], "lr": 1e-2}, **same)
    donor = {"donor_step": 4, "donor_params": PARENTS[workload]}
    (evaluated,) = ranks.curve(PLANS[after], 0, params=CHILDREN[workload], **donor, **same)
    assert evaluated[0] == 0 and "train_loss" not in evaluated[1]
    assert evaluated[1]["loss"] == pytest.approx(trained[-1][1]["loss"], abs=1e-5)
    assert not (tmp_path / "1" / "step-0").exists()


def test_a_workload_without_the_method_and_a_checkpoint_that_is_gone_are_reported(ranks: Ranks, tmp_path: Path) -> None:
    donor: dict[str, Any] = {
        "donor_step": 4,
        "donor_params": {"depth": 2, "width": 32},
        "checkpoint_root": str(tmp_path),
    }
    (answer,) = ranks.train(Plan(8), **donor)
    assert answer["error"] == "WorkloadError" and "VitDigits has no method inherit" in answer["message"]
    params = {"donor_params": PARENTS["cells.py:Digits"], "params": CHILDREN["cells.py:Digits"]}
    of_cells = {**donor, **params, "workload": "cells.py:Digits", "code_dir": str(EXAMPLES)}
    (answer,) = ranks.train(Plan(8), **of_cells)
    assert answer["error"] == "StorageFault", answer["traceback"]
    assert "the checkpoint of step 4 of another trial" in answer["message"]


def test_a_supernet_trains_the_same_on_several_ranks_and_a_part_of_it_begins_with_what_it_computes(
    ranks: Ranks, tmp_path: Path
) -> None:
    same = {"workload": "vit_space.py:Digits", "code_dir": str(EXAMPLES), "params": {"supernet": True}}
    alone = ranks.curve(Plan(16), 4, **same)
    spread = ranks.curve(Plan(8, dp_shard=2, recompute=True), 4, checkpoint_root=str(tmp_path), **same)
    for (step, alone_values), (other_step, other) in zip(alone, spread, strict=True):
        assert step == other_step
        assert alone_values == pytest.approx(other, abs=1e-4)
    largest = {"patch": 4, "width": 128, "blocks": [{"heads": 8, "mlp_ratio": 4}] * 6}
    donor = {"donor_step": 4, "donor_params": {"supernet": True}, "checkpoint_root": str(tmp_path)}
    (evaluated,) = ranks.curve(Plan(16), 0, **{**same, "params": largest}, **donor)
    assert evaluated[1]["loss"] == pytest.approx(spread[-1][1]["loss"], abs=1e-5), "it evaluates the largest"
