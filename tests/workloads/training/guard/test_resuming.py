"""A training that resumes continues the curve of one that nobody interrupts, or says that it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from estimators.model import Plan
from tests.workloads.resumed import STEPS, attempt, attempts
from workloads.training.guard.resuming import RECORD


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize("name", ["Global", "Closure", "Shared", "Hooked", "Dropped", "Frozen"])
def test_a_training_whose_state_is_in_its_checkpoints_resumes(tmp_path: Path, name: str) -> None:
    straight = attempts(tmp_path, name, (0, STEPS), every=1, root="straight")
    assert len(straight) == STEPS
    assert attempts(tmp_path, name, (0, 3), (3, 5), (5, STEPS), every=1) == straight


LOST = {
    "Generated": "the loss of step 5 is",
    "Noted": "such as self.notes (Notes)",
    "GeneratedRates": "lr is 0.1 in step 5, and was 0.096",
    "GeneratedHook": "step 5 changes the model otherwise, by ",
}


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize("name", LOST)
def test_state_that_no_checkpoint_holds_is_found_where_a_trial_was_paused(tmp_path: Path, name: str) -> None:
    straight = attempts(tmp_path, name, (0, STEPS), root="straight")
    *before, error = attempts(tmp_path, name, (0, 4), (4, STEPS))
    assert before == straight[:2] and error.startswith("ResumesDifferently: ") and LOST[name] in error
    assert "state_dict" in error


@pytest.mark.full
def test_a_training_that_does_not_check_itself_resumes_with_another_curve(tmp_path: Path) -> None:
    straight = attempts(tmp_path, "Generated", (0, STEPS), root="straight")
    unchecked = attempts(tmp_path, "Generated", (0, 4), (4, STEPS), guard=False)
    assert len(unchecked) == len(straight) and unchecked[-1] != straight[-1]
    assert attempt(tmp_path, "Generated", 6, STEPS)["error"] == "", "nothing is recorded to compare with"


def test_a_checkpoint_counts_once_the_step_after_it_is_recorded(tmp_path: Path) -> None:
    killed = attempt(tmp_path, "Base", 0, STEPS, killed_at=4)
    assert [step for step, _ in killed["reports"]] == [2, 4] and killed["checkpoints"] == [2]
    assert (tmp_path / "checkpoints" / "1" / "step-4").is_dir()
    ended = attempt(tmp_path, "Base", 2, STEPS)
    assert ended["error"] == "" and ended["checkpoints"] == [4, 6, 8]
    record = json.loads((tmp_path / "checkpoints" / "1" / "step-6" / RECORD).read_text())
    assert list(record["came"]) == ["1", "2"]


def test_an_attempt_that_is_stopped_at_a_checkpoint_records_the_step_after_it(tmp_path: Path) -> None:
    stopped = attempt(tmp_path, "Generated", 0, STEPS, stop_after=4)
    assert [step for step, _ in stopped["reports"]] == [2, 4] and stopped["checkpoints"] == [2, 4]
    assert attempt(tmp_path, "Generated", 4, STEPS)["error"].startswith("ResumesDifferently: ")


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize(("name", "is_found"), [("Base", False), ("Generated", True), ("Dropped", False)])
def test_another_plan_compares_the_loss_where_no_plan_may_change_it(tmp_path: Path, name: str, is_found: bool) -> None:
    *_, last = attempts(tmp_path, name, (0, 4), (4, STEPS), plans=(Plan(16), Plan(8, dp_replicate=2)))
    assert ("ResumesDifferently: the loss of step 5" in str(last)) == is_found


@pytest.mark.parametrize("plan", [Plan(8, dp_shard=2), Plan(8, 2, pp=2)], ids=str)
@pytest.mark.full
def test_ranks_compare_together(tmp_path: Path, plan: Plan) -> None:
    assert attempt(tmp_path, "Staged", 0, 4, plan)["error"] == ""
    assert attempt(tmp_path, "Staged", 4, 6, plan)["error"] == ""
    file = tmp_path / "checkpoints" / "1" / "step-4" / RECORD
    record = json.loads(file.read_text())
    record["came"]["1"]["change"][0] += 1.0
    file.write_text(json.dumps(record))
    assert "step 5 changes the model otherwise" in attempt(tmp_path, "Staged", 4, 6, plan)["error"]
