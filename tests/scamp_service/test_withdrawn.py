"""Trials of a user's own code give their devices back and continue, by a real service."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scamp_service.lifecycle import STUDY_PAUSED, Outcome, TrialState
from scamp_service.model import Attempt
from tests.services.processes import Served
from tests.waiting import until

pytestmark = pytest.mark.ray

CODE = """
import time
from workloads.models.vit_digits import VitDigits

class Slow(VitDigits):
    def on_step(self, step, *rest):
        super().on_step(step, *rest)
        with open({steps} + self.params["name"], "a") as file:
            file.write(f"{step}\\n")
        time.sleep(self.params["seconds"])
"""
EVERY = 150
NUM_STEPS = 2 * EVERY


class World:
    """A service with one device, and what its trials have trained, which they write to files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "slow.py").write_text(CODE.replace("{steps}", repr(f"{folder}/steps-")))
        self.served = Served(
            folder / "data", SCAMP_VIRTUAL_DEVICES="1", SCAMP_MAX_GANGS_PER_DEVICE="1", SCAMP_KEEP_SECONDS="30"
        )
        self.store = self.served.store()

    def submit(self, name: str, *, seconds: float = 0.05, **fields: Any) -> int:
        spec = {
            "name": name,
            "workload": "slow.py:Slow",
            "objective": {"metric": "accuracy"},
            "space": {"lr": {"choice": [0.001]}},
            "fixed": {"depth": 1, "width": 16, "heads": 2, "batch": 32, "name": name, "seconds": seconds},
            "budget": {"trials": 1, "steps": NUM_STEPS, "report_every": EVERY},
            **fields,
        }
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(spec))
        study: int = self.served.client.submit(file)["id"]
        return study

    def steps(self, name: str) -> list[int]:
        """The steps that were made, in order, also those that were made again."""
        file = self.folder / f"steps-{name}"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def attempts(self, study: int) -> list[Attempt]:
        return self.store.attempts.of_study(study)

    def expect_whole(self, study: int, name: str) -> None:
        """Each step counts once. One is made again after each interruption: that with which a resume is compared."""
        until(lambda: self.store.trials.page(study)[0].state is TrialState.COMPLETED, f"the end of {name}")
        (trial,) = self.store.trials.page(study)
        made = Counter(self.steps(name))
        assert sorted(made) == list(range(NUM_STEPS))
        again = [step for step, times in made.items() if times > 1 and step > 1]  # the first are traced, too
        ends = [attempt.checkpoint_step for attempt in self.attempts(study)[:-1]]
        assert again == ends and all(end % EVERY > 0 for end in ends), "they stop with a checkpoint between two reports"
        rows = self.store.reports.metrics(trial.id)
        assert [row.step for row in rows] == [EVERY, NUM_STEPS]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("withdrawn"))
    try:
        yield world
    finally:
        world.store.close()
        world.served.abandon()


def test_a_paused_trial_continues_at_the_step_at_which_it_was_paused(world: World) -> None:
    study = world.submit("paused")
    until(lambda: len(world.steps("paused")) > 30, "some steps")
    world.served.client.pause(study)
    until(lambda: world.store.trials.page(study)[0].state is TrialState.QUEUED, "the pause")
    world.served.client.resume(study)
    world.expect_whole(study, "paused")
    paused, last = world.attempts(study)
    assert (paused.outcome, paused.detail, last.outcome) == (Outcome.STOPPED, STUDY_PAUSED, Outcome.DONE)


def test_a_trial_that_makes_room_for_a_study_of_higher_priority_continues_at_its_step(world: World) -> None:
    high = world.submit("high", seconds=0.0, priority=5, paused=True)
    until(lambda: [trial.state for trial in world.store.trials.page(high)] == [TrialState.QUEUED], "its plan")
    low = world.submit("low", seconds=0.1)
    until(lambda: len(world.steps("low")) > EVERY + 30, "a first checkpoint, and some steps more")
    world.served.client.resume(high)
    world.expect_whole(low, "low")
    preempted, _ = world.attempts(low)
    assert preempted.outcome is Outcome.STOPPED and "needs its devices" in preempted.detail
    assert [attempt.outcome for attempt in world.attempts(high)] == [Outcome.DONE]


def test_a_cancelled_trial_writes_no_checkpoint(world: World) -> None:
    study = world.submit("cancelled")
    until(lambda: len(world.steps("cancelled")) > 30, "some steps")
    world.served.client.stop(study)
    until(lambda: not world.store.attempts.open(), "the end")
    (attempt,) = world.attempts(study)
    assert attempt.checkpoint_step == -1
