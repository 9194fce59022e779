"""Gangs on a real local Ray, with real training and a real database."""

from __future__ import annotations

import io
import os
import signal
import sqlite3
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from estimators.model import Candidate, Plan
from scamp_service import patience
from scamp_service.cluster.devices.gpus import is_rank
from scamp_service.cluster.driver.ray_executor import RayExecutor, Term
from scamp_service.cluster.driver.states import idle_ranks
from scamp_service.cluster.driver.states.rank_record import RankPhase
from scamp_service.cluster.local.connection import namespace_of
from scamp_service.cluster.local.local_ray import LocalRay
from scamp_service.cluster.sink import NAME as SINK
from scamp_service.cluster.worker.folders import Folders
from scamp_service.cluster.worker.rank import rank_class
from scamp_service.control.executor import GangState, Order
from scamp_service.errors import Deposed
from scamp_service.lifecycle import CONTROLLER_LEASE, AttemptState, Outcome, TrialState
from scamp_service.model import Attempt
from scamp_service.settings import ROOT, Settings
from scamp_service.store.store import Store
from tests.values import new_attempt, sized
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.ray

TINY = {"depth": 1, "width": 16, "heads": 2, "batch": 32}
LONG = 100_000
FAULT = "vit_digits_with_fault"
SPEC = {"name": "ray", "workload": "vit_digits", "objective": {"metric": "accuracy"}, "space": {"lr": {"choice": [1]}}}


class World:
    """A store, a local Ray and an executor, with the part of the controller that the tests play."""

    def __init__(self, data_dir: Path) -> None:
        self.settings = Settings(data_dir=data_dir, virtual_devices=2, device_mib=200)
        self.store = Store(self.settings.url)
        self.lease = self.store.leases.take(CONTROLLER_LEASE, "test", None, now=time.time())
        self.namespace = namespace_of(self.store.identity())
        self.term, self.leads = 1, True
        self.ray = LocalRay(self.settings, data_dir)
        self.ray.start()
        self.settings = self.settings.model_copy(update={"ray_address": self.ray.address})
        self.executor = self.new_executor()
        self.number = 0
        self.study = self.store.studies.create(SPEC, now=time.time()).id

    def new_executor(self) -> RayExecutor:
        return RayExecutor(
            self.settings,
            self.settings.url,
            self.settings.data_dir / "checkpoints",
            Term(self.store.identity(), self.term, lambda: self.leads),
        )

    def reopen(self) -> None:
        """Another controller takes over, and has heard of every rank that answers."""
        self.executor.close()  # no effect if it has been closed
        self.term += 1
        self.executor = self.new_executor()

    def renew(self) -> None:
        assert self.lease is not None
        self.lease = self.store.leases.renew(CONTROLLER_LEASE, self.lease, now=time.time())

    def until(self, condition: Callable[[], Any], condition_name: str) -> Any:
        def renewed() -> Any:
            self.renew()
            return condition()

        try:
            return until(renewed, condition_name)
        except AssertionError as error:
            raise AssertionError(f"{error}; gangs {self.executor.gangs()}") from error

    def devices(self) -> tuple[str, ...]:
        self.until(lambda: len(self.executor.cluster().devices) == 2, "two devices")
        return tuple(device.id for device in self.executor.cluster().devices)

    def order(self, devices: tuple[str, ...], steps: int = 20, **changes: Any) -> Order:
        """A trial of its own with a STARTING attempt, as the controller would have begun it."""
        self.number += 1
        now, ranks = time.time(), len(devices)
        params = TINY | changes.pop("params", {})
        plan = Plan(micro_batch=32 // ranks, dp_shard=ranks)
        self.store.trials.create(self.study, [(self.number, params)], now=now)
        trial = self.store.trials.page(self.study)[-1]
        self.store.trials.move(trial.id, TrialState.WAITING, 0, TrialState.QUEUED, now=now, sized=sized(plan, 64))
        begun = new_attempt(trial.id, token="token", plan=plan, devices=devices, reserved_mib=64, now=now)
        assert self.store.attempts.begin(begun)
        order = Order(
            trial_id=trial.id,
            attempt=1,
            token="token",
            study_id=self.study,
            candidate=Candidate(changes.pop("workload", "vit_digits"), changes.pop("code", None), params),
            plan=plan,
            devices=devices,
            mib_per_rank=64,
            seed=0,
            steps=steps,
            report_every=10,
            resume=None,
            metrics=["accuracy"],
            objectives=["accuracy"],
        )
        return replace(order, **changes)

    def launch(self, order: Order) -> None:
        """As the controller does: again, while it is put off."""

        def listed() -> bool:
            self.executor.launch(order)
            return not self.gone(order)

        self.until(listed, f"the launch of {order.key}")

    def attempt(self, order: Order) -> Attempt:
        return self.store.attempts.of_trial(order.trial_id)[0]

    def gone(self, order: Order) -> bool:
        return order.key not in self.executor.gangs()

    def ended(self, order: Order) -> Attempt:
        self.until(lambda: self.gone(order), f"the end of {order.key}")
        return self.attempt(order)

    def training(self, order: Order) -> None:
        self.until(lambda: self.store.reports.metrics(order.trial_id), f"a first metric of {order.key}")

    def actor(self, order: Order) -> Any:
        """Ray's actor of the only rank of this attempt."""
        (rank,) = self.executor._states.ranks.members(order.key)
        return self.executor._actors._actors[rank.name]

    def pids(self, order: Order) -> list[int]:
        """Process ids of the gang's ranks; known once they train."""
        members = self.executor._states.ranks.members(order.key)
        return [rank.status.process.pid for rank in members if rank.status]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("ray"))
    try:
        yield world
        world.executor.shutdown()
    finally:
        world.ray.stop()
        world.store.close()


