"""Examples from which a blueprint is found: logs of a few blocks of one architecture, as a child process sends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estimators.peaks.depth import Passes
from estimators.work import Work


class NoBlueprint(Exception):
    """No blueprint describes all examples; the message says why.

    ``parted_by`` names a variable, if there is one, such that each of its values may have a blueprint of its own.
    """

    def __init__(self, reason: str, parted_by: str | None = None) -> None:
        super().__init__(reason)
        self.parted_by = parted_by


@dataclass(frozen=True, slots=True)
class Example:
    """Logs of one architecture with a few blocks under one layout.

    ``shapes`` are those of the parameters, each with its block (None outside of the blocks). ``dimensions`` are all
    sizes that occur in parameters and samples. ``passes`` are those of the point's micro-batch, ``single`` those of one
    sample (None if the model refuses it). ``updates`` are the optimizer's first two, ``updates_of_more`` the same with
    one more block.
    """

    num_blocks: int
    shapes: tuple[tuple[tuple[int, ...], int | None], ...]
    dimensions: tuple[int, ...]
    passes: Passes
    single: Passes | None
    updates: tuple[Passes, ...]
    updates_of_more: tuple[Passes, ...]

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values; the work in the logs is left out."""
        return {
            "num_blocks": self.num_blocks,
            "shapes": [[list(shape), block] for shape, block in self.shapes],
            "dimensions": list(self.dimensions),
            "passes": _passes_json(self.passes),
            "single": _passes_json(self.single) if self.single else None,
            "updates": [_passes_json(update) for update in self.updates],
            "updates_of_more": [_passes_json(update) for update in self.updates_of_more],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Example:
        """Inverse of ``to_json``, with no work in the logs."""
        return cls(
            int(data["num_blocks"]),
            tuple((tuple(shape), block) for shape, block in data["shapes"]),
            tuple(data["dimensions"]),
            _passes_from_json(data["passes"]),
            _passes_from_json(data["single"]) if data["single"] else None,
            tuple(map(_passes_from_json, data["updates"])),
            tuple(map(_passes_from_json, data["updates_of_more"])),
        )


def _passes_json(passes: Passes) -> dict[str, Any]:
    return {
        "events": [list(event) for event in passes.events],
        "categories": list(passes.categories),
        "num_before": passes.num_before,
        "owners": [list(owner) for owner in passes.owners.items()],
        "marks": [[position, block] for position, block, _ in passes.marks],
    }


def _passes_from_json(data: Mapping[str, Any]) -> Passes:
    return Passes(
        tuple((buffer, size) for buffer, size in data["events"]),
        tuple(data["categories"]),
        Work(),
        data["num_before"],
        dict(data["owners"]),
        [(position, block, Work()) for position, block in data["marks"]],
    )
