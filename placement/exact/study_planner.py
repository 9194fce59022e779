"""Chooses the plan of a study's candidate among all that ``scamp plan`` lists: pipelines of any cut and order as well.

``planning.planner`` chooses among ways that differ in degrees. The plans here differ within one: the exact search and
simulated pipelines find them by the costs of units, and the planner treats the fastest of them as further rows. So a
plan that only these know is traced and compared as all others are. On devices of unlike speed or memory, ranks may take
unlike shares of the batch as well (``traced_shares``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from estimators.devices.assumed import ASSUMED_CPU, ASSUMED_LINKS
from estimators.devices.kind import DeviceKind
from placement.exact.best_plans import ExactSearch
from placement.exact.pipelines import list_pipelines
from placement.exact.traced_shares import with_shares
from placement.option import Option
from placement.planning.answers import Answer
from placement.planning.planner import choose
from placement.planning.question import Question, degrees

MOST_REFINED = 2
"""Most pipelines that are added for each number of ranks: each needs a trace of every stage."""
_MOST_KEPT = 64  # candidates of one structure share the search

_Key = tuple[object, ...]


class StudyPlanner:
    """The planner of studies. It keeps what it found for the last structures, batches and devices."""

    def __init__(self) -> None:
        self._kept: dict[_Key, tuple[DeviceKind | None, tuple[Option, ...]]] = {}

    def __call__(self, question: Question) -> Answer:
        """The answer of ``planning.planner.choose``, to which refined plans are given, or a plan of unlike shares."""
        return with_shares(question, choose(self.refined(question)))

    def refined(self, question: Question) -> Question:
        """The question with refined plans to choose from; without any if the study gives the plan, or if the model
        cannot be cut."""
        profile, kind = question.profile, question.kind
        if question.plan is not None or profile.divisions.most_stages == 1 or not profile.units:
            return question
        sizes = tuple(sorted((device.kind, device.capacity_mib) for device in question.cluster.devices))
        key = profile.structure, profile.divisions, profile.traits, question.batch, sizes
        refined = self._kept.get(key)
        if refined is None or refined[0] != kind:
            while len(self._kept) >= _MOST_KEPT:
                self._kept.pop(next(iter(self._kept)), None)
            refined = self._kept[key] = kind, refined_options(question)
        return replace(question, refined=refined[1])


def refined_options(question: Question) -> tuple[Option, ...]:
    """The fastest pipelines that ranks train and that fit by their units, for each number of ranks.

    Seconds are those of ranks that have their devices for themselves, on a CPU or over links that are assumed where
    nothing is known of them, as the planner compares them.
    """
    kind = question.kind or ASSUMED_CPU
    alone = replace(question, kind=replace(kind, cores=None, links=kind.links or ASSUMED_LINKS))
    options = {option.plan: option for option in _pipelines(alone) if _may_be_chosen(option, question)}
    fastest = sorted(options.values(), key=lambda option: option.comparable_seconds)
    numbers = [num for num, _ in degrees(question.cluster)]
    on_each = ((option for option in fastest if option.plan.world_size == num) for num in numbers)
    return tuple(option for options in on_each for option in islice(options, MOST_REFINED))


def _may_be_chosen(option: Option, question: Question) -> bool:
    is_trained = option.trained is not None and not any(map(question.profile.refusal, option.plan.layouts))
    return is_trained and option.fits and question.constraints.allow(option.plan)


def _pipelines(question: Question) -> Iterator[Option]:
    """Yield pipelines of every order, and those of 1F1B with any cut, degrees and recompute."""
    yield from list_pipelines(question)
    kinds = {device.kind for device in question.cluster.devices}
    if len(kinds) == 1 and question.kind is not None:
        search = ExactSearch(question, dict.fromkeys(kinds, question.kind))
        yield from (option for option in search.best() if option.plan.pp > 1)
