"""Keeps a sink ready for the ranks: starts it, asks how it is, and replaces one that hangs or is of another version."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import ray

from scamp_service import patience
from scamp_service.cluster.driver.calls import Calls
from scamp_service.cluster.driver.rank_processes import kill_process
from scamp_service.cluster.sink import SinkStatus
from scamp_service.host import source_hash

log = logging.getLogger("scamp.ray")


class SinkKeeper:
    """The sink of this cluster, as its controller sees it. Not thread-safe: its owner holds a lock."""

    def __init__(
        self, ensure: Callable[[], Any], calls: Calls, *, node_id: str, may_act: Callable[[], bool], now: float
    ) -> None:
        """``ensure`` returns the sink's actor on ``node_id``, which it creates if none runs.

        The sink is ended only while ``may_act()`` is true. ``now`` is always a monotonic time.
        """
        self._ensure, self._calls, self._node_id, self._may_act = ensure, calls, node_id, may_act
        self.status: SinkStatus | None = None
        self._is_starting = False  # one that was made here, and has not answered yet
        self._asked = now
        self._actor = ensure()
        self._ask(now)

    def check(self, now: float) -> None:
        """Ask how it is, unless a question is on its way; replace it when it has not answered for too long."""
        if not self._calls.awaits_sink():
            self._ask(now)
            return
        seconds = patience.STARTING_SINK_SECONDS if self._is_starting else patience.SINK_SECONDS
        if now - self._asked > seconds:
            self._asked = now
            self._replace(f"it has not answered for {seconds:.0f} s")

    def excuse(self, seconds: float) -> None:
        """Give it this many more seconds to answer."""
        self._asked += seconds

    def receive(self, ref: Any) -> None:
        """Take its answer, or make another one if it has ended."""
        try:
            self.hear(ray.get(ref))
        except ray.exceptions.RayError:
            self._actor, self._is_starting = self._ensure(), True

    def hear(self, status: SinkStatus) -> None:
        """Take its answer. Only the sink of an earlier controller is replaced because of its version.

        Once the checkout is updated, each new sink differs from this process.
        """
        is_first, self.status, self._is_starting = self.status is None, status, False
        if is_first and status.version != source_hash():
            self._replace("it is of another version")

    def end(self) -> None:
        """End it, without another one."""
        ray.kill(self._actor)

    def _ask(self, now: float) -> None:
        self._asked = now
        self._calls.expect_sink(self._actor.ping.remote())

    def _replace(self, why: str) -> None:
        if self._may_act():
            log.warning("the sink is replaced: %s", why)
            ray.kill(self._actor, no_restart=True)
            if self.status is not None:
                kill_process(self.status.process, self._node_id)
