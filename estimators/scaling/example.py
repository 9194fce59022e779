"""Examples from which a blueprint is found: logs of a few blocks of one architecture, as a child process sends them."""

from __future__ import annotations

from dataclasses import dataclass

from estimators.model import Divisions
from estimators.peaks.depth import Passes
from estimators.peaks.units import Outline


class NoBlueprint(Exception):
    """No blueprint describes all examples; the message says why.

    ``parted_by`` names a variable, if there is one, such that each of its values may have a blueprint of its own.
    """

    def __init__(self, reason: str, parted_by: str | None = None) -> None:
        super().__init__(reason)
        self.parted_by = parted_by


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about the model of an example in the plain layout, with all its blocks.

    ``outputs`` are the bytes that go into the first block and come out of each block that was traced.
    """

    outlines: tuple[Outline, ...]
    divisions: Divisions
    outputs: tuple[int, ...]
    equal_blocks: bool


@dataclass(frozen=True, slots=True)
class Example:
    """Logs of one architecture with a few blocks under one layout.

    ``shapes`` are those of the parameters, each with its block (None outside of the blocks); layers that ranks divide
    have the shape of a rank's part. ``dimensions`` are all sizes that occur in parameters and samples. ``passes`` are
    those of the point's micro-batch, ``single`` those of one sample (None if the model refuses it). ``updates`` are the
    optimizer's first two, ``updates_of_more`` the same with one more block. If ``is_whole``, the model has no equal
    blocks to leave out, so the logs are those of all its blocks. ``facts`` come with a single micro-batch in the plain
    layout. ``unknown_percent`` is that of the device (see ``estimators.tracing.device``).
    """

    num_blocks: int
    shapes: tuple[tuple[tuple[int, ...], int | None], ...]
    dimensions: tuple[int, ...]
    passes: Passes
    single: Passes | None
    updates: tuple[Passes, ...]
    updates_of_more: tuple[Passes, ...]
    is_whole: bool = False
    facts: ModelFacts | None = None
    unknown_percent: int = 0
