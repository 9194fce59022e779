"""Decides which candidates may share a blueprint, and which of them to trace as examples. Pure: it traces nothing."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from estimators.model import Layout
from estimators.scaling.blueprint import Blueprint
from estimators.scaling.example import NoBlueprint
from estimators.scaling.formula import PARTS, RANKS, SAMPLES, SPARE, Points, Solver
from scamp_service.model import Json
from scamp_service.sizing.tracing.traces import NUMBERS

EXAMPLE_DEPTHS = (5, 6, 7)
CHECKED_DEPTH = 8  # most blocks of a candidate that is traced in full to check a blueprint
_MICRO_BATCHES = (2, 3, 5, 8, 16, 32, 64)
_RATES = NUMBERS | {"batch"}


@dataclass(frozen=True, slots=True)
class FormulaGroup:
    """Candidates with the same settings. ``sizes`` are the names of the whole numbers in which they differ."""

    settings: Json
    sizes: tuple[str, ...]
    members: tuple[int, ...]  # keys of the candidates


def grouped(candidates: Mapping[int, Json]) -> list[FormulaGroup]:
    """Groups of candidates that differ only in sizes and rates.

    Sizes are positive whole numbers; rates are floats, and only their sign counts. Any other difference separates
    groups. A rate that changes sizes after all is detected, because no formula fits then.
    """
    by_settings: dict[str, list[int]] = {}
    for key, params in candidates.items():
        settings = {name: _sign(value) if _is_rate(name, value) else value for name, value in params.items()}
        settings = {name: value for name, value in settings.items() if not _is_size(name, value)}
        by_settings.setdefault(json.dumps([settings, sorted(params)], sort_keys=True), []).append(key)
    groups = []
    for text, members in by_settings.items():
        settings, names = json.loads(text)
        first = candidates[members[0]]
        sizes = [name for name in names if _is_size(name, first[name])]
        differ = [name for name in sizes if any(candidates[key][name] != first[name] for key in members)]
        settings |= {name: first[name] for name in sizes if name not in differ}
        groups.append(FormulaGroup(settings, tuple(differ), tuple(members)))
    return groups


def split_by_value(group: FormulaGroup, size: str, candidates: Mapping[int, Json]) -> list[FormulaGroup]:
    """Split a group into one for each value of ``size``, which becomes a setting."""
    by_value: dict[int, list[int]] = {}
    for key in group.members:
        by_value.setdefault(candidates[key][size], []).append(key)
    sizes = tuple(name for name in group.sizes if name != size)
    return [FormulaGroup({**group.settings, size: value}, sizes, tuple(keys)) for value, keys in by_value.items()]


def _is_rate(name: str, value: Any) -> bool:
    """Whether a parameter changes no size on a rank. The batch is one: the planner decides how to divide it."""
    return isinstance(value, float) or name in _RATES


def _is_size(name: str, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0 and name not in _RATES


def _sign(value: Any) -> Any:
    return (value > 0) - (value < 0) if isinstance(value, int | float) else value


def layout_kind_of(layout: Layout) -> Layout | None:
    """The layout that stands for all whose peaks the same formulas give; None for layouts that have no formulas.

    Formulas hold for any number of shards, of tensor-parallel ranks and of replicas (2 stands for it), with and without
    accumulation. The stages of a pipeline and the replicas of ZeRO-1 treat blocks unequally, and have none.
    """
    if not layout.treats_blocks_equally:
        return None
    return replace(
        layout,
        dp_shard=min(2, layout.dp_shard),
        tp=min(2, layout.tp),
        dp_replicate=min(2, layout.dp_replicate),
        accumulate=False,
    )


def variables(layout_kind: Layout) -> list[str]:
    """Names of the degrees that vary within a kind of layouts."""
    return [name for name in (RANKS, PARTS) if getattr(layout_kind, name) > 1]


@dataclass(frozen=True, slots=True)
class Task:
    """A request for formulas of one group of candidates under one kind of layouts.

    ``members`` are candidates of the ``group`` that it can be applied to, each with its ``most_parts``. ``depth`` is
    the size that is the number of blocks. There are up to ``num_devices``. ``points`` are the members whose peaks are
    needed, with their degrees.
    """

    group: FormulaGroup
    layout_kind: Layout
    members: Sequence[Json]
    most_parts: Sequence[int]
    depth: str | None
    num_devices: int
    points: Sequence[Json] = ()

    def examples(self) -> list[Json]:
        """Examples to trace; see ``choose_examples``."""
        sizes = [name for name in self.group.sizes if name != self.depth]
        allowed = dict(zip(map(id, self.members), map(self._degrees, self.most_parts), strict=True))
        return choose_examples(self.members, sizes, lambda member: allowed[id(member)], self.depth)

    def columns(self, points: Sequence[Json]) -> Points:
        """Values of all variables at these points."""
        return columns(points, [*self.group.sizes, SAMPLES, *variables(self.layout_kind)])

    def to_check(self, blueprint: Blueprint, *, accumulate: bool) -> Json:
        """A candidate to trace in full: a random one, with few blocks if possible, because full traces are slow."""
        chance = random.Random(f"{self.layout_kind}{accumulate}")
        degrees = [chance.choice(self._degrees(most)) for most in self.most_parts]
        points = [{**member, **split, SAMPLES: 1} for member, split in zip(self.members, degrees, strict=True)]
        predicted = blueprint.predicts(self.columns(points)) & blueprint.covers(self.columns(points))
        usable = [point for point, is_predicted in zip(points, predicted, strict=True) if is_predicted]
        point = {**chance.choice(usable or points), SAMPLES: chance.choice((1, 2, 7))}
        return point | ({self.depth: min(point[self.depth], CHECKED_DEPTH)} if self.depth else {})

    def _degrees(self, most_parts: int) -> list[dict[str, int]]:
        """Degrees that a candidate with this many parts can be spread by, the smallest and the largest ones first."""
        powers = [1 << power for power in range(1, self.num_devices.bit_length())]
        names = variables(self.layout_kind)
        products = [dict(zip(names, values, strict=True)) for values in itertools.product(powers, repeat=len(names))]
        fitting = [
            degrees
            for degrees in products
            if math.prod(degrees.values()) <= self.num_devices and most_parts % degrees.get(PARTS, 1) == 0
        ]
        ends = {name: {side(degrees[name] for degrees in fitting) for side in (min, max)} for name in names if fitting}
        return sorted(fitting, key=lambda degrees: not any(value in ends[name] for name, value in degrees.items()))


def choose_examples(
    candidates: Sequence[Json],
    sizes: Sequence[str],
    degrees: Callable[[Json], Sequence[Mapping[str, int]]] = lambda member: [{}],
    depth: str | None = None,
) -> list[Json]:
    """The candidates that formulas need as examples, each with a value of ``SAMPLES`` and with some of its ``degrees``.

    ``sizes`` are the sizes that matter; ``depth``, which is not one of them, is set to a few blocks. The smallest and
    the largest value of every size are included, because formulas hold only between them. Raises ``NoBlueprint`` when
    the candidates do not separate the effects of their sizes.
    """
    dealt: dict[str, Sequence[int]] = {SAMPLES: _MICRO_BATCHES} | ({depth: EXAMPLE_DEPTHS} if depth else {})
    candidates = [candidate for candidate in candidates if degrees(candidate)]
    if not candidates:
        raise NoBlueprint("none of them can be spread in this way")
    degree_names = sorted({name for candidate in candidates for split in degrees(candidate) for name in split})
    num = len(sizes) + len(dealt) + len(degree_names) + 1 + SPARE
    for seed in range(40):
        chance = random.Random(seed)
        different = _extremes(candidates, sizes, num, chance)
        chosen = [different[index % len(different)] for index in range(num)]
        taken = _with_degrees(chosen, sizes, [degrees(member) for member in chosen], chance)
        for name, values in dealt.items():
            mixed = [values[index % len(values)] for index in range(num)]
            chance.shuffle(mixed)
            taken = [{**point, name: value} for point, value in zip(taken, mixed, strict=True)]
        try:
            Solver(columns(taken, [*sizes, *dealt, *degree_names]))
        except ValueError as error:
            reason = str(error)
            continue
        return taken
    raise NoBlueprint(reason)


def _with_degrees(
    chosen: Sequence[Json], sizes: Sequence[str], degrees: Sequence[Sequence[Mapping[str, int]]], chance: random.Random
) -> list[Json]:
    """The chosen candidates, each with one of its possible degrees, so that all degrees are used about equally.

    The first to choose is the candidate whose sizes are least divisible: it takes the most shards, so that rounding up
    shows. The second has the most degrees to choose from, and takes the most parts. Each of the others takes the
    degrees that were used least so far.
    """
    used: Counter[tuple[str, int]] = Counter()
    points: dict[int, Json] = {}
    order = sorted(range(len(chosen)), key=lambda place: chance.random())
    oddest = min(order, key=lambda place: math.prod(_power_of_two(chosen[place][name]) for name in sizes))
    widest = max((place for place in order if place != oddest), key=lambda place: len(degrees[place]), default=oddest)
    for place in sorted(order, key=lambda place: (place != oddest, place != widest)):
        splits = degrees[place]
        if place in (oddest, widest):
            name = RANKS if place == oddest else PARTS
            best = max(splits, key=lambda split: split.get(name, 0))
        else:
            best = min(splits, key=lambda split: sum(used[item] for item in split.items()))
        used.update(best.items())
        points[place] = {**chosen[place], **best}
    return [points[place] for place in range(len(chosen))]


def _extremes(candidates: Sequence[Json], sizes: Sequence[str], num: int, chance: random.Random) -> list[Json]:
    """Up to ``num`` candidates that differ in these sizes, first those with the smallest, largest and oddest values."""
    left = list({tuple(candidate[name] for name in sizes): candidate for candidate in candidates}.values())
    chance.shuffle(left)
    ends = {(name, side(candidate[name] for candidate in left)) for name in sizes for side in (min, max)}
    ends |= {(name, min((candidate[name] for candidate in left), key=_power_of_two)) for name in sizes}
    chosen: list[Json] = []
    while left and len(chosen) < num:
        best = max(left, key=lambda candidate: sum((name, candidate[name]) in ends for name in sizes))
        left.remove(best)
        ends -= {(name, best[name]) for name in sizes}
        chosen.append(best)
    return chosen


def _power_of_two(number: int) -> int:
    """Largest power of two that divides the number."""
    return number & -number


def columns(points: Sequence[Json], names: Sequence[str]) -> Points:
    """Values of the points by variable."""
    return {name: np.array([point[name] for point in points], dtype=np.int64) for name in names}
