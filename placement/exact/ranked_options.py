"""Puts the options of both searches into one list, the best first, and says what is missing if none of them fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from estimators.model import Plan
from placement.exact.plan_words import in_full, ways_in_words
from placement.option import Option
from placement.pricing.categories import bytes_by_category
from placement.refinement import Pipeline


@dataclass(frozen=True, slots=True)
class Shortage:
    """The plan that comes closest to fitting, if none does: ``needed_mib`` of one rank, and its bytes by category.

    The categories and the margin add up to what is needed, but for rounding.
    """

    text: str
    needed_mib: int
    offered_mib: int
    num_bytes: Mapping[str, int]
    is_traced: bool


def by_time(option: Option) -> tuple[bool, float, int, bool]:
    """The better, the smaller: those that fit, then the faster, on fewer ranks, and what ranks can train today."""
    return not option.fits, option.comparable_seconds, option.plan.world_size, option.trained is None


def added(options: Sequence[Option], more: Sequence[Option]) -> list[Option]:
    """The ``options`` and those of ``more`` with other plans; for the same plan only the pipeline to draw is taken."""
    plans = {option.trained for option in options} - {None}
    drawn = {option.trained: option.refinement.pipeline for option in more if option.trained in plans}
    return [
        *(_with_pipeline(option, drawn) for option in options),
        *(option for option in more if option.trained not in plans),
    ]


def _with_pipeline(option: Option, drawn: Mapping[Plan | None, Pipeline | None]) -> Option:
    pipeline = option.refinement.pipeline or drawn.get(option.trained)
    return replace(option, refinement=replace(option.refinement, pipeline=pipeline))


def with_traced_memory(option: Option, traced: Mapping[Plan, Option]) -> Option:
    """The option with the memory that its plan needs by its trace, if it was ``traced``."""
    if option.trained is None or option.trained not in traced:
        return option
    same = traced[option.trained]
    return replace(option, prediction=same.prediction, evidence=same.evidence)


def shortage(options: Sequence[Option], closest: Option | None) -> Shortage | None:
    """The memory that the closest plan lacks; None if there is none.

    It is the one that lacks least, among the ``options`` that were traced and the ``closest`` one of the search. None
    of them fits.
    """
    shortages = [_traced_shortage(option) for option in options if option.is_traced]
    if closest is not None and not closest.fits:
        prediction = closest.prediction
        num_bytes = {**closest.refinement.fullest.bytes_by_category, "margin": prediction.margin_bytes}
        shortages.append(Shortage(in_full(closest), prediction.reserved_mib, closest.offered_mib, num_bytes, False))
    return min(shortages, key=lambda lacking: lacking.needed_mib / lacking.offered_mib, default=None)


def _traced_shortage(option: Option) -> Shortage:
    num_bytes = bytes_by_category(option.prediction)
    return Shortage(ways_in_words(option), option.prediction.reserved_mib, option.offered_mib, num_bytes, True)
