"""Collects the hints of a model into constraints on its plans, and finds contradictions between them.

Each contradiction names both places: two hints, or a hint and the part of the model that it does not go with. Whether
a batch can be divided as the hints ask is for the planner to say, which knows the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from torch import nn

from estimators.constraints import REDUCE, Limit, Name, PlanConstraints
from estimators.model import Divisions, blocks_of_stage
from scamp.workload.hints import Contradiction, Hint, hints_of
from workloads.options import TrainingOptions
from workloads.parallel.chain import shares_its_parts
from workloads.parallel.exchanging.divided import divisible_layers, num_parts
from workloads.protocol import Chain, Split

_AXES: dict[str, Name] = {"replica": "shares", "split": "tp", "pipeline": "pp", "stage": "pp"}


def constraints_of(model: nn.Module, blocks: Sequence[nn.Module], divisions: Divisions) -> PlanConstraints:
    """The constraints that the hints in ``model`` set on its plans.

    ``blocks`` are those of the model, which can be divided by ``divisions``. Raises ``Contradiction`` for hints that
    exclude each other, or that the model cannot obey.
    """
    names = {id(module): name or "the model" for name, module in model.named_modules()}
    divided = divisible_layers(model)
    placed = [
        _Placed(hint, module, names[id(module)], hint.name == "split" and module in divided)
        for module in model.modules()
        for hint in hints_of(module)
    ]
    if not placed:
        return PlanConstraints()
    hinted = _Hinted(model, blocks, names, placed)
    hinted.check()
    return PlanConstraints(tuple(hinted.limits(divisions)))


def with_reduction(hinted: PlanConstraints, options: TrainingOptions) -> PlanConstraints:
    """``hinted``, the constraints of a model, with those of how a candidate with these options combines updates."""
    if options.reduce != "adasum":
        return hinted
    degrees: tuple[tuple[Name, int], ...] = (("shares", options.adasum_replicas), ("tp", 1), ("pp", 1), ("spatial", 1))
    limits = (Limit(name, degree, degree, REDUCE, "adasum") for name, degree in degrees)
    return replace(hinted, limits=(*hinted.limits, *limits), adasum=True)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A hint, the module that has it, and that module's qualified name.

    ``is_divided``: it asks data-parallel ranks to divide the module, instead of tensor parallelism.
    """

    hint: Hint
    module: nn.Module
    place: str
    is_divided: bool = False

    @property
    def axis(self) -> Name | None:
        """The name of the limit that the hint sets."""
        return "divided" if self.is_divided else _AXES.get(self.hint.name)

    def contains(self, other: _Placed) -> bool:
        """Whether the other hint is on the same module or inside it."""
        return _is_in(other.module, self.module)

    def __str__(self) -> str:
        return f"{self.hint} at {self.place}"


