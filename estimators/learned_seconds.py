"""Learns from earlier trials of a family how many times as long a step takes as predicted, for each kind of way.

A prediction leaves things out: loading of batches, Python, and whatever the calibration of a device misses. How much
depends on the model and on how its ranks divide the work, so factors are learned for a family, a device kind and a kind
of way. Which trials form one family is decided elsewhere.

**The factor** is the median of measured over predicted seconds, one for each trial; half of the family takes longer.
Predictions are taken without what was learned before, so that a factor is never learned from itself. It does not matter
how a run ended: its steps were timed anyway.

**Load.** Ranks share the cores of a host without GPUs, and often its devices, with those of other trials. A prediction
is for a gang alone on its host, and expects its ranks to share the cores among themselves. So a gang as large as the
host takes what was predicted, while a small one takes longer as soon as others run beside it: compared like this, large
gangs would look better than they are. So a factor is relative to a rank that has a core for itself (predicted seconds
without ``sharing``). The planner compares the same seconds, because it assumes that all devices are busy.

**Unknown ways.** A kind of way without enough trials counts as the slowest known one (``factor_for``). What was never
measured is never preferred because of what was learned. As long as a family has run in one kind of way only, all
factors are equal, and the order of plans is that of the predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from estimators.axes import Spread
from estimators.learning import PastAttempt

LEAST_TRIALS = 3
"""Least number of trials whose median is trusted, as in ``learning.LEAST_FOR_BIAS``."""


@dataclass(frozen=True, slots=True)
class SlowDown:
    """Measured over predicted seconds of a step, and the number of trials that it is the median of."""

    factor: float
    num_trials: int


SlowDowns = Mapping[str, SlowDown]
"""Kind of way (``way_kind``) → what was learned. Kinds with too few trials are left out."""


def way_kind(way: Spread) -> str:
    """How ranks divide the work, in words: the part of a way that its error depends on most."""
    if way.world_size == 1:
        return "one rank"
    if way.pp > 1:
        return "pipeline"
    if way.spatial > 1:
        return "space"
    if way.tp > 1:
        return "tensor parallel"
    return "ZeRO-1" if way.zero1 else "Adasum" if way.adasum else "FSDP"


def learn_slow_downs(
    past: Iterable[PastAttempt], device_kind: str, sharing: Callable[[int], float] = lambda num_ranks: 1.0
) -> dict[str, SlowDown]:
    """The factor of each kind of way that at least ``LEAST_TRIALS`` trials were timed in, on this device kind alone.

    ``sharing`` is that of the device kind (``DeviceKind.sharing``). If a trial was timed in several attempts of one
    kind, the last of them counts.
    """
    ratios: dict[str, dict[int, float]] = {}
    for run in past:
        if (ratio := run.step_ratio) is not None and set(run.device_kinds) == {device_kind}:
            ratios.setdefault(way_kind(run.layout), {})[run.trial_id] = ratio * sharing(run.layout.world_size)
    enough = {way: list(trials.values()) for way, trials in ratios.items() if len(trials) >= LEAST_TRIALS}
    return {way: SlowDown(median(way_ratios), len(way_ratios)) for way, way_ratios in enough.items()}


def factor_for(way: Spread, learned: SlowDowns) -> float:
    """How many times as long a way takes as predicted: what its kind has learned, else the slowest known kind."""
    slow_down = learned.get(way_kind(way))
    return slow_down.factor if slow_down else max((other.factor for other in learned.values()), default=1.0)
