"""The answers of a screening: a plan for each candidate, and how it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from placement.option import NoPlan, Option
from placement.planning.answers import ChosenPlan
from scamp_service.model import Json


@dataclass(frozen=True, slots=True)
class Screened:
    """A candidate, and the plan that a study would choose for it unless one of the ``untried`` fits.

    ``refused`` is the reason why the workload refuses the parameters, or cannot be traced; then there is no ``choice``.
    ``traced`` is the reason why its peaks come from its own traces, at least in part; empty if formulas give them all.
    ``untried`` are plans that by their units may fit and take fewer device-seconds, but whose peaks are not known. If
    there is no plan, one of them may be one.
    """

    params: Json
    batch: int
    choice: ChosenPlan | NoPlan | None = None
    assumed: str = ""
    refused: str = ""
    traced: str = ""
    untried: tuple[Option, ...] = ()

    @property
    def options(self) -> Sequence[Option]:
        """The plans that were examined for the choice, the chosen one last."""
        return self.choice.options if isinstance(self.choice, ChosenPlan) else ()

    @property
    def reason(self) -> str:
        """Why this plan is chosen, and what is assumed, or why there is none."""
        if self.choice is None:
            return self.refused
        is_open = isinstance(self.choice, NoPlan) and self.untried
        others = f"; what may fit, but was not examined: {self.untried[0].plan.ways}" if is_open else ""
        return self.choice.reason + others + self.assumed

    @property
    def known_by(self) -> str:
        """How the peaks are known, in one word: ``formulas`` or ``traces``; empty if the workload refuses it."""
        return "" if self.choice is None else "traces" if self.traced else "formulas"

    @property
    def may_be_cheaper(self) -> bool:
        """Whether a study may choose a plan with fewer device-seconds, or find one where there is none here."""
        return bool(self.untried)

    def to_json(self) -> dict[str, Any]:
        """One candidate of ``scamp screen --json``."""
        chosen = self.choice if isinstance(self.choice, ChosenPlan) else None
        return {
            "params": dict(self.params),
            "batch": self.batch,
            "refused": self.refused,
            "plan": chosen.plan.to_json() if chosen else None,
            "peak_bytes": chosen.prediction.peak_bytes if chosen else None,
            "reserved_mib": chosen.prediction.reserved_mib if chosen else None,
            "reason": self.reason,
            "known_by": self.known_by,
            "may_be_cheaper": self.may_be_cheaper,
            "untried": [option.plan.to_json() for option in self.untried],
            "options": [
                {
                    "plan": option.plan.to_json(),
                    "fits": option.fits,
                    "lower_bound": option.is_bound,
                    "peak_bytes": option.prediction.peak_bytes,
                    "reserved_mib": option.prediction.reserved_mib,
                }
                for option in self.options
            ],
        }


@dataclass(frozen=True, slots=True)
class Screening:
    """All candidates in their order, and the numbers of traces that were made for formulas and to check them."""

    candidates: Sequence[Screened]
    num_examples: int
    num_checked: int
