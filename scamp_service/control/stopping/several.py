"""The stopping rules of a study that has several, or none: any of them may stop a trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scamp_service.control.stopping.rule import Complete, Continue, Exploit, Pause, Stop, StoppingRule, Verdict
from scamp_service.control.stopping.rung import Rung
from scamp_service.model import Trial


@dataclass(frozen=True, slots=True)
class Several:
    """A trial ends when one of its ``rules`` ends it, and continues when none of them ends or pauses it. Without rules
    it is never judged."""

    rules: tuple[StoppingRule, ...]

    @property
    def rungs(self) -> tuple[int, ...]:
        """The rungs of all rules."""
        return tuple(sorted({rung for rule in self.rules for rung in rule.rungs}))

    def pauses_at(self, number: int) -> tuple[int, ...]:
        """Every step at which one of the rules pauses the trial."""
        return tuple(sorted({rung for rule in self.rules for rung in rule.pauses_at(number)}))

    def judge(self, trial: Trial, rung: int, reported: Mapping[int, Rung], *, is_last: bool) -> Verdict:
        """The first stop; else the first that completes it, that pauses it, or that lets it continue."""
        verdicts = [rule.judge(trial, rung, reported, is_last=is_last) for rule in self.rules if rung in rule.rungs]
        return next(
            verdict
            for kind in (Stop, Complete, Pause, Exploit, Continue)
            for verdict in verdicts
            if isinstance(verdict, kind)
        )


NO_RULES = Several(())
"""The rule of studies whose early stopping is turned off."""
