"""Converts tensors between layouts by the cheapest collectives: from what one unit leaves to what the next one needs.

This is the third phase of planning in SuperScaler, dependency preservation (Lin et al., "nnScaler: Constraint-Guided
Parallelization Plan Generation for Deep Learning Training", OSDI 2024). Layouts are the nodes of a graph and single
collectives its edges; Dijkstra's algorithm finds the shortest path. A collective runs along one dimension of the mesh;
rings over several dimensions at once are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil, prod

from estimators.devices.communication import Group, collective_seconds
from estimators.devices.kind import Links

FREE = ("slice", "zeros")
"""Steps without communication: a rank keeps a part of what it has, or fills what it lacks with zeros."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """The shape of a whole tensor, whatever part of it each rank has."""

    shape: tuple[int, ...]
    bytes_per_element: int = 2

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return prod(self.shape) * self.bytes_per_element


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """The part of a tensor that each rank of a mesh has.

    ``splits`` has, for each dimension of the tensor, the dimensions of the mesh that divide it, the outermost first.
    Along the dimensions in ``partial`` the tensor is the sum of what the ranks have. Along all others ranks have
    copies. Raises ``ValueError`` for a dimension of the mesh that is used twice.
    """

    splits: tuple[tuple[int, ...], ...]
    partial: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        used = [*(dimension for split in self.splits for dimension in split), *self.partial]
        if len(set(used)) < len(used):
            raise ValueError(f"each dimension of the mesh divides or sums a tensor once, got {self}")

    def split_by(self, dimension: int) -> int | None:
        """The dimension of the tensor that this dimension of the mesh divides."""
        return next((place for place, split in enumerate(self.splits) if dimension in split), None)

    def __str__(self) -> str:
        said = [
            f"dim {place} over mesh {'×'.join(map(str, split))}" for place, split in enumerate(self.splits) if split
        ]
        said += [f"sum over mesh {dimension}" for dimension in sorted(self.partial)]
        return ", ".join(said) or "copies"


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks in a grid; ``groups`` has those along each dimension."""

    groups: tuple[Group, ...]
    links: Links

    def num_ranks(self, dimensions: Sequence[int]) -> int:
        """Ranks along all of these dimensions."""
        return prod(self.groups[dimension].num_ranks for dimension in dimensions)

    def divides(self, tensor: Tensor, layout: TensorLayout) -> bool:
        """Whether all ranks get parts of the same shape."""
        pairs = zip(tensor.shape, layout.splits, strict=True)
        return all(size % self.num_ranks(split) == 0 for size, split in pairs)

    def local_bytes(self, tensor: Tensor, layout: TensorLayout) -> float:
        """Bytes of a tensor on one rank."""
        return tensor.num_bytes / prod(self.num_ranks(split) for split in layout.splits)


@dataclass(frozen=True, slots=True)
class Receivers:
    """Other ranks that need the tensor. Rank numbers differ by ``distance`` between those that send and receive."""

    mesh: Mesh
    distance: int


@dataclass(frozen=True, slots=True)
class Step:
    """One collective along a ``dimension`` of the mesh, a message, or one of ``FREE``, and the ``layout`` after it.

    ``num_bytes`` are those that ``collective_seconds`` takes.
    """

    kind: str
    dimension: int
    num_bytes: float
    seconds: float
    layout: TensorLayout

    def __str__(self) -> str:
        if self.kind == "message":
            return "message to the other ranks"
        return f"{self.kind.replace('_', '-')} along mesh {self.dimension}"


@dataclass(frozen=True, slots=True)
class Conversion:
    """The steps from one layout to another; none if they are the same."""

    steps: tuple[Step, ...]

    @property
    def seconds(self) -> float:
        """Seconds of all steps, one after another."""
        return sum(step.seconds for step in self.steps)

    def __str__(self) -> str:
        return ", then ".join(map(str, self.steps)) or "nothing to do"


def convert(
    tensor: Tensor, source: TensorLayout, target: TensorLayout, mesh: Mesh, receivers: Receivers | None = None
) -> Conversion:
    """The cheapest steps to have a tensor in layout ``target``, on the mesh of ``receivers`` if there are any.

    Of equally cheap sequences a shortest one is taken. Raises ``ValueError`` for a layout that does not divide the
    tensor into equal parts.
    """
    goal = target, receivers is not None
    for layout, where in ((source, mesh), (target, receivers.mesh if receivers else mesh)):
        if len(layout.splits) != len(tensor.shape) or not where.divides(tensor, layout):
            raise ValueError(f"{layout} does not divide a tensor of shape {tensor.shape} into equal parts")
    queue: list[tuple[float, int, int, tuple[TensorLayout, bool], tuple[Step, ...]]] = []
    heappush(queue, (0.0, 0, 0, (source, False), ()))
    done: set[tuple[TensorLayout, bool]] = set()
    num_pushed = 0
    while True:  # every layout can be reached: by gathering everything, and slicing
        seconds, _, _, state, steps = heappop(queue)
        if state == goal:
            return Conversion(steps)
        if state in done:
            continue
        done.add(state)
        for step, is_sent in _next_steps(tensor, *state, mesh, receivers):
            if (step.layout, is_sent) not in done:
                num_pushed += 1
                entry = (seconds + step.seconds, len(steps) + 1, num_pushed, (step.layout, is_sent), (*steps, step))
                heappush(queue, entry)


