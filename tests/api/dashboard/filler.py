"""Studies as a controller and ranks would have written them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from estimators.model import MIB, Plan
from placement.model import Device
from scamp_service.lifecycle import AttemptState, Outcome, TrialState
from scamp_service.model import Json, LogLine, Metric, Report, Study, TrialChanges
from scamp_service.store.recorded_cluster import RecordedCluster, RecordedDevice
from scamp_service.store.store import Store
from scamp_service.study.spec import StudySpec
from tests.values import changed, new_attempt, sized

T = TrialState


EVIL = "<img src=x onerror=\"document.title='owned'\">"


TRACEBACK = 'Traceback (most recent call last):\n  File "model.py", line 8, in build_model\nValueError: ' + EVIL


DEVICES = tuple(
    RecordedDevice(Device(f"node-{node}/{i}", f"node-{node}", i, "virtual", 96)) for node in "ab" for i in range(2)
)


def spec(name: str, trials: int = 12) -> Json:
    return StudySpec.model_validate(
        {
            "name": name,
            "workload": "vit_digits",
            "objective": {"metric": "accuracy", "direction": "maximize"},
            "space": {"depth": {"choice": [2, 4, 8]}, "lr": {"low": 1e-4, "high": 1e-2, "log": True}},
            "budget": {"trials": trials, "steps": 120, "report_every": 10},
        }
    ).to_json()


class Filler:
    """Writes what a controller and ranks would have written, through the same methods."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = time.time() - 600

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def study(self, name: str, candidates: Sequence[Json], trials: int = 12, warnings: Sequence[str] = ()) -> Study:
        study = self.store.studies.create(spec(name, trials), warnings=warnings, now=self.tick())
        self.store.trials.create(study.id, list(enumerate(candidates)), now=self.tick())
        return study

    def ids(self, study: Study) -> list[int]:
        return [trial.id for trial in self.store.trials.page(study.id)]

    def move(self, trial: int, state: TrialState, attempt: int, to: TrialState, **changed: Any) -> None:
        assert self.store.trials.move(trial, state, attempt, to, now=self.tick(), **changed)

    def plan(
        self, trial: int, plan: Plan, mib: int, reason: str = "the smallest degree that fits", is_timed: bool = True
    ) -> None:
        """A plan whose steps are predicted to take a millisecond for each MiB, unless nothing was calibrated."""
        seconds = mib / 1000 if is_timed else None
        sized_trial = changed(sized(plan, mib + 3, mib * MIB, reason=reason), step_seconds=seconds)
        self.move(trial, T.WAITING, 0, T.QUEUED, sized=sized_trial, reason=reason, changes=TrialChanges(family="vit"))

    def begin(
        self, trial: int, attempt: int, devices: tuple[str, ...], reason: str = "best fit: 3 MiB stay free"
    ) -> None:
        row = self.store.trials.get(trial)
        assert row.plan is not None
        token = f"token {trial}/{attempt}"
        new = new_attempt(
            trial, attempt, token=token, plan=row.plan, devices=devices, device_kinds=("virtual",),
            placement_reason=reason, now=self.tick(),
        )  # fmt: skip
        planned = changed(new, prediction=row.prediction, step_seconds=row.predicted_step_seconds)
        begun = self.store.attempts.begin(planned)
        assert begun and self.store.reports.start(trial, attempt, token, now=self.tick())

    def report(self, trial: int, attempt: int, step: int, value: float, measured: float = 0.0) -> None:
        values = {"accuracy": value, "loss": 2.3 * (1 - value)}
        metric = Metric(trial, attempt, step, step, values, self.tick())
        line = LogLine(trial, attempt, 0, step, self.now, f"step {step} accuracy {value:.4f}")
        assert self.store.reports.add(
            Report(
                trial,
                attempt,
                f"token {trial}/{attempt}",
                metrics=[metric],
                logs=[line],
                objectives=["accuracy"],
                measured_bytes=int(measured * MIB),
                checkpoint_step=step,
                step_seconds=measured / 800,
                timed_steps=max(0, step - 3) if measured else 0,
            ),
            now=self.now,
        )

    def train(self, trial: int, attempt: int, best: float, until: int, measured: float, start: int = 0) -> None:
        for step in range(start + 10, until + 1, 10):
            self.report(trial, attempt, step, best * (1 - math.exp(-step / 30)), measured)

    def end(self, trial: int, attempt: int, outcome: Outcome, detail: str = "") -> None:
        token, now = f"token {trial}/{attempt}", self.tick()
        assert self.store.reports.end(trial, attempt, token, outcome, detail, now=now)
        assert self.store.attempts.move(trial, attempt, [AttemptState.RUNNING], AttemptState.ENDED, now=now)

    def trained(self, trial: int, plan: Plan, mib: int, best: float, until: int = 120) -> None:
        self.plan(trial, plan, mib)
        self.begin(trial, 1, tuple(f"node-a/{i}" for i in range(plan.world_size)))
        self.train(trial, 1, best, until, mib * 0.97)
        self.end(trial, 1, Outcome.DONE if until == 120 else Outcome.STOPPED)
        pruned = {"reason": f"accuracy at step {until} is not among the best third of 6 trials"}
        done = {"reason": "trained all 120 steps"}
        self.move(trial, T.RUNNING, 1, T.COMPLETED if until == 120 else T.PRUNED, **(done if until == 120 else pruned))


