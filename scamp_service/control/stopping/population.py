"""Population based training (Jaderberg et al. 2017, arXiv:1711.09846): trials that do badly are replaced by copies of
good ones with changed parameters."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from scamp_service.control.stopping.rule import Continue, Exploit, Pause, Verdict, was_at
from scamp_service.control.stopping.rung import Rung
from scamp_service.model import Trial
from scamp_service.study.spec import StudySpec
from scamp_service.study.stopping import PopulationOptions


@dataclass(frozen=True, slots=True)
class Population:
    """Every ``interval`` steps all members pause; each of the worst ``quantile`` then gives way to one of the best.

    All members are compared at the same step, when the last of them has reached it. So what is decided does not depend
    on who trains faster.
    """

    rungs: tuple[int, ...]
    quantile: float
    seed: int
    unit: str = "step"  # that the study counts, or epoch

    @classmethod
    def of_options(cls, options: PopulationOptions, spec: StudySpec) -> Population:
        """The rule of a study; ``interval`` is rounded up to a report."""
        every, steps = spec.report_every, spec.budget.length
        interval = math.ceil((options.interval or every) / every) * every
        return cls(tuple(range(interval, steps, interval)), float(options.quantile), spec.search.seed, spec.budget.unit)

    def pauses_at(self, number: int) -> tuple[int, ...]:
        """Every rung."""
        return self.rungs

    def judge(self, trial: Trial, rung: int, reported: Mapping[int, Rung], *, is_last: bool) -> Verdict:
        """Wait for all others; then continue, or give way to one of the best. Who does is drawn by the study's seed."""
        peers, step = reported[rung], trial.step
        if not is_last:
            return Pause(f"paused at {self.unit} {step}, until all members of the population are there")
        rank, num_peers = 1 + peers.num_better(trial.number), len(peers)
        num = min(num_peers // 2, max(1, math.floor(num_peers * self.quantile)))
        be, then = was_at(step, rung, self.unit)
        stands = f"{peers.shown(trial.number)} {be} number {rank} of {num_peers}{then}"
        if peers.is_finite(trial.number) and rank <= num_peers - num:
            return Continue(f"continues after {self.unit} {step}: {stands}")
        best = peers.best(num)
        if trial.number in best or not best:
            return Continue(f"continues after {self.unit} {step}: {stands}, and there is none to copy")
        digest = hashlib.sha256(f"exploit/{self.seed}/{trial.number}/{rung}".encode()).digest()
        random.Random(digest).shuffle(best)
        return Exploit(f"gives way at {self.unit} {step}: {stands}, among the last {num}", tuple(best))