class Conversions:
    """Conversions on one mesh, each found once."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._found: dict[tuple[Tensor, TensorLayout, TensorLayout], Conversion] = {}

    def between(self, tensor: Tensor, source: TensorLayout, target: TensorLayout) -> Conversion:
        """The cheapest conversion; see ``convert``."""
        key = tensor, source, target
        if key not in self._found:
            self._found[key] = convert(tensor, source, target, self.mesh)
        return self._found[key]


def _next_steps(
    tensor: Tensor, layout: TensorLayout, is_sent: bool, mesh: Mesh, receivers: Receivers | None
) -> Iterator[tuple[Step, bool]]:
    """Yield all single steps from a layout, and whether the receivers have the tensor afterwards."""
    here = receivers.mesh if receivers and is_sent else mesh
    for step in single_steps(tensor, layout, here):
        yield step, is_sent
    if receivers and not is_sent and (step_across := _message(tensor, layout, mesh, receivers)) is not None:
        yield step_across, True


def single_steps(tensor: Tensor, layout: TensorLayout, mesh: Mesh) -> Iterator[Step]:
    """Yield everything that one collective, or a rank by itself, can make of a layout.

    Only the innermost division of a dimension can be undone: the parts of outer ones would not be contiguous.
    """
    local_bytes = mesh.local_bytes(tensor, layout)
    for dimension, group in enumerate(mesh.groups):
        place = layout.split_by(dimension)
        if dimension in layout.partial:
            summed = TensorLayout(layout.splits, layout.partial - {dimension})
            yield _step("all_reduce", dimension, local_bytes, summed, mesh)
            divisions, kind, num_bytes = summed, "reduce_scatter", local_bytes
        elif place is None:
            yield _step("zeros", dimension, 0.0, replace(layout, partial=layout.partial | {dimension}), mesh)
            divisions, kind, num_bytes = layout, "slice", 0.0
        elif layout.splits[place][-1] == dimension:
            gathered = _replaced(layout, place, layout.splits[place][:-1])
            yield _step("all_gather", dimension, local_bytes * group.num_ranks, gathered, mesh)
            yield _step("zeros", dimension, 0.0, replace(gathered, partial=gathered.partial | {dimension}), mesh)
            divisions, kind, num_bytes = gathered, "all_to_all", local_bytes
        else:
            continue
        for other, split in enumerate(divisions.splits):
            after = _replaced(divisions, other, (*split, dimension))
            if after != layout and mesh.divides(tensor, after):
                yield _step(kind, dimension, num_bytes, after, mesh)


def _replaced(layout: TensorLayout, place: int, split: tuple[int, ...]) -> TensorLayout:
    return replace(layout, splits=(*layout.splits[:place], split, *layout.splits[place + 1 :]))


def _step(kind: str, dimension: int, num_bytes: float, after: TensorLayout, mesh: Mesh) -> Step:
    seconds = 0.0 if kind in FREE else collective_seconds(kind, num_bytes, mesh.groups[dimension], mesh.links)
    return Step(kind, dimension, num_bytes, seconds, after)


def _message(tensor: Tensor, layout: TensorLayout, mesh: Mesh, receivers: Receivers) -> Step | None:
    """Every rank sends what it has to the rank at its place in the other mesh; None if they cannot keep the layout.

    Along a dimension with more receivers than senders, each sender has several receivers, and sends to one after
    another; both need copies there.
    """
    num_messages = 1
    for dimension, (ours, theirs) in enumerate(zip(mesh.groups, receivers.mesh.groups, strict=True)):
        if ours.num_ranks == theirs.num_ranks:
            continue
        if dimension in layout.partial or layout.split_by(dimension) is not None:
            return None
        num_messages *= ceil(theirs.num_ranks / ours.num_ranks)
    num_bytes = mesh.local_bytes(tensor, layout)
    message_seconds = collective_seconds("message", num_bytes, Group(2, receivers.distance), mesh.links)
    return Step("message", -1, num_bytes * num_messages, message_seconds * num_messages, layout)
