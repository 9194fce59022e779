"""The parallel axes: one table that legality, device meshes, ranks, names, words and the parser of plans are read from.

Each field of ``Spread`` stands next to its row. A new axis begins with one field and its row here, and
docs/extending.md has all steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import prod
from operator import attrgetter
from typing import Any, Self

from estimators.pipelining.schedules import IN_WHOLE, given, holders_of, in_parts, short_name

Value = int | bool | str | tuple[int, ...]
"""The value of an axis: a degree, a switch, a name, or numbers of blocks."""

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "dualpipev")
"""Orders in which ranks run the micro-batches of a pipeline (see ``estimators.pipelining.schedules``).

With 1F1B a stage holds at most as many as there are stages from it to the last one; with GPipe it holds all. The others
have shorter bubbles: by two stages on each rank, or by backward passes in two parts, or both.
"""


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension of the device mesh. The one with the lowest ``place`` comes first: its ranks are furthest apart.

    Ranks along it train on other samples if ``splits_batch``, and hold the same shards of parameters if ``copies``.
    """

    place: int
    name: str
    splits_batch: bool = False
    copies: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """One row of the table.

    In ``words`` and ``label`` a word in braces stands for the value of that field, or for the words of a switch (empty
    while it is at its default).
    """

    default: Value
    words: str
    """The axis for people."""
    label: str = ""
    """The axis in the name of a layout."""
    short: str = ""
    """Name of a degree in the column of a table. That of a switch replaces the name of the degree that it needs, which
    stands in it for braces."""
    dimension: Dimension | None = None
    needs: tuple[str, ...] = ()
    """Names of axes of which at least one must be used, too; their phrases contain the words of this one."""
    excludes: tuple[str, ...] = ()
    """Names of axes that cannot be combined with this one."""
    refusal: str = ""
    """The error where the axis is used without any that it needs, or with one that it excludes."""

    def said(self, value: Value) -> str:
        """Text that replaces the axis in braces, where the words of another axis mention it."""
        if isinstance(value, tuple):
            return self.words.format_map(defaultdict(lambda: numbers_in_words(value))) if value else ""
        if isinstance(self.default, bool):
            return self.words if value != self.default else ""
        return short_name(value) if isinstance(value, str) else str(value)


def numbers_in_words(numbers: tuple[int, ...]) -> str:
    """Numbers in a name: ``3-2-4``; those in a row, if they rise, as ``2..5``."""
    return "-".join(f"{run[0]}..{run[-1]}" if len(run) > 2 else "-".join(map(str, run)) for run in runs_of(numbers))


