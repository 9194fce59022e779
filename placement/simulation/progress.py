"""The progress of running gangs in virtual time, which slow each other down where they share devices or cores.

Each device belongs to a *domain* with a capacity, counted in ranks at full speed: a GPU is a domain of capacity 1, and
the virtual devices of a host are one domain with as many as it has cores. While a domain holds more ranks than that,
its ranks divide it equally. A gang is as slow as its slowest rank. So ranks that share a GPU take turns: together they
are as fast as one alone, unless a *sharing gain* says that they are faster, as one alone does not keep the GPU busy. A
GPU that is half as fast as others has a capacity of 0.5.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from placement.model import VIRTUAL_KIND, Cluster

SAME_SPEED: Mapping[str, float] = MappingProxyType({})


class Domains:
    """The domain of each device, and the capacity of each domain in ranks at full speed.

    ``gains`` are those of domains in which several ranks are together that many times as fast as one alone.
    """

    def __init__(
        self, of_device: Mapping[str, str], capacity: Mapping[str, float], gains: Mapping[str, float] = SAME_SPEED
    ) -> None:
        if any(ranks <= 0 for ranks in capacity.values()):
            raise ValueError(f"a domain must have a capacity above 0, got {dict(capacity)}")
        if any(gain < 1 for gain in gains.values()):
            raise ValueError(f"ranks that share a domain cannot be slower than one alone, got {dict(gains)}")
        self._of_device, self._capacity, self._gains = of_device, capacity, gains

    def of(self, devices: Sequence[str], samples: Sequence[int] = ()) -> dict[str, float]:
        """Ranks of a gang in each domain, one on each of these devices.

        If they take unlike shares of ``samples``, a rank counts as its part of the largest.
        """
        ranks: dict[str, float] = {}
        for device, share in zip(devices, samples or (1,) * len(devices), strict=True):
            domain = self._of_device.get(device, device)
            ranks[domain] = ranks.get(domain, 0.0) + share
        most = max(samples, default=1)
        return {domain: share / most for domain, share in ranks.items()}

    def slow_down(self, domain: str, load: float) -> float:
        """How many times as long as at full speed each of ``load`` ranks takes there."""
        capacity = self._capacity.get(domain, 1.0)
        gain = self._gains.get(domain, 1.0)
        return max(1.0, min(load, 1.0) / capacity, load / (capacity * gain))


def domains_of(
    cluster: Cluster, cores: float = math.inf, speeds: Mapping[str, float] = SAME_SPEED, sharing_gain: float = 1.0
) -> Domains:
    """Each GPU is a domain of its own, and the virtual devices of a node are one of ``cores``.

    ``speeds`` are those of kinds relative to the fastest, above 0 and at most 1; a kind that it leaves out has 1. Ranks
    that share a GPU are together ``sharing_gain`` times as fast as one alone.
    """
    of_device = {device.id: device.node if device.kind == VIRTUAL_KIND else device.id for device in cluster.devices}
    kinds = {of_device[device.id]: device.kind for device in cluster.devices}
    ranks = {name: cores if kind == VIRTUAL_KIND else speeds.get(kind, 1.0) for name, kind in kinds.items()}
    return Domains(of_device, ranks, {name: sharing_gain for name, kind in kinds.items() if kind != VIRTUAL_KIND})


class Progress:
    """Running gangs with the seconds that each still needs alone on its devices. ``now`` never goes back."""

    def __init__(self, domains: Domains, now: float = 0.0) -> None:
        self._domains, self.now = domains, now
        self._ranks: dict[str, dict[str, float]] = {}  # gang → its ranks by domain
        self._in: dict[str, dict[str, float]] = {}  # domain → gang → ranks
        self._load: defaultdict[str, float] = defaultdict(float)
        self._left: dict[str, float] = {}  # seconds alone that are left at ``_since``
        self._since: dict[str, float] = {}
        self._slow: dict[str, float] = {}
        self._end_of: dict[str, float] = {}  # as long as no other begins or ends
        self._ends: list[tuple[float, int, str]] = []  # outdated entries stay until they come up
        self._valid: dict[str, int] = {}
        self._count = 0

    def __contains__(self, gang: object) -> bool:
        return gang in self._left

    def __iter__(self) -> Iterator[str]:
        return iter(self._left)

    def __len__(self) -> int:
        return len(self._left)

    def start(self, gang: str, devices: Sequence[str], seconds: float, samples: Sequence[int] = ()) -> None:
        """Begin a gang that needs this many seconds alone on devices at full speed; see ``Domains.of``."""
        assert gang not in self._left, f"gang {gang} runs already"
        self._ranks[gang] = ranks = self._domains.of(devices, samples)
        self._left[gang], self._since[gang], self._slow[gang] = seconds, self.now, math.nan
        for domain, number in ranks.items():
            self._in.setdefault(domain, {})[gang] = number
            self._load[domain] += number
        self._retime(ranks)

    def stop(self, gang: str) -> float:
        """Remove a gang, and return the seconds that it would still need alone."""
        self._settle(gang)
        left = self._left.pop(gang)
        for table in (self._since, self._slow, self._valid, self._end_of):
            table.pop(gang)
        ranks = self._ranks.pop(gang)
        for domain, number in ranks.items():
            del self._in[domain][gang]
            self._load[domain] -= number
        self._retime(ranks)
        return left

    def left(self, gang: str) -> float:
        """Seconds that the gang still needs alone on its devices."""
        self._settle(gang)
        return self._left[gang]

    def seconds_until(self, gang: str, left: float) -> float:
        """Seconds from now until the gang needs only ``left`` seconds alone, if no other begins or ends."""
        return max(0.0, self.left(gang) - left) * self._slow[gang]

    def end_of(self, gang: str) -> float:
        """When the gang ends, if no other begins or ends."""
        return self._end_of[gang]

    @property
    def next_end(self) -> float:
        """When the next gang ends; infinite if none runs."""
        while self._ends and self._valid.get(self._ends[0][2]) != self._ends[0][1]:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else math.inf

    def ended(self) -> list[str]:
        """The gangs that have ended by now, in the order in which they ended. They run until ``stop``."""
        gangs = []
        while self.next_end <= self.now:
            _, _, gang = heapq.heappop(self._ends)
            self._left[gang], self._since[gang] = 0.0, self.now
            gangs.append(gang)
        return gangs

    def _settle(self, gang: str) -> None:
        passed = self.now - self._since[gang]
        if passed:
            self._left[gang] = max(0.0, self._left[gang] - passed / self._slow[gang])
            self._since[gang] = self.now

    def _retime(self, domains: Iterable[str]) -> None:
        """Find the new ends of all gangs in these domains whose speed has changed."""
        for gang in dict.fromkeys(gang for domain in domains for gang in self._in[domain]):
            slow = max(self._domains.slow_down(domain, self._load[domain]) for domain in self._ranks[gang])
            if slow == self._slow[gang]:
                continue
            self._settle(gang)
            self._slow[gang] = slow
            self._count += 1
            self._valid[gang] = self._count
            self._end_of[gang] = end = self.now + self._left[gang] * slow
            heapq.heappush(self._ends, (end, self._count, gang))
