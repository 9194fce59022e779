"""The rule of studies whose early stopping is turned off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scamp_service.control.stopping.rule import Continue, Verdict
from scamp_service.control.stopping.rung import Rung
from scamp_service.model import Trial
from scamp_service.study.spec import StudySpec
from scamp_service.study.stopping import NeverOptions


@dataclass(frozen=True, slots=True)
class NeverStop:
    """Judges no trial: each trains all steps."""

    rungs: tuple[int, ...] = ()

    @classmethod
    def of_options(cls, options: NeverOptions, spec: StudySpec) -> NeverStop:
        """The rule of a study with ``stopping.rule`` none."""
        return cls()

    def pauses_at(self, number: int) -> tuple[int, ...]:
        """No step."""
        return ()

    def judge(self, trial: Trial, rung: int, reported: Mapping[int, Rung], *, is_last: bool) -> Verdict:
        """Let the trial continue."""
        return Continue("the study stops no trial early")
