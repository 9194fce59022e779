"""Traits of a candidate's code that rule out plans: one field for each, whose row says which plans, and why.

Whoever finds a trait says in words why the code has it: the trace of the plain layout finds most of them
(``workloads.parallel.traits``), a check of a few samples some, and attempts of the family others. Which plans are left
follows from the traits alone. A new trait is a field here and the check that finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from estimators.model import Layout


@dataclass(frozen=True, slots=True)
class Plans:
    """A kind of plans: ``words`` for them, whether a layout is one of theirs, and what to use ``instead``."""

    words: str
    include: Callable[[Layout], bool]
    instead: str


PIPELINES = Plans("pipelines", lambda layout: layout.pp > 1, "plans with pp=1")
SLABS = Plans("slabs of space", lambda layout: layout.spatial > 1, "plans with spatial=1")
FSDP = Plans(
    "FSDP",
    lambda layout: bool(layout.fsdp_mesh),
    "plans without FSDP: whole replicas (dp_replicate), or ZeRO-1 unless the workload trains in phases",
)
ZERO1 = Plans("ZeRO-1", lambda layout: layout.zero1, "plans with zero1=False")
ADASUM = Plans("Adasum", lambda layout: layout.adasum, "reduce: mean")
SEVERAL_RANKS = Plans("plans of several ranks", lambda layout: layout.world_size > 1, "plans of one rank")
DIVISION = Plans("division of the batch", lambda layout: layout.divides_batch, "plans that do not divide a batch")
MICRO_BATCHES = Plans("micro-batches", lambda layout: layout.accumulate, "plans with one micro-batch")
PARTS_OF_SAMPLES = Plans(
    "division of the batch or of samples",
    lambda layout: layout.divides_batch or layout.spatial > 1,
    "plans of one rank and one micro-batch, or change it in on_step",
)
PARTS_OF_PARAMETERS = Plans(
    "FSDP and tensor parallelism",
    lambda layout: bool(layout.fsdp_mesh) or layout.tp > 1,
    "another optimizer, such as AdamW, or plans that keep parameters whole, such as ZeRO-1",
)
SUMS_OF_GRADIENTS = Plans(
    "FSDP and replicas",
    lambda layout: bool(layout.fsdp_mesh) or layout.has_whole_replicas,
    "sparse=False, plans with dp_replicate=1 and dp_shard=1, or divided=true and a Divided that names it",
)
SUMS_OF_TABLES = Plans(
    "FSDP and replicas that do not divide tables",
    lambda layout: SUMS_OF_GRADIENTS.include(layout) and not layout.divided,
    "sparse=False, or plans with divided=true, or with dp_replicate=1 and dp_shard=1",
)
SEVERAL_STAGES = Plans("stages that take turns on a rank", lambda layout: len(layout.stages) > 1, "1f1b or gpipe")


def _row(*ruled_out: tuple[Plans, str]) -> Any:
    return field(default="", metadata={"ruled_out": ruled_out})


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The traits of a candidate's code: each is empty, or says in words why the code has it.

    A row has the plans that the trait rules out, and the words by which a refusal continues after those. Without such
    words they say everything.
    """

    couples_samples: str = _row((DIVISION, ""))
    """The loss, a gradient or what steps keep depends on how a batch is divided."""
    couples_micro_batch: str = _row((MICRO_BATCHES, ""))
    """The loss depends on which samples are in a micro-batch, on whichever ranks."""
    evaluates_whole: str = _row()
    """A metric may depend on how samples are divided, so evaluations have micro-batches of all samples of a step."""
    keeps_samples: str = _row((PARTS_OF_SAMPLES, "so it would depend on how ranks and micro-batches divide a batch"))
    changes_state: str = _row((SEVERAL_STAGES, "and several stages take turns on a rank"))
    repeats_backward: str = _row((FSDP, "and FSDP frees parameters after the first time"))
    has_complex_copies: str = _row((FSDP, "whose imaginary parts FSDP would drop"))
    has_phases: str = _row(
        (PIPELINES, "and a pipeline runs one loss through its stages"),
        (ZERO1, "and ZeRO-1 divides the states of one optimizer"),
        (ADASUM, "and Adasum combines one update a step"),
    )
    has_several_optimizers: str = _row(
        (ZERO1, "and ZeRO-1 divides the updates of one"), (ADASUM, "and Adasum combines the updates of one")
    )
    has_own_optimizer: str = _row(
        (ZERO1, "and ZeRO-1 gives each rank only a part of its states"),
        (PIPELINES, "and each rank of a pipeline has only those of its stages"),
    )
    updates_whole_parameters: str = _row((PARTS_OF_PARAMETERS, "of which a rank has only a part"))
    has_sparse_gradients: str = _row(
        (SUMS_OF_GRADIENTS, "and ranks that train on different samples can only add up dense ones")
    )
    has_sparse_tables: str = _row(
        (SUMS_OF_TABLES, "and ranks that train on different samples can only add up dense ones")
    )
    """All layers with sparse gradients are tables that ranks may divide."""
    needs_one_rank: str = _row((SEVERAL_RANKS, ""))
    """Ranks cannot keep parts of the model in step."""
    summarizes: str = _row((SLABS, "of which ranks that divide space have slabs"))
    illustrates: str = _row(
        (PIPELINES, "of which each rank has only some stages"), (SLABS, "of whose samples each rank has only slabs")
    )

    def __or__(self, other: Traits) -> Traits:
        """The traits of both; where both have one, the words of this one."""
        return Traits(**{item.name: getattr(self, item.name) or getattr(other, item.name) for item in fields(self)})

    @property
    def words(self) -> list[str]:
        """Each trait with the plans that it rules out, such as ``no pipelines, ZeRO-1: …``."""
        kinds: dict[str, list[str]] = {}
        for plans, why, _ in _ruled_out(self):
            kinds.setdefault(why, []).append(plans.words)
        return [f"no {', '.join(words)}: {why}" for why, words in kinds.items()]

    def ruling_out(self, layout: Layout) -> Iterator[tuple[Plans, str, str]]:
        """Yield the kinds of plans that are ruled out and include ``layout``, each with the trait and the refusal."""
        return (row for row in _ruled_out(self) if row[0].include(layout))

    def refusal(self, layout: Layout) -> str:
        """Why no plan may use ``layout``; empty if one may."""
        return next((refusal for _, _, refusal in self.ruling_out(layout)), "")


@lru_cache(maxsize=1024)
def _ruled_out(traits: Traits) -> Sequence[tuple[Plans, str, str]]:
    """The kinds of plans that are ruled out, each with the trait and the refusal; a planner asks thousands of times."""
    return [
        (plans, why, f"{why}, {because}: use {plans.instead}" if because else why)
        for item in fields(traits)
        if (why := getattr(traits, item.name))
        for plans, because in item.metadata["ruled_out"]
    ]


NO_TRAITS = Traits()
