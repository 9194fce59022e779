"""Trials of a user's own code give their devices back and continue, by a real service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scamp_service.cluster.local.local_ray import loopback
from scamp_service.lifecycle import STUDY_PAUSED, Outcome, TrialState
from scamp_service.model import Attempt
from tests.services.processes import Served
from tests.waiting import until

pytestmark = pytest.mark.ray

CODE = """
import time
from pathlib import Path
from workloads.models.vit_digits import VitDigits

class Slow(VitDigits):
    def on_step(self, step, *rest):
        super().on_step(step, *rest)
        with open({steps} + self.params["name"], "a") as file:
            file.write(f"{step}\\n")
        held = step > {late} and Path({holds} + self.params["name"]).exists()
        time.sleep(2.0 if held else self.params["seconds"])
"""
EVERY = 150
NUM_STEPS = 2 * EVERY
LATE = EVERY + 60
"""The step after which a trial that is held trains slowly, so that a busy machine can interrupt it, too."""
DRAIN = """
import sys, time
from ray._raylet import GcsClient
from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_PREEMPTION

client = GcsClient(address=sys.argv[1])
(node,) = (node.hex() for node, about in client.get_all_node_info().items() if not about.is_head_node)
until = time.time() + 3600
accepted, why = client.drain_node(node, DRAIN_NODE_REASON_PREEMPTION, "a notice", int(until * 1000))
assert accepted, why
print(node)
"""


class World:
    """A service with one device on each node, and what its trials have trained, which they write to files."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        code = CODE.replace("{steps}", repr(f"{folder}/steps-")).replace("{holds}", repr(f"{folder}/hold-"))
        (folder / "slow.py").write_text(code.replace("{late}", str(LATE)))
        options = {"SCAMP_VIRTUAL_DEVICES": "1", "SCAMP_MAX_GANGS_PER_DEVICE": "1", "SCAMP_KEEP_SECONDS": "30"}
        self.served = Served(folder / "data", **options, **variables)
        self.store = self.served.store()

    def submit(self, name: str, *, seconds: float = 0.05, held: bool = True, **fields: Any) -> int:
        if held:
            (self.folder / f"hold-{name}").touch()
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

    def drain(self) -> str:
        """Let Ray drain the node that is not its head, as a notice of its cloud would; the node's id."""
        data = self.served.data_dir
        ray = {**os.environ, **loopback(data / "ray-token"), "RAY_AUTH_MODE": "token"}
        command = [sys.executable, "-c", DRAIN, (data / "ray-address").read_text()]
        return subprocess.run(command, env=ray, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    def devices(self) -> list[str]:
        """The devices that the cluster page shows."""
        return [device["id"] for device in self.served.client.cluster()["devices"]]

    def attempts(self, study: int) -> list[Attempt]:
        return self.store.attempts.of_study(study)

    def expect_whole(self, study: int, name: str) -> None:
        """Each step counts once. One is made again after each interruption: that with which a resume is compared."""
        (self.folder / f"hold-{name}").unlink()
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
    high = world.submit("high", seconds=0.0, held=False, priority=5, paused=True)
    until(lambda: [trial.state for trial in world.store.trials.page(high)] == [TrialState.QUEUED], "its plan")
    low = world.submit("low")
    until(lambda: len(world.steps("low")) > EVERY + 30, "a first checkpoint, and some steps more")
    world.served.client.resume(high)
    until(lambda: world.attempts(low)[-1].ended_at, "the end of its attempt")
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


def test_a_trial_whose_node_is_drained_continues_on_another_at_its_step(tmp_path: Path) -> None:
    world = World(tmp_path, SCAMP_VIRTUAL_NODES="2")
    try:
        until(lambda: len(world.devices()) == 2, "a device on each node")
        studies = {world.submit(name): name for name in ("first", "second")}
        until(lambda: all(len(world.steps(name)) > 30 for name in studies.values()), "some steps of a trial on each")
        node = world.drain()
        stays, study = sorted(studies, key=lambda study: node[:8] in world.attempts(study)[-1].devices[0])
        until(lambda: world.attempts(study)[-1].ended_at, "the end of the attempt on the node that leaves")
        world.served.client.stop(stays)
        world.expect_whole(study, studies[study])
        drained, last = world.attempts(study)[-2:]
        assert drained.outcome is Outcome.STOPPED and drained.detail.startswith("its node is leaving: Ray drains node ")
        assert last.outcome is Outcome.DONE and last.devices != drained.devices
        (trial,) = world.store.trials.page(study)
        assert trial.num_lost == 0
        until(lambda: world.devices() == list(last.devices), "the drained node gives its devices back")
        until(lambda: not world.served.client.cluster()["detail"], "Ray on it ends, as nothing runs there")
    finally:
        world.store.close()
        world.served.abandon()
