"""Seconds of a simulated pipeline whose ranks share the cores of one host, as ranks on virtual devices do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import accumulate, pairwise

from estimators.devices.kind import DeviceKind
from placement.pipelining.simulator import Simulation


def seconds_on(simulation: Simulation, kind: DeviceKind) -> float:
    """Seconds of a step that was simulated as if each rank had a device for itself."""
    return shared_clock(simulation, kind.sharing)[-1][1]


def shared_clock(simulation: Simulation, sharing: Callable[[int], float]) -> list[tuple[float, float]]:
    """The (simulated seconds, seconds on shared cores) at which any rank begins or ends a pass, ascending.

    ``sharing`` says how many times as long ranks take while several compute (see ``DeviceKind.sharing``). Ranks
    that wait take no core. The order of events is assumed to stay the same.
    """
    changes: Counter[float] = Counter()
    for interval in simulation.computing:
        changes[interval.start_seconds] += 1
        changes[interval.end_seconds] -= 1
    times = sorted({0.0, *changes})
    num_computing = accumulate(changes[time] for time in times)
    spans = zip(pairwise(times), num_computing, strict=False)  # nothing follows the last change
    passed = accumulate(((end - start) * sharing(num) for (start, end), num in spans), initial=0.0)
    return list(zip(times, passed, strict=True))