def test_a_gang_of_one_trains_and_reports_in_order(world: World) -> None:
    order = world.order(world.devices()[:1], steps=30)
    world.launch(order)
    assert world.executor.gangs()[order.key].state is GangState.ALIVE
    attempt = world.ended(order)
    assert (attempt.outcome, attempt.detail) == (Outcome.DONE, "")
    assert [metric.step for metric in world.store.reports.metrics(order.trial_id)] == [10, 20, 30]
    assert attempt.checkpoint_step == 30 and attempt.measured_bytes > 0
    assert attempt.timed_steps == 27 and attempt.measured_step_seconds is not None
    assert 0 < attempt.measured_step_seconds < 10
    assert world.store.trials.get(order.trial_id).measured_step_seconds == attempt.measured_step_seconds
    assert (world.settings.data_dir / "checkpoints" / str(order.trial_id)).is_dir()


def test_a_gang_of_two_trains_the_same_curve_as_one_rank(world: World) -> None:
    both, single = world.order(world.devices()), world.order(world.devices()[:1])
    for order in (both, single):
        world.launch(order)
        assert world.ended(order).outcome is Outcome.DONE
    curves = [[m.values["train_loss"] for m in world.store.reports.metrics(order.trial_id)] for order in (both, single)]
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)


def test_launching_twice_starts_once(world: World) -> None:
    order = world.order(world.devices()[:1])
    for _ in range(3):
        world.launch(order)
    assert len(world.executor._states.ranks.members(order.key)) == 1
    assert world.ended(order).outcome is Outcome.DONE
    assert [metric.seq for metric in world.store.reports.metrics(order.trial_id)] == [1, 2]


def test_a_killed_rank_breaks_its_gang_at_once_and_stopping_frees_every_process(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "RANK_SECONDS", 2 * PATIENCE_SECONDS)  # nobody waits for its silence
    order = world.order(world.devices(), steps=LONG)
    world.launch(order)
    world.training(order)
    victim, sibling = world.pids(order)
    os.kill(victim, signal.SIGKILL)
    world.until(lambda: world.executor.gangs()[order.key].state is GangState.BROKEN, "broken")
    assert "died" in world.executor.gangs()[order.key].detail
    world.executor.stop(order.key)
    assert world.attempt(order).outcome is None  # its death is the controller's to tell, and not an error of the trial
    world.ended(order)
    assert not is_running(victim) and not is_running(sibling)