def runs_of(numbers: Iterable[int]) -> list[list[int]]:
    """Splits ascending numbers into runs of consecutive ones: 3, 4, 7 into [3, 4] and [7]."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _row(default: Value, words: str, **others: Any) -> Any:
    return field(default=default, metadata={"axis": Axis(default, words, **others)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a candidate is spread over ranks, and computed on each of them.

    Fields stand in the order in which a layout's name has them; the last ones act inside a rank, the innermost first.
    """

    spatial: int = _row(
        1,
        "{spatial} slabs of space",
        label="spatial{spatial}",
        short="space",
        dimension=Dimension(0, "spatial", copies=True),
        excludes=("tp", "pp", "zero1", "adasum"),
        refusal="spatial can be combined with dp_shard and dp_replicate only: use tp=1, pp=1, zero1=false and "
        "adasum=false",
    )
    """Groups of ranks with the same samples, each on a slab of their space (rows of images, layers of volumes)."""
    dp_replicate: int = _row(
        1,
        "{dp_replicate} replicas{zero1}{adasum}{divided}",
        label="replicate{dp_replicate}",
        short="DP",
        dimension=Dimension(1, "replicate", splits_batch=True, copies=True),
    )
    """Groups that hold the same shards and train on different samples (HSDP). Alone, without shards, whole replicas
    average their gradients in buckets."""
    dp_shard: int = _row(
        1,
        "FSDP over {dp_shard} ranks{reshard}{divided}",
        label="fsdp{dp_shard}",
        short="FSDP",
        dimension=Dimension(2, "dp", splits_batch=True),
    )
    """Ranks of each group; each holds 1/dp_shard of parameters, gradients and optimizer states (FSDP2)."""
    tp: int = _row(
        1,
        "tensor{sequence_parallel} parallel over {tp} ranks",
        label="tp{tp}",
        short="TP",
        dimension=Dimension(4, "tp"),
    )
    """Ranks with the same samples that split the layers (tensor parallel)."""
    reshard: bool = _row(
        True,
        " (ZeRO-2)",
        label="gathered",
        short="ZeRO-2",
        needs=("dp_shard",),
        refusal="without shards there is nothing to keep gathered: reshard=false needs dp_shard > 1",
    )
    """Whether a block's parameters are gathered again for its backward pass; otherwise they stay gathered (ZeRO-2)."""
    zero1: bool = _row(
        False,
        " (ZeRO-1)",
        label="zero1",
        short="ZeRO-1",
        needs=("dp_replicate",),
        excludes=("dp_shard", "tp", "pp"),
        refusal="whole replicas divide optimizer states between them: zero1 needs dp_replicate > 1 alone",
    )
    """Replicas are whole, and each alone holds the optimizer states of a part of the parameters (ZeRO-1)."""
    adasum: bool = _row(
        False,
        " combined by Adasum",
        label="adasum",
        short="Adasum",
        needs=("dp_replicate",),
        excludes=("dp_shard", "tp", "pp", "zero1"),
        refusal="Adasum combines the updates of whole replicas: adasum needs dp_replicate > 1 alone, without zero1",
    )
    """Replicas are whole, each makes an update from its own gradients, and the updates are combined."""
    divided: bool = _row(
        False,
        " that divide layers",
        label="divided",
        short="{}+divided",
        needs=("dp_replicate", "dp_shard"),
        excludes=("spatial", "zero1", "adasum"),
        refusal="data-parallel ranks divide layers: divided needs dp_replicate or dp_shard > 1, and spatial=1 without "
        "zero1 and adasum",
    )
    """Each data-parallel rank has some of the experts, and some columns of every embedding table and linear layer that
    the model names; the rest is in replicas or shards."""
    pp: int = _row(
        1,
        "{schedule} pipeline of {pp} stages{cut}",
        label="stage{stage_index}of{pp}+{schedule}{num_micro_batches}",
        short="PP",
        dimension=Dimension(3, "pp"),
    )
    """Stages of a pipeline; each holds a share of the blocks."""
    schedule: str = _row(
        SCHEDULES[0],
        "{schedule}",
        needs=("pp",),
        refusal="a schedule orders the micro-batches of a pipeline: it needs pp > 1",
    )
    """Order in which stages take the micro-batches: its name, or the passes of each rank (``schedules.given``)."""
    cut: tuple[int, ...] = _row(
        (),
        " with {cut} blocks",
        label="cut{cut}",
        needs=("pp",),
        refusal="a cut says how many blocks each stage of a pipeline has: it needs pp > 1",
    )
    """Number of blocks of each stage; empty: as equal numbers as possible."""
    sequence_parallel: bool = _row(
        False,
        " and sequence",
        label="sequence",
        short="TP+SP",
        needs=("tp",),
        refusal="sequence parallelism divides activations between tensor-parallel ranks: it needs tp > 1",
    )
    """Tensor-parallel ranks also divide along the sequence whatever lies between the layers that they split."""
    co_shard: int = _row(
        1,
        "blocks in {co_shard} parts",
        label="coshard{co_shard}",
        excludes=("tp",),
        refusal="layers are divided over ranks or computed in parts, not both: use tp or co_shard",
    )
    """Parts in which heads and hidden units of a block are computed, one after another, and each again in the backward
    pass, so that the activations of only one part exist at a time (SuperScaler's co-shard)."""
    selective: bool = _row(
        False,
        "selective ",
        label="selective",
        needs=("recompute",),
        refusal="selective says what is recomputed: it needs recompute=true",
    )
    """Recompute whatever is neither a product of matrices nor attention, instead of whole blocks."""
    recomputed: tuple[int, ...] = _row(
        (),
        " of blocks {recomputed}",
        label="blocks{recomputed}",
        needs=("recompute",),
        refusal="recomputed names the blocks that are recomputed: it needs recompute=true",
    )
    """Numbers of the blocks that are recomputed, in rising order; empty: all."""
    recompute: bool = _row(False, "{selective}recompute{recomputed}", label="recompute")
    """Blocks are computed again in the backward pass."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """From JSON that may be of an earlier version: fields of axes that are missing take their defaults."""
        values: dict[str, Any] = {item.name: data[item.name] for item in fields(cls) if item.name in data}
        if "tables" in data:  # its name in 0.1.0
            values["divided"] = data["tables"]
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**values)

    @property
    def values(self) -> dict[str, Any]:
        """Values of the axes by their names."""
        return dict(zip(AXES, axis_values(self), strict=True))

    @property
    def world_size(self) -> int:
        """Ranks in the gang."""
        return prod(_sizes(self))

    @property
    def num_shares(self) -> int:
        """Ranks or groups of ranks that train on different samples."""
        return prod(getattr(self, axis) for axis in SHARES)

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages, 1 without a pipeline. A rank may hold two of them."""
        return len(holders_of(self.schedule, self.pp)) if self.pp > 1 else 1

    @property
    def parameter_shards(self) -> int:
        """Number of ranks that share one copy of the parameters; what ZeRO-1 divides besides is not counted."""
        return self.dp_shard * self.tp * self.pp

    @property
    def optimizer_shards(self) -> int:
        """Number of ranks that share one copy of the optimizer states: with ZeRO-1 the replicas do as well."""
        return self.parameter_shards * (self.dp_replicate if self.zero1 else 1)

    @property
    def most_shards(self) -> int:
        """Largest number of ranks that share one copy of any state."""
        return self.optimizer_shards * (self.dp_replicate if self.divided else 1)

    @property
    def mesh(self) -> dict[str, int]:
        """Ranks along each dimension of the device mesh, the slowest first; empty for a single rank.

        FSDP2 has a dimension of shards besides those of copies, even if there is only one shard; whole replicas have
        none.
        """
        sizes, fsdp = {dimension.name: getattr(self, axis) for axis, dimension in MESH.items()}, self.fsdp_mesh
        return {name: size for name, size in sizes.items() if size > 1 or name in fsdp}

    @property
    def fsdp_mesh(self) -> tuple[str, ...]:
        """Dimensions of the mesh that FSDP2 works on: any of copies, then that of shards; empty without FSDP2."""
        copies = [name for axis, name in _COPIES if getattr(self, axis) > 1]
        if self.has_whole_replicas or (self.dp_shard == 1 and not copies):
            return ()
        return (*copies, MESH["dp_shard"].name)

    @property
    def has_whole_replicas(self) -> bool:
        """Whether each replica holds the whole model, without FSDP2."""
        return self.zero1 or self.adasum or self.averages_gradients

    @property
    def averages_gradients(self) -> bool:
        """Whether whole replicas average their gradients in buckets, once in a step."""
        divides = self.dp_shard > 1 or self.tp > 1 or self.pp > 1 or self.spatial > 1
        return self.dp_replicate > 1 and not (divides or self.zero1 or self.adasum or self.divided)

    @property
    def short(self) -> str:
        """Degrees alone, for a column of a table: ``FSDP ×2 · TP ×4``."""
        used = {name: row for name, row in AXES.items() if row.short and getattr(self, name) != row.default}
        degrees = dict[str, str]()
        for name, row in used.items():
            degree = next((need for need in row.needs if need in used), name)
            degrees[degree] = row.short.format(degrees.get(degree, ""))
        return " · ".join(f"{short} ×{getattr(self, name)}" for name, short in degrees.items()) or "1 rank"

    def coordinate(self, rank: int, axis: str) -> int:
        """Place of ``rank`` along the dimension of ``axis``, from 0."""
        size: int = getattr(self, axis)
        return rank // self.stride(axis) % size

    def stride(self, axis: str) -> int:
        """Difference between the numbers of ranks that are neighbours along the dimension of ``axis``."""
        return prod(getattr(self, faster) for faster in _FASTER[axis])

    @property
    def ways(self) -> str:
        """How the ranks divide the work, in words."""
        return _phrases(axis_values(self))[0]

    @property
    def inside(self) -> tuple[str, ...]:
        """How each rank computes its blocks, in words."""
        return _phrases(axis_values(self))[1]