def fill(store: Store) -> None:
    """Study 1: every state a trial can be in. Study 2: one failed trial, and names that would like to be HTML."""
    fill = Filler(store)
    params = [{"depth": 2 + n % 3 * 2, "lr": 10 ** (-4 + n * 0.15)} for n in range(11)]
    ids = fill.ids(fill.study("digits", params))
    single, two = Plan(32), Plan(8, num_micro_batches=2, dp_shard=2, recompute=True)
    fill.trained(ids[0], single, 20, 0.91)
    fill.trained(ids[1], single, 31, 0.62, until=40)
    fill.trained(ids[2], two, 70, 0.97)
    fill.trained(ids[3], single, 24, 0.55, until=40)
    reason = "needs 131.4 MiB on each of 2 ranks on the best plan; the largest device offers 96 MiB"
    fill.move(ids[4], T.WAITING, 0, T.INFEASIBLE, reason=reason)
    fill.plan(ids[5], single, 40)  # out of memory, healed on two ranks
    fill.begin(ids[5], 1, ("node-b/0",))
    fill.train(ids[5], 1, 0.94, 50, 43)
    fill.end(ids[5], 1, Outcome.OUT_OF_MEMORY, "DefaultCPUAllocator: can't allocate memory: 8388608 bytes")
    again = sized(two, 64, 62 * MIB, extra_bytes=9 * MIB)
    fill.move(
        ids[5],
        T.RUNNING,
        1,
        T.QUEUED,
        sized=again,
        reason="planned anew after an out-of-memory",
        changes=TrialChanges(num_oom=1),
    )
    fill.begin(ids[5], 2, ("node-b/0", "node-b/1"))
    fill.train(ids[5], 2, 0.94, 120, 60, start=40)
    fill.end(ids[5], 2, Outcome.DONE)
    fill.move(ids[5], T.RUNNING, 2, T.COMPLETED, reason="trained all 120 steps")
    fill.plan(ids[6], single, 28)  # runs
    fill.begin(ids[6], 1, ("node-a/0",))
    fill.train(ids[6], 1, 0.96, 60, 27.5)
    fill.plan(ids[7], two, 61)  # runs on both nodes
    fill.begin(ids[7], 1, ("node-a/0", "node-b/1"), "no node has 64 MiB free on two devices: spread over two nodes")
    fill.train(ids[7], 1, 0.93, 30, 60)
    fill.plan(ids[8], two, 66, "waits for 69 MiB on 2 devices at once: node-a/1 has 96 free, node-b/0 comes next")
    _fail(fill)
    store.cluster.record(RecordedCluster("ready", "", DEVICES), now=time.time())
    assert store.leases.take("controller", "test", None, now=time.time())


def _fail(fill: Filler) -> None:
    (trial,) = fill.ids(fill.study(EVIL, [{"depth": EVIL, "lr": 0.001}], trials=1))
    fill.plan(trial, Plan(32), 10, EVIL)
    fill.begin(trial, 1, ("node-a/1",), EVIL)
    fill.end(trial, 1, Outcome.ERROR, TRACEBACK)
    fill.move(trial, T.RUNNING, 1, T.FAILED, reason=EVIL)