def test_why_a_rank_died_is_known_until_its_gang_is_stopped(world: World) -> None:
    order = world.order(world.devices()[:1], steps=LONG)
    world.launch(order)
    world.training(order)
    (victim,) = world.pids(order)
    os.kill(victim, signal.SIGSEGV)
    world.until(lambda: not world.executor._states.ranks.members(order.key), "forgotten")
    gang = world.executor.gangs()[order.key]
    assert gang.state is GangState.BROKEN
    assert "its process was killed" in gang.detail and f"worker-*-{victim}.err" in gang.detail
    assert "ends with: Fatal Python error: Segmentation fault | " in gang.detail, "its stack says where"
    world.executor.stop(order.key)
    world.ended(order)


def test_an_overrun_is_told_as_such_and_harms_no_neighbour_on_the_device(world: World) -> None:
    device = world.devices()[:1]
    neighbour = world.order(device, steps=60)
    spiking = world.order(device, workload=FAULT, params={"spike_mib": 400, "spike_step": 8})
    world.launch(neighbour)
    world.launch(spiking)
    attempt = world.ended(spiking)
    assert attempt.outcome is Outcome.OUT_OF_MEMORY
    assert attempt.measured_bytes >= 400 * 2**20
    assert world.ended(neighbour).outcome is Outcome.DONE


def test_an_overrun_of_a_gang_wins_over_the_errors_that_it_causes(world: World) -> None:
    order = world.order(world.devices(), workload=FAULT, params={"spike_mib": 400, "spike_step": 8})
    world.launch(order)
    world.until(lambda: world.attempt(order).outcome, "an outcome")
    assert world.attempt(order).outcome is Outcome.OUT_OF_MEMORY
    world.executor.stop(order.key)
    world.ended(order)


