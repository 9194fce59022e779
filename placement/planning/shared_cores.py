"""Seconds of a simulated pipeline whose ranks share the cores of one host, as ranks on virtual devices do."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, pairwise

from estimators.devices.kind import DeviceKind
from placement.planning.simulator import Simulation


def seconds_on(simulation: Simulation, kind: DeviceKind) -> float:
    """Seconds of a step that was simulated as if each rank had a device for itself.

    While more ranks compute than there are cores, all of them take longer (``DeviceKind.sharing``). Ranks that wait
    take no core. The order of events is assumed to stay the same.
    """
    changes: Counter[float] = Counter()
    for interval in simulation.computing:
        changes[interval.start_seconds] += 1
        changes[interval.end_seconds] -= 1
    times = sorted({0.0, *changes})
    num_computing = accumulate(changes[time] for time in times)
    spans = zip(pairwise(times), num_computing, strict=False)  # nothing follows the last change
    return sum((end - start) * kind.sharing(num) for (start, end), num in spans)
