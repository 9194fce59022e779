"""Measures what one study of many trials costs: a tick, a proposal, a study request, and a tick with many live trials.

Each case makes a database of its own with trials of 100 points, and runs the real controller on a simulated cluster.
The API answers in this process. Times are medians in milliseconds of the wall clock.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import sqlalchemy as sa
from fastapi.testclient import TestClient

from api.app import create_app
from benchmarks.trusting.recount import recount
from estimators.model import MIB, Plan, Prediction
from placement.model import Cluster, Device, Gang, Queued, Shape
from placement.packing.ledger import Ledger
from placement.packing.packer import pack
from scamp_service.control.controller import Controller, TimeAndTokens
from scamp_service.control.decide import effects
from scamp_service.lifecycle import AttemptState, TrialState
from scamp_service.model import Choice, Sized
from scamp_service.settings import Settings
from scamp_service.store import schema
from scamp_service.store.store import Store
from scamp_service.study.spec import StudySpec
from tests.simulation.faults import Clock, no_faults
from tests.simulation.services import SimulatedExecutor, SimulatedProposer, SimulatedSizer
from tests.simulation.world import World

TITLE = "One study of many trials"
ABOUT = """\
Medians in milliseconds of the wall clock: a cycle of the controller with one trial to judge, a proposal, a request for
the study, and a cycle with as many live trials after the memory of one device has changed. Each case makes a database
with trials of 100 points; the cluster is simulated. Growth is from the smaller case to the larger one."""
HEADER = ("tick ms", "propose ms", "study ms", "live tick ms", "case")
POINTS = 100
CHOICE = Choice(Plan(4), Prediction(86 * MIB, margin_bytes=4 * MIB))
NUM_TICKS = 60
NUM_LIVE_TICKS = 6
CAPACITY_MIB = 96


@dataclass(frozen=True, slots=True)
class Case:
    """One study of ``num_trials`` trials that have ended, and another of as many that are live."""

    num_trials: int

    def __str__(self) -> str:
        return f"{self.num_trials:,} trials"


@dataclass(frozen=True, slots=True)
class Result:
    """Milliseconds of: a tick in which a trial is judged, a proposal, a study request, a tick with all trials live
    after the memory of one device has changed."""

    num_trials: int
    tick_ms: float
    propose_ms: float
    study_ms: float
    live_tick_ms: float

    def row(self) -> list[str]:
        return [f"{value:.1f}" for value in (self.tick_ms, self.propose_ms, self.study_ms, self.live_tick_ms)]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    return [Case(num // 10 if quick else num) for num in (1_000, 10_000)]


def figures(results: Sequence[Result]) -> dict[str, float]:
    small, large = results[0], results[-1]
    return {
        "tick_ms": large.tick_ms,
        "propose_ms": large.propose_ms,
        "study_ms": large.study_ms,
        "live_tick_ms": large.live_tick_ms,
        "tick_growth": large.tick_ms / small.tick_ms,
        "study_growth": large.study_ms / small.study_ms,
    }


def measure(case: Case, seconds: float) -> Result:
    with database(case.num_trials, 0) as (settings, store):
        tick_ms, propose_ms = _ticks(store)
        study_ms = _request(settings)
    with database(0, case.num_trials) as (_, store):
        live_tick_ms = _live_ticks(store)
    return Result(case.num_trials, tick_ms, propose_ms, study_ms, live_tick_ms)


# --- a study ----------------------------------------------------------------------------------------------------


@contextmanager
def database(num_ended: int, num_live: int, points: int = POINTS) -> Iterator[tuple[Settings, Store]]:
    """A database with one running study, as if its trials had run, with the first ``points`` of their curves."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder))
        store = Store(settings.url)
        study = store.studies.create(_spec(num_ended + num_live), now=1.0)
        with store._database.write() as connection:
            connection.execute(sa.insert(schema.trials), list(_trials(study.id, num_ended, num_live)))
            for first in range(1, num_ended + 1, 1000):
                chunk = range(first, min(first + 1000, num_ended + 1))
                connection.execute(sa.insert(schema.attempts), [_attempt(trial) for trial in chunk])
                rows = [row for trial in chunk for row in _points(trial, points)]
                connection.execute(sa.insert(schema.metrics), rows)
            recount(connection)
        yield settings, store
        store.close()


def _spec(num_trials: int) -> Mapping[str, Any]:
    spec = {
        "name": "large",
        "workload": "vit_digits",
        "objective": {"metric": "score", "direction": "maximize"},
        "space": {"mib": {"choice": [10, 30]}, "ranks": {"choice": [1]}, "lr": {"low": 1e-4, "high": 1.0, "log": True}},
        "search": {"sampler": "tpe"},
        "stopping": {"rule": "asha", "min_steps": 2, "reduction_factor": 2},
        "budget": {"trials": min(num_trials + 1000, 100_000), "steps": POINTS, "report_every": 1},
    }
    return StudySpec.model_validate(spec).to_json()


