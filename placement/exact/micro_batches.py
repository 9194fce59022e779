"""Limits of the exact search on the numbers of micro-batches of a pipeline."""

from __future__ import annotations

from estimators.constraints import PlanConstraints
from placement.planning.question import divisors

MOST_FOR_A_STAGE = 8
"""Most micro-batches for each stage of a pipeline: its bubble is then at most 1/9 of the step."""
MOST_BY_FLOPS = 4
"""The limit where FLOPs stand for time: they do not show that a device is slower with small micro-batches."""
MOST_PASSES = 4096
"""Most micro-batches × stages: plans are simulated, and a simulation of this many passes takes up to a second."""


def numbers(samples: int, num_stages: int, constraints: PlanConstraints, *, by_flops: bool) -> list[int]:
    """Numbers of micro-batches to try for a pipeline, the largest first: at least one for each stage.

    They divide ``samples``. ``by_flops``: FLOPs stand for time.
    """
    most = num_stages * (MOST_BY_FLOPS if by_flops else MOST_FOR_A_STAGE)
    most = max(most, constraints.least("micro_batches"))
    usable = (num for num in divisors(samples) if num_stages <= num <= most)
    return [num for num in usable if constraints.allow_micro_batches(num)]
