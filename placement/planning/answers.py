"""The answers to a question: a chosen plan, a layout that must be traced first, or that no plan fits."""

from __future__ import annotations

from dataclasses import dataclass

from estimators.model import Layout, Plan, Prediction
from placement.option import NoPlan, Option


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """The most preferred plan that fits, its cost per rank, and the reason why the one preferred to it was refused.

    ``options`` are, in this order:

    1. plans that would be cheaper, but whose units alone show that they are far too large; they were not traced;
    2. plans that were traced, the chosen one last;
    3. plans on more ranks that would be faster, the one with the fewest ranks first; they were not traced.

    ``wider`` are options on more ranks that fit by their traces, each faster than the one before.
    """

    plan: Plan
    prediction: Prediction
    reason: str
    options: tuple[Option, ...] = ()
    wider: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Untraced:
    """The decision needs the peak curve of this layout: add it to the profile and ask again."""

    layout: Layout


Answer = ChosenPlan | Untraced | NoPlan
