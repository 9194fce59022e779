"""Decides which candidates may share a blueprint, and which of them to trace as examples. Pure: it traces nothing."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from estimators.model import Layout
from estimators.scaling.blueprint import SAMPLES, Blueprint
from estimators.scaling.example import NoBlueprint
from estimators.scaling.formula import RANKS, SPARE, Points, Solver
from scamp_service.model import Json
from scamp_service.sizing.traces import NUMBERS

EXAMPLE_DEPTHS = (5, 6, 7)
CHECKED_DEPTH = 8  # most blocks of a candidate that is traced in full to check a blueprint
_MICRO_BATCHES = (2, 3, 5, 8, 16, 32, 64)
_RATES = NUMBERS | {"batch"}


@dataclass(frozen=True, slots=True)
class Group:
    """Candidates with the same settings. ``sizes`` are the names of the whole numbers in which they differ."""

    settings: Json
    sizes: tuple[str, ...]
    members: tuple[int, ...]  # keys of the candidates


def grouped(candidates: Mapping[int, Json]) -> list[Group]:
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
        groups.append(Group(settings, tuple(differ), tuple(members)))
    return groups


def parted(group: Group, size: str, candidates: Mapping[int, Json]) -> list[Group]:
    """Split a group into one for each value of ``size``, which becomes a setting."""
    by_value: dict[int, list[int]] = {}
    for key in group.members:
        by_value.setdefault(candidates[key][size], []).append(key)
    sizes = tuple(name for name in group.sizes if name != size)
    return [Group({**group.settings, size: value}, sizes, tuple(keys)) for value, keys in by_value.items()]


def _is_rate(name: str, value: Any) -> bool:
    """Whether a parameter changes no size on a rank. The batch is one: the planner decides how to divide it."""
    return isinstance(value, float) or name in _RATES


def _is_size(name: str, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0 and name not in _RATES


def _sign(value: Any) -> Any:
    return (value > 0) - (value < 0) if isinstance(value, int | float) else value


@dataclass(frozen=True, slots=True)
class Task:
    """A group's members and the numbers of ranks to predict. ``depth`` is the size that is the number of blocks."""

    group: Group
    members: Sequence[Json]
    gangs: Sequence[int]
    depth: str | None

    def examples(self, kind: Layout) -> list[Json]:
        """Examples to trace under a layout like ``kind``; see ``points_of``."""
        sizes = [name for name in self.group.sizes if name != self.depth]
        return points_of(self.members, sizes, self.gangs if kind.dp_shard > 1 else (), self.depth)

    def columns(self, points: Sequence[Json], kind: Layout) -> Points:
        """Values of all variables at these points, under a layout like ``kind``."""
        return columns(points, [*self.group.sizes, SAMPLES, *([RANKS] if kind.dp_shard > 1 else [])])

    def to_check(self, kind: Layout, blueprint: Blueprint) -> Json:
        """A candidate to trace in full: a random one, with few blocks if possible, because full traces are slow."""
        chance = random.Random(str(kind))
        ranks = {RANKS: chance.choice(self.gangs)} if kind.dp_shard > 1 else {}
        predicted = blueprint.predicts(columns([{**one, **ranks} for one in self.members], [*self.group.sizes, *ranks]))
        usable = [one for one, is_predicted in zip(self.members, predicted, strict=True) if is_predicted]
        point = {**chance.choice(usable or self.members), **ranks, SAMPLES: chance.choice((1, 2, 7))}
        return point | ({self.depth: min(point[self.depth], CHECKED_DEPTH)} if self.depth else {})


def points_of(
    candidates: Sequence[Json], sizes: Sequence[str], degrees: Sequence[int], depth: str | None = None
) -> list[Json]:
    """As many candidates as formulas need, each with a value of ``SAMPLES`` and, with ``degrees``, of ``RANKS``.

    ``sizes`` are the sizes that matter; ``depth``, which is not one of them, is set to a few blocks. The smallest and
    the largest value of every size are included, because formulas hold only between them. Raises ``NoBlueprint`` when
    the candidates do not separate the effects of their sizes.
    """
    dealt: dict[str, Sequence[int]] = {SAMPLES: _MICRO_BATCHES}
    # Both ends first, as there may be more degrees than examples.
    dealt |= {RANKS: list(dict.fromkeys([degrees[0], degrees[-1], *degrees]))} if degrees else {}
    dealt |= {depth: EXAMPLE_DEPTHS} if depth else {}
    num = len(sizes) + len(dealt) + 1 + SPARE
    for seed in range(20):
        chance = random.Random(seed)
        different = _extremes(candidates, sizes, num, chance)
        chosen = [different[place % len(different)] for place in range(num)]
        oddest = min(range(num), key=lambda place: math.prod(_power_of_two(chosen[place][name]) for name in sizes))
        for name, values in dealt.items():
            mixed = [values[place % len(values)] for place in range(num)]
            chance.shuffle(mixed)
            if name == RANKS:  # shards that have to be rounded up
                most = mixed.index(max(mixed))
                mixed[most], mixed[oddest] = mixed[oddest], mixed[most]
            chosen = [{**one, name: value} for one, value in zip(chosen, mixed, strict=True)]
        try:
            Solver(columns(chosen, [*sizes, *dealt]))
        except ValueError as error:
            reason = str(error)
            continue
        return chosen
    raise NoBlueprint(reason)


def _extremes(candidates: Sequence[Json], sizes: Sequence[str], num: int, chance: random.Random) -> list[Json]:
    """Up to ``num`` candidates that differ in these sizes, first those with the smallest, largest and oddest values."""
    left = list({tuple(one[name] for name in sizes): one for one in candidates}.values())
    chance.shuffle(left)
    wanted = {(name, side(one[name] for one in left)) for name in sizes for side in (min, max)}
    wanted |= {(name, min((one[name] for one in left), key=_power_of_two)) for name in sizes}
    chosen: list[Json] = []
    while left and len(chosen) < num:
        best = max(left, key=lambda one: sum((name, one[name]) in wanted for name in sizes))
        left.remove(best)
        wanted -= {(name, best[name]) for name in sizes}
        chosen.append(best)
    return chosen


def _power_of_two(number: int) -> int:
    """Largest power of two that divides the number."""
    return number & -number


def columns(points: Sequence[Json], names: Sequence[str]) -> Points:
    """Values of the points by variable."""
    return {name: np.array([point[name] for point in points], dtype=np.int64) for name in names}
