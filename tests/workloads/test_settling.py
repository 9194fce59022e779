"""Memory that is kept from a first use on: that of libraries is not the candidate's, that of tensors is."""

from __future__ import annotations

from typing import Any

import pytest

from estimators.model import MIB, Plan
from tests.services.warm import Warm
from tests.workloads.conftest import Ranks
from workloads.training.memory.budget import ALLOWANCE_BYTES

pytestmark = pytest.mark.full

MODEL = {"depth": 3, "width": 96}
ALONE, PAIR = Plan(64), Plan(32, dp_shard=2)
ALLOWANCE_MIB = ALLOWANCE_BYTES // MIB
KEEPS = """
import numpy as np
import torch

from workloads.models.vit_digits import VitDigits


class Keeps(VitDigits):
    def __init__(self, params):
        super().__init__(params)
        self.todo = {(place, step): (num_mib, make) for place, step, num_mib, make in params["keep"]}
        self.kept = []

    def on_step(self, step, steps, optimizer):
        super().on_step(step, steps, optimizer)
        self.step = step

    def loss(self, model, batch):
        self.keep("loss")
        return super().loss(model, batch)

    def evaluate(self, model, batch):
        self.keep("evaluate")
        return super().evaluate(model, batch)

    def keep(self, place):
        num_mib, make = self.todo.pop((place, self.step), (0, ""))
        if make == "tensor":
            self.kept.append(torch.ones(num_mib * 2**20, dtype=torch.uint8))
        elif make == "pieces":  # of malloc's heap; all but the last are free again after the step
            pieces = [torch.ones(2**16, dtype=torch.uint8) for _ in range(num_mib * 2**4)]
            self.kept.append(pieces[-1])
        elif make:
            for _ in range(num_mib):
                self.kept.append(np.ones(2**20, np.uint8))
"""
Keep = tuple[str, int, int, str]
"""Where, in which step, how many MiB, in what: all of it stays."""


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Any:
    folder = tmp_path_factory.mktemp("keeps")
    (folder / "keeps.py").write_text(KEEPS)

    def trained(plan: Plan, **options: Any) -> list[dict[str, Any]]:
        # in new ranks: gaps that another training has left in the heap may hold a candidate of this size
        ranks = Ranks(tmp_path_factory.mktemp("ranks"), warm)
        try:
            return ranks.train(plan, **options)
        finally:
            ranks.close()

    peaks = {plan: trained(plan, params=MODEL)[0]["peak"] for plan in (ALONE, PAIR)}

    def run(spare_mib: int, *keep: Keep, plan: Plan = ALONE) -> dict[str, Any]:
        """How it ends with this many MiB more than the peak of its tensors."""
        options = {"workload": "keeps.py:Keeps", "code_dir": str(folder), "params": {**MODEL, "keep": keep}}
        answers = trained(plan, budget_bytes=peaks[plan] + spare_mib * MIB, **options)
        dead = [answer for answer in answers if answer["error"] == "OutOfMemory"]
        ended: dict[str, Any] = (dead or answers)[0]
        assert dead or ended["error"] == "", ended["traceback"]
        return ended

    return run


def test_what_a_first_step_and_a_first_evaluation_keep_is_not_the_candidates(train: Any) -> None:
    assert train(3, ("loss", 0, 40, "arrays"), ("evaluate", 1, 30, "arrays"))["error"] == ""


def test_what_is_kept_beyond_the_allowance_is(train: Any) -> None:
    ended = train(3, ("loss", 0, ALLOWANCE_MIB - 10, "arrays"), ("evaluate", 1, 20, "arrays"))
    assert ended["error"] == "OutOfMemory"
    assert len(ended["reports"]) == 1, "the step after the measured one is the first that needs more than is left"


def test_what_a_later_step_keeps_is(train: Any) -> None:
    assert train(3, ("loss", 1, 20, "arrays"))["error"] == "OutOfMemory"


@pytest.mark.sample
@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_tensors_get_nothing_of_it_in_any_step(train: Any, step: int) -> None:
    ended = train(3, ("loss", step, 20, "tensor"))
    assert ended["error"] == "OutOfMemory"
    assert len(ended["reports"]) == step // 2, "it must end in that step"


def test_a_tensor_beside_what_libraries_keep_is_told_apart(train: Any) -> None:
    assert train(3, ("loss", 0, 40, "arrays"), ("loss", 1, 20, "tensor"))["error"] == "OutOfMemory"


def test_tensors_of_the_measured_step_stay_counted(train: Any) -> None:
    assert train(14, ("loss", 2, 10, "tensor"))["error"] == ""
    assert train(14, ("loss", 2, 10, "tensor"), ("loss", 3, 10, "tensor"))["error"] == "OutOfMemory"


def test_gaps_that_small_tensors_leave_in_the_heap_are_the_candidates(train: Any) -> None:
    assert train(3, ("loss", 0, 60, "pieces"))["error"] == "OutOfMemory"
    assert train(44, ("loss", 0, 40, "pieces"))["error"] == ""
    assert train(44, ("loss", 0, 40, "pieces"), ("loss", 1, 60, "tensor"))["error"] == "OutOfMemory"


def test_ranks_of_a_gang_settle_each_for_itself(train: Any) -> None:
    assert train(8, ("loss", 0, 40, "arrays"), plan=PAIR)["error"] == ""
    assert train(8, ("loss", 0, 40, "arrays"), ("loss", 1, 20, "tensor"), plan=PAIR)["error"] == "OutOfMemory"
