"""Limits that the hints in a model set on its plans: degrees of the parallel axes, and the number of micro-batches.

``workloads.parallel.constraints`` reads them from the model, they travel with its ``Divisions``, and the planner obeys
them. Each limit keeps the hint and the module that it comes from, so that a reason can name them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from estimators.axes import Spread

Name = Literal["shares", "divided", "tp", "pp", "spatial", "micro_batches"]

STAGE = "stage"
"""The hint that marks the first block of each stage: one stage on each rank, cut evenly."""
REDUCE = "reduce"
"""Stands for the hint in limits that the candidate sets by its option ``reduce``."""

_WORDS: dict[Name, tuple[str, str]] = {
    "shares": ("data parallelism", "data parallelism of degree {}"),
    "divided": ("ranks that divide layers", "{} ranks that divide layers"),
    "tp": ("tensor parallelism", "tensor parallelism of degree {}"),
    "pp": ("a pipeline", "a pipeline of {} stages"),
    "spatial": ("slabs of space", "{} slabs of space"),
    "micro_batches": ("micro-batches", "{} micro-batches"),
}
"""Words for any number of at least two, and for a given number."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A number that plans must have from ``least`` to ``most`` of; with ``most`` None there is no upper limit.

    ``name`` says of what: ``shares`` of the batch (data-parallel ranks, whether they hold whole models or shards),
    ranks that have a part of ``divided`` layers, an axis of ``Spread``, or ``micro_batches`` of a pipeline. ``hint``
    and ``place`` say in words where it comes from.
    """

    name: Name
    least: int
    most: int | None
    hint: str
    place: str

    def allows(self, number: int) -> bool:
        """Whether plans may have ``number`` of it."""
        return self.least <= number and (self.most is None or number <= self.most)

    @property
    def words(self) -> str:
        """The limit, such as ``tensor parallelism of degree 4``."""
        wording, exactly = _WORDS[self.name]
        if self.most is None:
            return wording
        return f"no {wording.removeprefix('a ')}" if self.most == 1 else exactly.format(self.most)


@dataclass(frozen=True, slots=True)
class PlanConstraints:
    """All limits of a model; a plan must be within each. ``adasum``: its replicas must combine updates by it."""

    limits: tuple[Limit, ...] = ()
    adasum: bool = False

    def allow(self, way: Spread) -> bool:
        """Whether ranks may be spread in this way."""
        shares = way.num_shares
        if any(limit.hint == STAGE for limit in self.limits) and (way.cut or way.num_stages != way.pp):
            return False  # its stages would begin at other blocks than those that the model marks
        divided = shares if way.divided else 1
        return way.adasum == self.adasum and self.allow_degrees(shares, way.tp, way.pp, way.spatial, divided)

    def allow_degrees(self, shares: int, tp: int = 1, pp: int = 1, spatial: int = 1, divided: int = 1) -> bool:
        """Whether a plan may have these degrees; ``shares`` is the number of data-parallel ranks."""
        degrees = {"shares": shares, "tp": tp, "pp": pp, "spatial": spatial, "divided": divided}
        return all(limit.allows(degrees[limit.name]) for limit in self.limits if limit.name in degrees)

    def allow_micro_batches(self, number: int) -> bool:
        """Whether a pipeline may have this many micro-batches."""
        return all(limit.allows(number) for limit in self.limits if limit.name == "micro_batches")

    def least(self, name: Name) -> int:
        """The fewest that a plan must have of ``name``."""
        return max((limit.least for limit in self.limits if limit.name == name), default=1)

    @property
    def least_shares(self) -> int:
        """The fewest data-parallel ranks of a plan."""
        return max(self.least("shares"), self.least("divided"))

    @property
    def least_ranks(self) -> int:
        """The fewest ranks of a plan."""
        return self.least_shares * self.least("tp") * self.least("pp") * self.least("spatial")

    @property
    def words(self) -> str:
        """The limits and the hints that they come from, such as ``the model asks for tensor parallelism of degree 4
        (hint split at blocks)``; empty without limits."""
        hinted = [limit for limit in self.limits if limit.hint != REDUCE]
        sources = dict.fromkeys((limit.hint, limit.place) for limit in hinted)
        hints_in_words = [
            f"{_joined_with_and(limit.words for limit in hinted if (limit.hint, limit.place) == source)} "
            f"(hint {source[0]} at {source[1]})"
            for source in sources
        ]
        if self.adasum:
            hints_in_words.append(f"Adasum over {self.least('shares')} whole replicas ({REDUCE}: adasum)")
        return f"the model asks for {_joined_with_and(hints_in_words)}" if hints_in_words else ""


UNCONSTRAINED = PlanConstraints()


def _joined_with_and(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
