"""The bundles of a node's pool, and the device in each: a virtual one, or the GPU that Ray has given to the bundle.

Ray alone chooses which GPU a bundle gets, and it does not change afterwards. So a Ray task inside the bundle reads it,
again every minute, because other processes come and go and a GPU may fail. A device that offers nothing any more takes
no new gang; those that run there go on.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from dataclasses import replace
from typing import Any, Protocol

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from placement.model import Device
from scamp_service.cluster.devices.gpu_nodes import kind_of, measure_gpu, offered_mib, why_nothing
from scamp_service.cluster.devices.gpus import Gpu

log = logging.getLogger("scamp.ray")

MEASURE_AGAIN_SECONDS = 60.0
_SHARE = 0.01  # of the bundle's GPU, which a measurement takes from the ranks


class Bundle(Protocol):
    """A bundle. ``device`` is None while it offers nothing; ``why`` says why, and is empty before it is known."""

    @property
    def device(self) -> Device | None: ...

    @property
    def why(self) -> str: ...

    def look(self, group: PlacementGroup) -> None:
        """Bring ``device`` up to date without waiting. The ``group`` of bundles exists."""


class VirtualBundle:
    """A bundle with a virtual device."""

    why = ""

    def __init__(self, device: Device) -> None:
        self.device = device

    def look(self, group: PlacementGroup) -> None:
        """A virtual device does not change."""


class GpuBundle:
    """A bundle with a GPU, which offers nothing until it is measured."""

    def __init__(self, node: str, number: int, max_gangs: int, rehearsal: str) -> None:
        self._node, self._number, self._max_gangs, self._rehearsal = node, number, max_gangs, rehearsal
        self._gpu: Gpu | None = None
        self._asked_at = -math.inf
        self._answer: Any = None  # pending
        self.device: Device | None = None
        self.why = ""

    def look(self, group: PlacementGroup) -> None:
        """Take the measurement that has arrived, and ask for the next one when it is due."""
        if self._answer is not None and has_arrived(self._answer):
            answer, self._answer = self._answer, None
            with contextlib.suppress(ray.exceptions.RayError):  # it is measured again
                self._hear(ray.get(answer))
        now = time.monotonic()
        if self._answer is None and now - self._asked_at >= MEASURE_AGAIN_SECONDS:
            self._asked_at = now
            self._answer = ask(group, self._number, self._rehearsal)

    def _hear(self, gpu: Gpu | str) -> None:
        before, self._gpu = self._gpu, None if isinstance(gpu, str) else gpu
        if isinstance(gpu, str):
            why = f"node {self._node}: {gpu}"
        else:
            if before is not None and self.device is not None and not gpu.knows_ranks and gpu.total_mib:
                # Our own ranks may be among the other processes: what these hold is known only from before they began.
                self._gpu = gpu = replace(gpu, other_processes_mib=before.other_processes_mib)
            why = why_nothing(gpu, self._max_gangs)
            why = why and f"node {self._node}: {why}"
        if why and not self.why:
            log.warning("a bundle offers no device: %s", why)
        self.why, self.device = why, None if why else self._device()

    def _device(self) -> Device:
        assert self._gpu is not None
        mib = offered_mib(self._gpu, self._max_gangs)
        return Device(f"{self._node}/{self._number}", self._node, self._gpu.index, kind_of(self._gpu), mib)


def has_arrived(answer: Any) -> bool:
    """Whether the answer to a task is there."""
    return bool(ray.wait([answer], timeout=0)[0])


def ask(group: PlacementGroup, number: int, rehearsal: str) -> Any:
    """Measure the GPU of a bundle, in a task inside it; the answer is there later."""
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
    # Without ``max_calls`` Ray would end the process after each task that has a share of a GPU.
    task: Any = ray.remote(max_calls=0)(measure_gpu)
    return task.options(num_cpus=0, num_gpus=_SHARE, scheduling_strategy=strategy).remote(rehearsal)