@pytest.mark.soak
def test_no_more_ranks_start_at_once_than_cores_are_idle_or_half_of_all(world: World) -> None:
    orders = [world.order(world.devices()[:1], steps=LONG) for _ in range(3)]
    ranks, seen = world.executor._states.ranks, []

    def all_launched() -> bool:
        for order in orders:
            world.executor.launch(order)
            starting = sum(rank.phase is RankPhase.STARTING for rank in list(ranks.values()))
            training = sum(rank.phase is RankPhase.READY and bool(rank.keys) for rank in list(ranks.values()))
            seen.append((starting, training))
        return not any(world.gone(order) for order in orders)

    world.until(all_launched, "three gangs")
    cores = len(os.sched_getaffinity(0))
    assert any(starting for starting, _ in seen)
    assert all(starting <= max(1, cores // 2, cores - training) for starting, training in seen), seen
    for order in orders:
        world.executor.stop(order.key)
    for order in orders:
        world.ended(order)


def test_another_executor_finds_a_living_gang_and_lets_it_finish(world: World) -> None:
    order = world.order(world.devices(), steps=300, report_every=30)
    world.launch(order)
    world.training(order)
    pids = world.pids(order)
    world.reopen()
    world.until(lambda: not world.executor.silent(), "an answer of all ranks")
    assert world.executor.gangs()[order.key].state is GangState.ALIVE
    assert sorted(world.pids(order)) == sorted(pids)
    world.launch(order)  # a repeat, from a controller that does not know better
    assert world.ended(order).outcome is Outcome.DONE
    assert [metric.seq for metric in world.store.reports.metrics(order.trial_id)] == list(range(1, 11))


@pytest.mark.soak
def test_another_executor_finds_a_gang_broken_when_one_of_its_ranks_is_missing(world: World) -> None:
    order = world.order(world.devices(), steps=LONG)
    world.launch(order)
    world.training(order)
    victim, sibling = world.pids(order)
    world.executor.close()
    os.kill(victim, signal.SIGKILL)
    time.sleep(0.5)
    world.reopen()
    world.until(lambda: not world.executor.silent(), "an answer of all ranks")
    world.until(lambda: world.executor.gangs()[order.key].state is GangState.BROKEN, "the missing rank")
    world.executor.stop(order.key)
    world.ended(order)
    assert not is_running(sibling)


def test_a_rank_that_does_not_answer_closes_its_device_alone_until_it_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "RANK_SECONDS", 6.0)
    device, other = world.devices()
    order = world.order((device,), steps=LONG)
    world.launch(order)
    world.training(order)
    (stuck,) = world.pids(order)
    world.executor.close()
    os.kill(stuck, signal.SIGSTOP)
    world.reopen()
    world.until(lambda: world.executor.silent() == {device}, "the other device")
    assert "does not answer" in world.executor.closed()[device] and other not in world.executor.closed()
    assert is_running(stuck) and world.gone(order), "nobody knows what it does"
    world.until(lambda: not world.executor.silent(), "the end of the stuck rank")
    assert not is_running(stuck)
    assert not world.executor.closed()


@pytest.mark.soak
def test_a_rank_that_freezes_breaks_its_gang(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "RANK_SECONDS", 6.0)
    order = world.order(world.devices(), steps=LONG)
    world.launch(order)
    world.training(order)
    stuck, sibling = world.pids(order)
    os.kill(stuck, signal.SIGSTOP)
    broken = world.until(
        lambda: (gang := world.executor.gangs()[order.key]).state is GangState.BROKEN and gang, "a broken gang"
    )
    assert "has not answered for 6 s" in broken.detail
    world.executor.stop(order.key)
    world.ended(order)
    assert not is_running(stuck) and not is_running(sibling)


def test_a_frozen_sink_is_replaced_and_no_report_is_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SINK_SECONDS", 6.0)
    order = world.order(world.devices()[:1], steps=200)
    world.launch(order)
    world.training(order)
    assert world.executor._sink.status is not None
    stuck = world.executor._sink.status.process.pid
    os.kill(stuck, signal.SIGSTOP)
    assert world.ended(order).outcome is Outcome.DONE
    assert not is_running(stuck)
    assert [metric.seq for metric in world.store.reports.metrics(order.trial_id)] == list(range(1, 21))


def test_ranks_do_not_obey_a_controller_that_was_replaced(world: World) -> None:
    order = world.order(world.devices()[:1], steps=150)
    world.launch(order)
    world.training(order)
    actor = world.actor(order)
    world.reopen()
    world.until(lambda: not world.executor.silent(), "an answer of all ranks")
    with pytest.raises(Deposed):
        ray.get(actor.stop.remote(order.key, world.term - 1))
    assert world.ended(order).outcome is Outcome.DONE


@pytest.mark.soak
def test_an_executor_that_may_not_act_ends_nothing(world: World) -> None:
    order = world.order(world.devices()[:1], steps=LONG)
    world.launch(order)
    world.training(order)
    pids = world.pids(order)
    world.leads = False
    world.executor.shutdown()
    time.sleep(1.0)
    assert all(is_running(pid) for pid in pids)
    world.leads = True
    world.reopen()
    world.until(lambda: not world.executor.silent(), "an answer of all ranks")
    world.executor.stop(order.key)
    assert world.ended(order).outcome is Outcome.STOPPED


def test_a_stopped_gang_leaves_warm_ranks_behind(world: World) -> None:
    order = world.order(world.devices(), steps=LONG)
    world.launch(order)
    world.training(order)
    pids = world.pids(order)
    world.executor.stop(order.key)
    assert world.executor.gangs()[order.key].state is GangState.STOPPING
    assert world.ended(order).outcome is Outcome.STOPPED
    assert all(is_running(pid) for pid in pids)


def test_a_stale_token_is_refused_before_anything_is_trained(world: World) -> None:
    order = world.order(world.devices()[:1])
    world.launch(replace(order, token="another"))
    attempt = world.ended(order)
    assert (attempt.state, attempt.outcome) == (AttemptState.STARTING, None)
    assert world.store.reports.metrics(order.trial_id) == []


def test_a_rank_stops_when_its_attempt_has_become_stale(world: World) -> None:
    order = world.order(world.devices()[:1], steps=LONG)
    world.launch(order)
    world.training(order)
    assert world.store.attempts.move(order.trial_id, 1, [AttemptState.RUNNING], AttemptState.STOPPING, now=time.time())
    before = len(world.store.reports.metrics(order.trial_id))
    world.ended(order)
    assert len(world.store.reports.metrics(order.trial_id)) == before


def test_no_report_is_lost_when_the_sink_dies(world: World) -> None:
    import ray

    order = world.order(world.devices()[:1], steps=150)
    world.launch(order)
    world.training(order)
    ray.kill(ray.get_actor(SINK, world.namespace))
    assert world.ended(order).outcome is Outcome.DONE
    assert [metric.seq for metric in world.store.reports.metrics(order.trial_id)] == list(range(1, 16))


USER_CODE = """
import sys
from workloads.models.vit_digits import VitDigits

class Mine(VitDigits):
    def on_step(self, step, *rest):
        super().on_step(step, *rest)
        if step == 0:
            print("hello from", self.params["width"])
            print("and to stderr", file=sys.stderr)
        if step == 12:
            raise LookupError("no such thing")
"""


def put_code(world: World, source: str) -> str:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("mine.py", source)
    return world.store.blobs.put(packed.getvalue())


MARKING_CODE = """
import logging, os
import torch
from workloads.models.vit_digits import VitDigits

class Mine(VitDigits):
    def on_step(self, step, *rest):
        super().on_step(step, *rest)
        if step == 0:
            print(os.getpid(), "sees", os.environ.get("MARK"), torch.get_default_dtype(), len(logging.root.handlers))
            os.environ["MARK"] = "1"
            torch.set_default_dtype(torch.bfloat16 if self.params.get("last") else torch.float32)
            logging.root.addHandler(logging.StreamHandler())
            if self.params.get("keeps"):
                torch.nn.functional.relu = self.loss
"""


def test_own_code_runs_again_in_its_own_process_which_is_clean_or_replaced_and_never_runs_other_code(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_ranks, "SPARE_SECONDS", 300.0)  # others start slowly on a busy host
    mine, other = put_code(world, MARKING_CODE), put_code(world, f"{MARKING_CODE}# other")
    one_device, both = world.devices()[:1], world.devices()
    seen = []
    for devices, code, params in (
        (one_device, mine, {}),
        (one_device, mine, {"keeps": 1}),
        (one_device, mine, {}),
        (one_device, other, {}),
        (both, mine, {}),
        (both, mine, {}),
    ):
        order = world.order(devices, steps=1, workload="mine.py:Mine", code=code, params=params)
        world.launch(order)
        assert world.ended(order).outcome is Outcome.DONE
        lines = [
            line.text.split(" sees ") for _, line in world.store.reports.logs(order.trial_id) if " sees " in line.text
        ]
        assert len(lines) == len(devices)
        seen += [lines]
    first, again, replaced, others, gang, gang_again = [{pid for pid, _ in lines} for lines in seen]
    assert first == again, "the same archive runs in the same process"
    assert not first & replaced, "it was not clean any more"
    assert replaced < gang and not others & (first | gang), "other code runs in another process"
    assert gang == gang_again, "so it is for a gang"
    assert len({state for lines in seen for _, state in lines}) == 1, seen


def test_prints_and_the_traceback_of_user_code_arrive_and_its_process_is_not_used_again(world: World) -> None:
    sha = put_code(world, USER_CODE)
    order = world.order(world.devices()[:1], steps=50, workload="mine.py:Mine", code=sha)
    world.launch(order)
    world.training(order)
    pids = world.pids(order)
    attempt = world.ended(order)
    assert attempt.outcome is Outcome.ERROR
    explained, _, traceback = attempt.detail.partition("\n\n")
    assert explained == 'mine.py, line 12: raise LookupError("no such thing")\nLookupError: no such thing'
    assert traceback.startswith("Traceback") and "runtime.py" in traceback
    assert [line.text for _, line in world.store.reports.logs(order.trial_id)][:2] == ["hello from 16", "and to stderr"]
    assert not any(is_running(pid) for pid in pids)


def test_a_rank_ends_itself_when_no_controller_renews_its_lease(world: World) -> None:
    world.renew()
    _alive, pid = lonely_rank(world, lease_seconds=4.0)
    for _ in range(12):
        world.renew()
        time.sleep(0.5)
    assert is_running(pid)
    until(lambda: not is_running(pid), f"the end of process {pid}")


def test_a_rank_waits_while_the_database_is_locked(world: World) -> None:
    order = world.order(world.devices()[:1], steps=LONG)
    world.launch(order)
    world.training(order)
    _alive, pid = lonely_rank(world, lease_seconds=8.0)
    other = sqlite3.connect(world.settings.data_dir / "scamp.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # reports of the rank that trains now block the sink
    until_then = time.monotonic() + 18.0
    while time.monotonic() < until_then:
        time.sleep(0.5)
        assert is_running(pid)
    other.execute("ROLLBACK")
    other.close()
    world.until(lambda: len(world.store.reports.metrics(order.trial_id)) > 10, "reports that had to wait")
    world.executor.stop(order.key)
    world.ended(order)
    until(lambda: not is_running(pid), f"the end of process {pid}")


def test_calls_that_block_never_keep_a_rank_from_saying_how_it_is(world: World) -> None:
    order = world.order(world.devices()[:1], steps=LONG)
    world.launch(order)
    world.training(order)
    actor = world.actor(order)
    left_over = [actor.join.remote(order.key) for _ in range(40)]  # of controllers that have died
    time.sleep(0.5)
    assert ray.get(actor.status.remote(world.term), timeout=PATIENCE_SECONDS).key == order.key
    world.executor.stop(order.key)
    world.ended(order)
    assert {ended.outcome for ended in ray.get(left_over, timeout=PATIENCE_SECONDS)} == {Outcome.STOPPED}


DRIVER = """
import signal, sys, threading, time
from pathlib import Path
from scamp_service.cluster.local.connection import connect

told = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: told.set())
connect(sys.argv[1], Path(sys.argv[2]), "a-driver")
print("connected", flush=True)
while not told.wait(0.1):  # without a limit, a signal that comes before the wait begins would not end it
    pass
time.sleep(4.0)
print("ended in order", flush=True)
"""


def test_a_process_that_is_connected_takes_the_time_that_it_needs_to_end(world: World) -> None:
    """Ray's own handler of SIGTERM aborts a driver three seconds later."""
    command = [sys.executable, "-c", DRIVER, world.settings.ray_address, str(world.settings.data_dir)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == "connected\n"
        driver.terminate()
        assert driver.communicate(timeout=PATIENCE_SECONDS)[0] == "ended in order\n"
    assert driver.returncode == 0


def test_to_leave_is_not_to_wait_for_a_rank_that_has_only_begun_to_start(world: World) -> None:
    executor, device = world.executor, world.devices()[:1]
    ranks = executor._states.ranks
    world.until(lambda: any(rank.phase is RankPhase.READY for rank in list(ranks.values())), "a rank")
    with executor._lock:  # so that no rank answers meanwhile
        while not any(rank.phase is RankPhase.STARTING for rank in ranks.values()):
            executor.launch(world.order(device, steps=LONG))
    pids = [rank.status.process.pid for rank in ranks.values() if rank.status]
    deadline = time.monotonic() + PATIENCE_SECONDS
    executor.shutdown(PATIENCE_SECONDS)
    assert time.monotonic() < deadline, "it waited for all that it may"
    assert pids and not any(is_running(pid) for pid in pids)
    world.executor = world.new_executor()


def test_ranks_and_no_other_process_of_ray_are_known_as_ours(world: World) -> None:
    order = world.order(world.devices()[:1], steps=LONG)
    world.launch(order)
    world.training(order)
    assert all(is_rank(pid) for pid in world.pids(order))
    world.executor.stop(order.key)
    world.ended(order)
    idle = [rank.status.process.pid for rank in world.executor._states.ranks.values() if rank.status]
    assert idle and all(is_rank(pid) for pid in idle)
    assert not is_rank(os.getpid()) and not is_rank(world.ray._guardian.pid)  # type: ignore[union-attr]


def lonely_rank(world: World, lease_seconds: float) -> tuple[Any, int]:
    """A rank that no executor knows, and its process id."""
    folders = Folders.of_controller(world.settings, world.settings.checkpoints)
    actor = rank_class().options(num_cpus=0).remote(folders, lease_seconds, 10, world.namespace, world.term)
    return actor, ray.get(actor.status.remote(world.term), timeout=PATIENCE_SECONDS).process.pid


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False
