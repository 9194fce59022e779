"""Work of the service itself in virtual time: traces of candidates, and starts of ranks on devices that share cores.

On virtual devices it takes the cores that gangs train on. The head of a GPU cluster traces beside the devices, and
starts ranks ahead on cores that nobody needs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from placement.model import VIRTUAL_KIND, Cluster
from placement.simulation.progress import Progress
from scamp_service.sizing.sizer import WORKERS


class VirtualTraces:
    """The traces of candidates in the order of their requests, ``WORKERS`` at once.

    Each takes ``seconds`` of a core.
    """

    def __init__(self, progress: Progress, cluster: Cluster, seconds: float) -> None:
        self._progress, self._seconds = progress, seconds
        self._shares_cores_with = [device.id for device in cluster.devices if device.kind == VIRTUAL_KIND][:1]
        self._queue: list[int] = []
        self._running: dict[int, str] = {}

    def __contains__(self, trial_id: object) -> bool:
        return trial_id in self._running or trial_id in self._queue

    def begin(self, trial_id: int) -> None:
        """Trace a candidate once its turn comes; one that is being traced goes on."""
        if self._seconds and trial_id not in self:
            self._queue.append(trial_id)
            self._fill()

    def forget(self, trial_ids: Collection[int]) -> None:
        """End the traces of these candidates."""
        self._queue = [trial_id for trial_id in self._queue if trial_id not in trial_ids]
        for trial_id in self._running.keys() & {*trial_ids}:
            self._progress.stop(self._running.pop(trial_id))
        self._fill()

    @property
    def next_end(self) -> float:
        """When the next one ends; infinite if none runs."""
        return min(map(self._progress.end_of, self._running.values()), default=math.inf)

    def advance(self, now: float) -> None:
        """Finish those that end by ``now``, to which ``progress`` has moved on."""
        self.forget([trial_id for trial_id, name in self._running.items() if self._progress.end_of(name) <= now])

    def _fill(self) -> None:
        while self._queue and len(self._running) < WORKERS:
            trial_id = self._queue.pop(0)
            self._running[trial_id] = name = f"trace of {trial_id}"
            self._progress.start(name, self._shares_cores_with or [name], self._seconds)


class VirtualRanks:
    """Idle ranks of virtual devices: one on each at first, and those of gangs that have ended, for a while."""

    def __init__(self, cluster: Cluster, kept_seconds: float) -> None:
        self._kept_seconds = kept_seconds
        self._idle_since = {device.id: [math.inf] for device in cluster.devices if device.kind == VIRTUAL_KIND}

    def take(self, devices: Sequence[str], now: float) -> int:
        """Take an idle rank of each of these devices; returns how many have none, and must start one."""
        return sum(not self._take(device, now) for device in devices if device in self._idle_since)

    def give_back(self, devices: Sequence[str], now: float) -> None:
        """Make the ranks of a gang that has ended idle."""
        for device in devices:
            if device in self._idle_since:
                self._idle_since[device].append(now)

    def _take(self, device: str, now: float) -> bool:
        kept = [since for since in self._idle_since[device] if now - since <= self._kept_seconds]
        self._idle_since[device] = kept[:-1]
        return bool(kept)