COPIES = "copies"
"""Name of the dimension of ranks with the same shards, where these are ranks of several dimensions."""
DIVIDED = "divided"
"""Name of the dimension of ranks that divide layers, whatever the mesh: all data-parallel ones."""

AXES: dict[str, Axis] = {item.name: item.metadata["axis"] for item in fields(Spread)}
"""The table: rows by the names of their fields."""

MESH: dict[str, Dimension] = dict(
    sorted(((name, row.dimension) for name, row in AXES.items() if row.dimension), key=lambda pair: pair[1].place)
)
"""Axes that the ranks of a gang are counted along, the slowest first."""

_COPIES = tuple((axis, row.name) for axis, row in MESH.items() if row.copies)

SHARES = tuple(name for name, dimension in MESH.items() if dimension.splits_batch)
"""Axes whose ranks train on different samples."""

axis_values = attrgetter(*AXES)
"""Values of all axes, in the order of the table."""

_sizes = attrgetter(*MESH)
_FASTER = {name: tuple(MESH)[place:] for place, name in enumerate(MESH, 1)}


def check(spread: Spread) -> None:
    """Raise ``ValueError`` for axes that do not go together."""
    values = zip(AXES.items(), axis_values(spread), strict=True)
    used = {name: (row, value) for (name, row), value in values if value != row.default}
    for name, (row, value) in used.items():
        if type(row.default) is int and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    for row, _ in used.values():
        if (row.needs and used.keys().isdisjoint(row.needs)) or any(name in used for name in row.excludes):
            raise ValueError(row.refusal)
    if spread.adasum and spread.dp_replicate & (spread.dp_replicate - 1):
        raise ValueError(f"adasum needs a dp_replicate that is a power of two, got {spread.dp_replicate}")
    _check_schedule(spread)
    if spread.cut and (len(spread.cut) != spread.num_stages or min(spread.cut) < 0 or 0 in spread.cut[1:-1]):
        raise ValueError(
            f"cut must list a number of blocks for each of the {spread.num_stages} stages, at least 1 except for the "
            f"first and the last stage, got {spread.cut}"
        )
    rising = sorted({number for number in spread.recomputed if number >= 0})
    if list(spread.recomputed) != rising:
        raise ValueError(f"recomputed must list blocks, counted from 0, in rising order, got {spread.recomputed}")


