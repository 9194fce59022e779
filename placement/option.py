"""One plan of a candidate with its cost: the answer of both searches for plans, ``planning`` and ``exact``.

It says how its bytes are known, whether they fit the devices, and if not, why it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import inf

from estimators.model import Plan, Prediction, mib_in_words
from placement.refinement import NO_REFINEMENT, Refinement


class Evidence(Enum):
    """How the bytes of an option are known."""

    TRACED = "traced"
    """By the traces of its layouts."""
    AT_LEAST = "at least"
    """By the trace of one micro-batch, which already needs too much: several were not examined."""
    STATES = "states"
    """From the model states alone, which are too large: nothing was traced."""
    UNITS = "units"
    """Added up from the costs of the model's units, which is rough: nothing was traced."""


@dataclass(frozen=True, slots=True)
class Option:
    """A plan and its cost. ``prediction`` is for the rank that needs most, and its device offers ``offered_mib``.

    ``seconds`` are those of an optimizer step, None where they are not known; ``communication_share`` of them (0 to 1)
    ranks wait for messages and collectives, and ``bubble_share`` for others to compute. ``relative_device_seconds`` are
    ranks × seconds over those of the plan that was chosen among several options, on the devices' speed or, if it is not
    known, on an assumed one. ``refinement`` is what the exact search adds to the plan; the planner of studies adds
    nothing. Where ranks do not train it yet, ``plan`` is the nearest one that they train, with as many ranks and
    micro-batches.
    """

    plan: Plan
    prediction: Prediction
    offered_mib: int
    evidence: Evidence = Evidence.TRACED
    seconds: float | None = None
    communication_share: float | None = None
    relative_device_seconds: float | None = None
    bubble_share: float | None = None
    refinement: Refinement = NO_REFINEMENT

    @property
    def trained(self) -> Plan | None:
        """The plan, if ranks train exactly this option today; otherwise None."""
        return self.plan if self.refinement.is_trained else None

    @property
    def comparable_seconds(self) -> float:
        """Seconds of a step to six digits, as sums of the same numbers differ by rounding; infinite if not known."""
        return inf if self.seconds is None else float(f"{self.seconds:.6g}")

    @property
    def device_seconds(self) -> float | None:
        """Ranks × seconds of a step; None where these are not known."""
        return None if self.seconds is None else self.seconds * self.plan.world_size

    @property
    def fits(self) -> bool:
        """Whether one rank's reservation is within ``offered_mib``."""
        return self.lacking_mib <= 0

    @property
    def lacking_mib(self) -> int:
        """MiB of one rank's reservation beyond ``offered_mib``; at most 0 if it fits."""
        return self.prediction.reserved_mib - self.offered_mib

    @property
    def is_traced(self) -> bool:
        """Whether its memory comes from a trace."""
        return self.evidence in (Evidence.TRACED, Evidence.AT_LEAST)

    @property
    def is_bound(self) -> bool:
        """Whether the reservation is a lower bound: what was learned from other runs is only an expectation."""
        return self.evidence in (Evidence.AT_LEAST, Evidence.STATES) and not self.prediction.extra_bytes

    @property
    def about(self) -> str:
        """How exact the reservation is, as the word before its MiB in a refusal, with a space; empty if it is exact."""
        return "about " if self.prediction.extra_bytes else "at least " if self.is_bound else ""

    @property
    def learned(self) -> str:
        """How much of the reservation was learned, as the end of a refusal; empty if nothing was."""
        extra_bytes = self.prediction.extra_bytes
        return f", {mib_in_words(extra_bytes)} of it learned" if extra_bytes else ""

    @property
    def words(self) -> str:
        """The plan in words, without the number of micro-batches if it does not fit."""
        if self.trained is None:
            return f"{self.plan.ways}, refined"
        if self.fits:
            return str(self.plan)
        if self.evidence is Evidence.STATES:
            return f"{self.plan.ways}, states alone"
        one_by_one = self.plan if self.plan.pp > 1 else replace(self.plan, num_micro_batches=1)
        return str(one_by_one)

    @property
    def evaluation(self) -> str:
        """Words for an evaluation that needs more memory than a training step; empty if it does not."""
        if self.prediction.needed_bytes == self.prediction.peak_bytes:
            return ""
        size = self.plan.evaluation_micro_batch
        step = f"a training step alone {mib_in_words(self.prediction.peak_bytes)}"
        return f" to evaluate {size} sample{'s' * (size > 1)} at a time ({step})"

    @property
    def refusal(self) -> str:
        """Why it is not taken: what one rank would need, and what devices offer; empty if it fits."""
        if self.fits:
            return ""
        needs = f"one rank would need {self.about}{self.prediction.reserved_mib} MiB{self.learned}{self.evaluation}"
        return f"{self.words}: {needs}, devices offer {self.offered_mib}"

    def __str__(self) -> str:
        needs = f"one rank needs {self.prediction.reserved_mib} MiB{self.evaluation}, devices offer {self.offered_mib}"
        return self.refusal or f"{self.plan}: {needs}"


@dataclass(frozen=True, slots=True)
class NoPlan:
    """No plan fits these devices. ``reason`` names the best plan, and by how much memory per rank it is too large, with
    categories if it was traced."""

    reason: str