def _trials(study_id: int, num_ended: int, num_live: int) -> Iterator[dict[str, Any]]:
    source = random.Random(0)
    device = Device("n0/0", "n0", 0, "virtual", CAPACITY_MIB)
    full = Ledger(Cluster((device,)), 4)
    full.place(Gang("running", 1, 90), [device.id])
    waits = pack([Queued("waiting", (Shape(1, 90),))], full).waits
    sized = Sized("s", CHOICE, "fits")
    columns = {"study_id": study_id, "sized": sized, "family": "f", "created_at": 1.0, "structure": "s"}
    ended = {"state": TrialState.COMPLETED, "attempt": 1, "step": POINTS, "judged_step": 64, "finished_at": 2.0}
    for number in range(num_ended + num_live):
        params = {"mib": 10, "ranks": 1, "lr": source.uniform(1e-3, 1.0)}
        row = {**columns, "number": number, "params": params, "measured_bytes": 0, "reason": waits["waiting"].reason}
        if number < num_ended:
            yield {**row, **ended, "measured_bytes": 80 * MIB, "value": source.random()}
        else:
            live = {"state": TrialState.QUEUED, "attempt": 0, "step": 0, "judged_step": 0, "finished_at": None}
            yield {**row, **live, "value": None}


def _attempt(trial_id: int) -> dict[str, Any]:
    return {
        "trial_id": trial_id, "attempt": 1, "token": "t", "state": AttemptState.ENDED, "choice": CHOICE,
        "devices": ("n0/0",), "device_kinds": ("virtual",), "measured_bytes": 80 * MIB + trial_id,
        "placement_reason": "", "created_at": float(trial_id), "started_at": float(trial_id),
        "ended_at": trial_id + 0.5,
    }  # fmt: skip


def _points(trial_id: int, num: int) -> Iterator[dict[str, Any]]:
    source = random.Random(trial_id)
    for step in range(1, num + 1):
        row = {"trial_id": trial_id, "attempt": 1, "seq": step, "step": step, "time": 1.0}
        yield {**row, "values": {"score": source.random()}}


# --- what is measured -------------------------------------------------------------------------------------------


class _Timed(Controller):
    """The controller, which notes the effects of a tick and the seconds of each."""

    noted: list[tuple[effects.Effect, float]]

    def apply(self, effect: effects.Effect) -> None:
        began = time.perf_counter()
        super().apply(effect)
        self.noted.append((effect, time.perf_counter() - began))

    def timed_tick(self) -> float:
        """Milliseconds of one tick."""
        self.noted, began = [], time.perf_counter()
        self.tick()
        return 1000 * (time.perf_counter() - began)


def _controller(store: Store) -> tuple[_Timed, World]:
    source = random.Random(0)
    devices = [Device(f"n0/{index}", "n0", index, "virtual", CAPACITY_MIB) for index in range(4)]
    world = World(store, Clock(), source, no_faults(), devices)
    tokens = iter(range(10**9))
    sizer, proposer = SimulatedSizer(world.clock, source), SimulatedProposer(world.clock, source)
    executor = SimulatedExecutor(world, 1)
    time_and_tokens = TimeAndTokens(world.wall_clock, new_token=lambda: f"t{next(tokens)}")
    timed = _Timed(store, executor, sizer, proposer, time_and_tokens=time_and_tokens)
    return timed, world


def _ticks(store: Store) -> tuple[float, float]:
    """Milliseconds of a tick that judges one trial and proposes none, and of one proposal."""
    controller, world = _controller(store)
    judging, proposing = [], []
    for number in range(NUM_TICKS):
        taken = controller.timed_tick()
        world.advance(world.clock.now + 1.1)
        if number < 5:
            continue  # the first ones read what a new controller does not know yet
        proposals = [
            1000 * seconds / effect.count for effect, seconds in controller.noted if isinstance(effect, effects.Propose)
        ]
        moves = [effect for effect, _ in controller.noted if isinstance(effect, effects.MoveTrial)]
        judged = [move for move in moves if "judged_step" in move.changes]
        proposing += proposals
        if len(judged) == 1 and not proposals:
            judging.append(taken)
    return median(judging), median(proposing)


def _request(settings: Settings) -> float:
    """Milliseconds of ``GET /v1/studies/1``."""
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        taken = []
        for _ in range(20):
            began = time.perf_counter()
            answer = client.get("/v1/studies/1")
            taken.append(1000 * (time.perf_counter() - began))
            assert answer.status_code == 200, answer.text
    return median(taken)


def _live_ticks(store: Store) -> float:
    """Milliseconds of a tick after the memory of one device has changed, while all trials but four are queued."""
    controller, world = _controller(store)
    for _ in range(4):
        controller.timed_tick()
        world.advance(world.clock.now + 0.1)
    taken = []
    for number in range(NUM_LIVE_TICKS):
        first, *others = world.devices
        world.devices = (replace(first, capacity_mib=CAPACITY_MIB - 1 - number % 2), *others)
        taken.append(controller.timed_tick())
        world.advance(world.clock.now + 0.1)
    return median(taken)