@dataclass(frozen=True, slots=True)
class _Hinted:
    """A model with at least one hint. ``names`` are the qualified names of its modules by their ids."""

    model: nn.Module
    blocks: Sequence[nn.Module]
    names: dict[int, str]
    placed_hints: Sequence[_Placed]

    def check(self) -> None:
        """Raise ``Contradiction`` for hints that exclude each other, or that the model cannot obey."""
        self._check_whole()
        self._check_degrees()
        self._check_nesting()
        for placed in self._all("split"):
            self._check_split(placed)
        for placed in self.placed_hints:
            if placed.is_divided:
                self._check_divided(placed)
        for placed in (*self._all("pipeline"), *self._all("stage")):
            self._check_chain(placed, placed.hint.stages or 2)
        if stages := self._all("stage"):
            self._check_stages(stages)

    def limits(self, divisions: Divisions) -> Iterator[Limit]:
        """Yield the limits that the hints set; equal hints set one, at the place of the first."""
        for hint, axis in dict.fromkeys((placed.hint, placed.axis) for placed in self.placed_hints):
            places = [placed.place for placed in self.placed_hints if (placed.hint, placed.axis) == (hint, axis)]
            source = hint.name, places[0] + (f" and {len(places) - 1} more" if len(places) > 1 else "")
            if axis is None:
                assert hint.strategy is not None
                yield from (Limit(name, 1, 1, *source) for name in self._excluded(hint.strategy, divisions))
                continue
            number = len(self._starts()) if hint.name == "stage" else hint.stages or hint.degree
            yield Limit(axis, number or 2, number, *source)
            if hint.micro_batches is not None:
                yield Limit("micro_batches", hint.micro_batches, hint.micro_batches, *source)

    def _excluded(self, strategy: str, divisions: Divisions) -> list[Name]:
        """Finds what the default ``strategy`` excludes of the ways that the model supports."""
        most: dict[Name, int] = {
            "shares": 2,  # any model can be replicated
            "divided": divisions.most_divided,
            "tp": divisions.most_parts,
            "pp": divisions.most_stages,
            "spatial": divisions.most_slabs,
        }
        axes = {
            _AXES[strategy],
            *(placed.axis for placed in self.placed_hints),
        }
        return [name for name, number in most.items() if number > 1 and name not in axes]

    def _all(self, name: str) -> list[_Placed]:
        return [placed for placed in self.placed_hints if placed.hint.name == name and not placed.is_divided]

    def _name(self, module: nn.Module) -> str:
        return self.names.get(id(module), type(module).__name__)

    def _check_whole(self) -> None:
        """Hints for the whole model are on the model, and are not given twice."""
        for placed in (*self._all("pipeline"), *self._all("default")):
            if placed.module is not self.model:
                reason = "ranks cut" if placed.hint.name == "pipeline" else "a default is for"
                raise Contradiction(
                    f"{placed}: {reason} the whole model, and {placed.place} is a part of it: put the hint on the model"
                )
        for name, reason in (("pipeline", "a model is cut into one pipeline"), ("default", "a model has one default")):
            hints = self._all(name)
            for other in hints[1:]:
                if other.hint != hints[0].hint:
                    raise _between(other, hints[0], f"{reason}: keep one of the two")

    def _check_degrees(self) -> None:
        """All hints to replicate or to split ask for the same degree, as far as they ask for one."""
        for name, reason in (("replica", "train on different samples"), ("split", "divide the layers of each block")):
            with_degree = [placed for placed in self._all(name) if placed.hint.degree is not None]
            for other in with_degree[1:]:
                if other.hint.degree != with_degree[0].hint.degree:
                    why = f"in all parts of a model equally many ranks {reason}: ask for one degree"
                    raise _between(other, with_degree[0], why)
            unnumbered = next((placed for placed in self._all(name) if placed.hint.degree is None), None)
            if with_degree and unnumbered is not None and with_degree[0].hint.degree == 1:
                raise _between(
                    unnumbered, with_degree[0], f"the former wants several ranks to {reason}: drop one of the two"
                )

    def _check_nesting(self) -> None:
        """Replicas hold whole splits, and stages are those of a pipeline that the default allows."""
        for replica, other in product(self._all("replica"), self._all("split")):
            if 1 not in (replica.hint.degree, other.hint.degree) and not replica.contains(other):
                where = "inside" if other.contains(replica) else "next to"
                raise _between(
                    replica,
                    other,
                    "ranks that split layers train on the same samples, so there are no replicas "
                    f"{where} a split: put replica around it, such as on the model",
                )
        for default in self._all("default"):
            if default.hint.strategy != "pipeline" and self._all("stage") and not self._all("pipeline"):
                why = "stages are those of a pipeline: add pipeline on the model, or drop one of the two"
                raise _between(self._all("stage")[0], default, why)
            if default.hint.strategy == "split":
                self._check_split(default)
            if default.hint.strategy == "pipeline":
                self._check_chain(default, 2)

    def _check_divided(self, placed: _Placed) -> None:
        """As many data-parallel ranks as there are divide a layer, each of which has a part of equal size."""
        degree, number = placed.hint.degree or 2, num_parts(placed.module)
        if number % degree:
            raise Contradiction(
                f"{placed}: {degree} ranks cannot divide {number} evenly: ask for a degree that divides it"
            )
        if placed.hint.dim not in (None, 0):
            raise Contradiction(f"{placed}: data-parallel ranks divide outputs: drop dim")
        for replica in self._all("replica"):
            if None not in (replica.hint.degree, placed.hint.degree) and replica.hint.degree != placed.hint.degree:
                raise _between(placed, replica, "the replicas of the rest divide the layer: ask for one degree")

    def _check_split(self, placed: _Placed) -> None:
        """The blocks can be split so, and what is hinted is a part of them or contains them."""
        if placed.hint.degree == 1:
            return
        self._check_blocks(placed, placed.hint.degree or 2)
        around = next(
            (block for block in self.blocks if block is not placed.module and _is_in(placed.module, block)), None
        )
        if around is not None:
            self._check_layers(placed, around)
            return
        first = next((block for block in self.blocks if _is_in(block, placed.module)), None)
        if first is None:
            raise Contradiction(
                f"{placed}: ranks split the layers of blocks alone, and {placed.place} is none of them: put the hint "
                f"on a block, such as {self._name(self.blocks[0])}"
            )
        if placed.hint.dim is not None:
            raise Contradiction(
                f"{placed} contradicts the Split of {self._name(first)}, which divides several layers: dim is for one "
                "linear layer, so drop it or hint at the layer"
            )

    def _check_blocks(self, placed: _Placed, degree: int) -> None:
        """Whether all blocks can be split over this many ranks."""
        if not self.blocks:
            raise Contradiction(
                f"{placed}: the model has no blocks whose layers could be split: return them from `blocks`"
            )
        for block in self.blocks:
            split = getattr(block, "split", None)
            if not isinstance(split, Split):
                raise Contradiction(
                    f"{placed}: {self._name(block)} ({type(block).__name__}) does not say how it is divided: give it "
                    "an attribute `split`, a scamp.Split, or drop the hint"
                )
            if split.most_parts % degree:
                raise Contradiction(
                    f"{placed}: {degree} ranks cannot divide {self._name(block)} evenly, whose Split has "
                    f"most_parts={split.most_parts}: ask for a degree that divides it"
                )

    def _check_layers(self, placed: _Placed, block: nn.Module) -> None:
        """A hint inside a block names layers that its ``Split`` divides, along the same dimension."""
        split, own_name = block.split, placed.place.removeprefix(f"{self._name(block)}.")
        assert isinstance(split, Split)
        along = {None: (*split.columns, *split.rows), 0: split.columns, 1: split.rows}[placed.hint.dim]
        divided = any(
            name == own_name or (placed.hint.dim is None and name.startswith(f"{own_name}.")) for name in along
        )
        if not divided:
            which = {None: "columns and rows", 0: "columns (dim=0)", 1: "rows (dim=1)"}[placed.hint.dim]
            raise Contradiction(
                f"{placed} contradicts the Split of {self._name(block)}, whose {which} are "
                f"{', '.join(along) or 'none'}: hint at one of these, or change the Split"
            )

    def _check_chain(self, placed: _Placed, num_stages: int) -> None:
        """Whether the model can be cut into this many stages."""
        model, name = self.model, type(self.model).__name__
        if not isinstance(model, Chain):
            raise Contradiction(
                f"{placed}: the model ({name}) does not say where a pipeline may cut it: make it a "
                "scamp.Chain, or drop the hint"
            )
        if shares_its_parts(model):
            raise Contradiction(
                f"{placed}: stages of the model ({name}) would share parameters, as the same ones are in two blocks, "
                "in `enters` or in `leaves`: untie them, or drop the hint"
            )
        if len(model.blocks) < num_stages:
            raise Contradiction(
                f"{placed}: {self._name(model.blocks)} has {len(model.blocks)} blocks, too few for {num_stages} stages"
            )

    def _check_stages(self, stages: Sequence[_Placed]) -> None:
        """The stages begin where ranks cut, and there are as many as the pipeline has."""
        assert isinstance(self.model, Chain)
        blocks = list(self.model.blocks)
        for mark in stages:
            if not any(mark.module is block for block in blocks):
                raise Contradiction(
                    f"{mark}: a stage begins with a block, and {mark.place} is none of {self._name(self.model.blocks)}"
                )
        starts, count = self._starts(), len(self._starts())
        for pipeline in self._all("pipeline"):
            if pipeline.hint.stages not in (None, count):
                raise _between(
                    stages[0], pipeline, f"there are {count} stages by the former: give stages={count}, or none"
                )
            if pipeline.hint.micro_batches is not None and pipeline.hint.micro_batches < count:
                raise _between(stages[0], pipeline, f"{count} stages need at least {count} micro-batches")
        if count < 2:
            raise Contradiction(f"{stages[-1]}: a single stage is no pipeline: mark the first blocks of more stages")
        cut = [blocks_of_stage(len(blocks), index, count).start for index in range(count)]
        if starts != cut:
            where = ", ".join(self._name(blocks[start]) for start in cut)
            wrong = next(stage for stage in stages if blocks.index(stage.module) not in cut)
            raise Contradiction(f"{wrong}: ranks cut {len(blocks)} blocks into {count} stages at {where}: mark these")

    def _starts(self) -> list[int]:
        """Numbers of the blocks that stages begin with."""
        assert isinstance(self.model, Chain)
        marked = {id(placed.module) for placed in self._all("stage")}
        return [number for number, block in enumerate(self.model.blocks) if number == 0 or id(block) in marked]


def _is_in(part: nn.Module, module: nn.Module) -> bool:
    return any(part is part_there for part_there in module.modules())


def _between(placed: _Placed, other: _Placed, why: str) -> Contradiction:
    return Contradiction(f"{placed} contradicts {other}: {why}")
