"""Draws the objective values that simulated trials report, so that stopping rules and samplers have some to judge.

A trial's rank among the others is drawn once, and the same in every report: a better trial is better at each step. How
many trials a rule stops early then follows from the rule. Real curves cross, so a real study may stop others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from scamp_service.study.objectives import Objectives


def drawn_values(objectives: Objectives, seed: int, trial: int, progress: float) -> Mapping[str, float]:
    """A value between 0 and 1 for each measured objective of a trial that has made a share ``progress`` of its steps.

    They improve from report to report, ever more slowly.
    """
    values = {}
    for position, objective in enumerate(objectives.items):
        if objective.metric not in objectives.measured:
            continue
        final = random.Random(f"{seed}/{trial}/{position}").random()
        reached = final * (1 - math.exp(-4 * progress) / 2)
        values[objective.metric] = reached if objective.direction == "maximize" else 1 - reached
    return values
