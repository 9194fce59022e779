"""The interface of packing policies: a queue, a ledger and predicted ends go in, placements and waits come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from placement.model import Placement, Queued
from placement.packing.ledger import Ledger


class Blocked(StrEnum):
    """The first thing that a waiting gang lacks."""

    NO_DEVICES = "no devices"  # the cluster has none now
    TOO_LARGE = "too large"  # not even the empty cluster could take it
    BUSY = "busy"  # too few devices have that much free now
    FRAGMENTED = "fragmented"  # enough MiB are free, but on too few devices
    RESERVED = "reserved"  # it fits, but only on devices that are kept for another gang
    OWN_RESERVATION = "own reservation"  # devices are kept for it, and some are still busy
    QUOTA = "quota"  # its project may not use more now


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a gang waits, for programs and in words."""

    blocked: Blocked
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The gangs that start now, in the order in which they were tried, and why each of the others waits, by gang id.

    ``kept_devices`` are the devices that are kept for one of those.
    """

    placements: Sequence[Placement] = ()
    waits: Mapping[str, Wait] = field(default_factory=dict)
    kept_devices: Sequence[str] = ()


class Policy(Protocol):
    """Decides which gangs start now. Pure and deterministic: it leaves the ledger as it was."""

    def __call__(self, queue: Sequence[Queued], ledger: Ledger, seconds_left: Mapping[str, float]) -> Decision:
        """Decide for the ``queue``, whose order is that of fairness between studies.

        ``seconds_left`` are the predicted seconds until each running gang ends, where they are known.
        """
        ...
