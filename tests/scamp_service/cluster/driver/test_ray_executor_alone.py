"""Tests of the executor that need no Ray: Ray fails while it begins, or another controller leads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ray import exceptions as ray_exceptions

from placement.model import Device
from scamp_service import patience
from scamp_service.cluster.driver import rank_actors, sink_keeper
from scamp_service.cluster.driver import ray_executor as module
from scamp_service.cluster.driver.ray_executor import RayExecutor, Term
from scamp_service.cluster.sink import SinkStatus
from scamp_service.control.executor import GangState
from scamp_service.host import Process, source_hash
from scamp_service.settings import Settings
from tests.ranks import ORDER

DEVICE = Device("n/0", "n", 0, "virtual", 64)


class FakeRay:
    """Ray as this process sees it. Calls to actors are noted, and none is answered."""

    exceptions = ray_exceptions

    def __init__(self) -> None:
        self.is_connected = False
        self.refuses = False  # to start a rank
        self.calls: list[str] = []
        self.killed: list[Any] = []
        self.util = SimpleNamespace(list_named_actors=lambda all_namespaces: self.listed())
        self.listed: Callable[[], list[Any]] = list

    def connect(self, *_: Any) -> None:
        assert not self.is_connected, "ray.init twice"
        self.is_connected = True

    def shutdown(self) -> None:
        self.is_connected = False

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "this node")

    def kill(self, actor: Any, no_restart: bool = True) -> None:
        self.killed.append(actor)

    def call(self, name: str) -> object:
        if self.refuses:
            raise RuntimeError("the GCS does not answer")
        self.calls.append(name)
        return Unanswered()


class Unanswered:
    """Reference to an answer that never comes."""

    def future(self) -> Future[Any]:
        return Future()


class FakeActor:
    """Any actor; also the class of one."""

    def __init__(self, ray: FakeRay, path: str = "") -> None:
        self._ray, self._path = ray, path

    def __getattr__(self, name: str) -> FakeActor:
        return FakeActor(self._ray, name)

    def options(self, **_: Any) -> FakeActor:
        return self

    def remote(self, *_: Any) -> Any:
        reference = self._ray.call(self._path or "a rank starts")
        return reference if self._path else FakeActor(self._ray)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    ray = FakeRay()
    pool = SimpleNamespace(devices=(DEVICE,), num_cpus=4, node_ip="127.0.0.1")

    class OnePool(list[Any]):
        foreign: frozenset[str] = frozenset()
        owners: dict[str, str] = {}  # noqa: RUF012
        leaving_devices: dict[str, str] = {}  # noqa: RUF012

        def follow(self, nodes: Any, given_back: Any) -> dict[str, Any]:
            return {}

        def options(self, *_: Any) -> dict[str, Any]:
            return {}

    for patched in (module, rank_actors, sink_keeper):
        monkeypatch.setattr(patched, "ray", ray)
    monkeypatch.setattr(module, "connect", ray.connect)
    monkeypatch.setattr(module, "nodes", list)
    monkeypatch.setattr(module, "leaving_nodes", dict)
    monkeypatch.setattr(module, "rank_class", lambda: FakeActor(ray))
    monkeypatch.setattr(module, "ensure_sink", lambda *_: FakeActor(ray))
    monkeypatch.setattr(module, "Pools", lambda *_: OnePool([pool]))
    return ray


@pytest.fixture
def begin(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RayExecutor]:
    """Makes an executor whose background thread does nothing."""
    monkeypatch.setattr(RayExecutor, "_watch", lambda self: None)
    settings = Settings(ray_address="fake:1")

    def new(may_act: Callable[[], bool] = lambda: True) -> RayExecutor:
        return RayExecutor(settings, "", settings.checkpoints, Term("mine", 1, may_act))

    return new


@pytest.mark.parametrize("step", ["_adopt", "_refresh_pools"])
def test_a_beginning_that_fails_half_way_may_be_repeated(
    ray: FakeRay, begin: Callable[..., RayExecutor], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(self: RayExecutor) -> None:
        raise RuntimeError("the GCS does not answer")

    with monkeypatch.context() as broken:
        broken.setattr(RayExecutor, step, fail)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="the GCS does not answer"):
                begin()
            assert not ray.is_connected
    begin().close()


def test_a_replaced_controller_that_wakes_up_starts_nothing(ray: FakeRay, begin: Callable[..., RayExecutor]) -> None:
    leads = False
    executor = begin(may_act=lambda: leads)
    ray.calls.clear()
    order = replace(ORDER, devices=(DEVICE.id,))
    executor.launch(order)
    executor._maintain()
    assert ray.calls == []
    assert not executor.gangs()
    leads = True
    executor.launch(order)
    assert "a rank starts" in ray.calls and "run" in ray.calls


def test_a_rank_that_ray_refuses_to_start_breaks_its_gang_and_is_not_called(
    ray: FakeRay, begin: Callable[..., RayExecutor]
) -> None:
    executor = begin()
    ray.calls.clear()
    ray.refuses = True
    order = replace(ORDER, devices=(DEVICE.id,))
    executor.launch(order)
    gang = executor.gangs()[order.key]
    assert (gang.state, gang.detail) == (GangState.BROKEN, "a rank on n/0 did not start: the GCS does not answer")
    ray.refuses = False
    executor.stop(order.key)
    executor._maintain()
    assert not executor.gangs() and ray.calls == [], "the device is tried again after a pause"


def sink(version: str) -> SinkStatus:
    return SinkStatus(Process.current(), version, "mine")


def test_only_the_sink_of_an_earlier_controller_is_replaced_for_its_version(
    ray: FakeRay, begin: Callable[..., RayExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_keeper, "kill_process", lambda *_: None)
    executor = begin()
    executor._sink.hear(sink("an earlier one"))
    assert len(ray.killed) == 1
    for _ in range(3):  # the sources were changed under a running service
        executor._sink.hear(sink("a later one"))
    assert len(ray.killed) == 1
    executor.close()
    next_one = begin()
    next_one._sink.hear(sink(source_hash()))
    next_one._sink.hear(sink("a later one"))
    assert len(ray.killed) == 1


def test_a_replaced_controller_replaces_no_sink_and_does_not_say_that_it_does(
    ray: FakeRay, begin: Callable[..., RayExecutor], caplog: pytest.LogCaptureFixture
) -> None:
    begin(may_act=lambda: False)._sink.hear(sink("an earlier one"))
    assert ray.killed == []
    assert "replaced" not in caplog.text


def test_a_sink_that_starts_in_place_of_another_has_longer_to_answer(
    ray: FakeRay, begin: Callable[..., RayExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = begin()._sink
    keeper.check(keeper._asked + patience.SINK_SECONDS + 1)
    assert len(ray.killed) == 1

    def get(ref: Any) -> None:
        raise ray.exceptions.RayActorError

    monkeypatch.setattr(ray, "get", get, raising=False)
    (ref,) = keeper._calls._pending
    keeper._calls.take(ref)
    keeper.receive(ref)
    now = keeper._asked
    keeper.check(now)
    keeper.check(now + patience.SINK_SECONDS + 1)
    assert len(ray.killed) == 1
    keeper.check(now + patience.STARTING_SINK_SECONDS + 1)
    assert len(ray.killed) == 2
