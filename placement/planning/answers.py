"""The answers to a question: a chosen plan, a layout that must be traced first, or that no plan fits."""

from __future__ import annotations

from dataclasses import dataclass

from estimators.model import Layout, Plan, Prediction
from placement.option import NoPlan, Option


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """The most preferred plan that fits, its cost per rank, and the reason why the one preferred to it was refused.

    ``options`` are cheaper ones that by their units are far too large, then those that were examined, this plan's last,
    and then those on more ranks that would be faster, the one with the fewest ranks first. Only examined ones were
    traced.
    """

    plan: Plan
    prediction: Prediction
    reason: str
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Untraced:
    """The decision needs the peak curve of this layout: add it to the profile and ask again."""

    layout: Layout


Answer = ChosenPlan | Untraced | NoPlan