def _check_schedule(spread: Spread) -> None:
    """Raise ``ValueError`` for axes that do not go together with the schedule of a pipeline."""
    if spread.schedule not in SCHEDULES:
        try:
            given(spread.schedule)
        except ValueError as error:
            names = ", ".join(SCHEDULES)
            raise ValueError(f"schedule must be one of {names}, or the passes of each rank: {error}") from None
    if spread.pp > 1 and spread.schedule not in IN_WHOLE and (spread.fsdp_mesh or spread.sequence_parallel):
        raise ValueError(
            f"ranks run {short_name(spread.schedule)} without shards, replicas and sequence parallelism: use "
            "dp_shard=1, dp_replicate=1 and sequence_parallel=false, or 1f1b"
        )
    if spread.pp > 1 and in_parts(spread.schedule) and (spread.recompute or spread.co_shard > 1):
        raise ValueError(
            f"{short_name(spread.schedule)} runs backward passes in two parts, and a block can be recomputed only "
            "once: use recompute=false and co_shard=1, or 1f1b"
        )


@lru_cache(maxsize=4096)
def _phrases(values: tuple[Any, ...]) -> tuple[str, tuple[str, ...]]:
    said = {name: row.said(value) for (name, row), value in zip(AXES.items(), values, strict=True)}
    used = [row for row, value in zip(AXES.values(), values, strict=True) if value != row.default and not row.needs]
    ways = [row.words.format_map(said) for row in used if row.dimension]
    inside = [row.words.format_map(said) for row in reversed(used) if not row.dimension]
    return " × ".join(ways) or "1 rank", tuple(inside)
