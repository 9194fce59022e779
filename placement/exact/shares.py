"""Divides a batch over data-parallel ranks on different devices, so that the slowest rank is fastest.

A rank takes ``fixed_seconds`` and then the same time for each of its samples. How many samples all ranks can take in a
given time is known at once, so the shortest time is found by bisection. Memory limits the samples of each rank. This
balances data parallelism as Whale does (Jia et al., USENIX ATC 2022); the integer shares are exact. Ranks train such a
division as ``Plan.shares``.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf

from estimators.model import GIB
from placement.option import NoPlan

_SAME = 1 + 1e-12


@dataclass(frozen=True, slots=True)
class Member:
    """A rank and its device. ``fixed_bytes`` are held whatever its share is."""

    seconds_per_sample: float
    bytes_per_sample: int
    capacity_bytes: int
    fixed_seconds: float = 0.0
    fixed_bytes: int = 0

    def __post_init__(self) -> None:
        if self.seconds_per_sample <= 0 or min(self.bytes_per_sample, self.fixed_seconds, self.fixed_bytes) < 0:
            raise ValueError(
                f"seconds_per_sample must be above 0, and all other costs of a rank at least 0, got {self}"
            )

    @property
    def room_bytes(self) -> int:
        """Bytes for samples."""
        return self.capacity_bytes - self.fixed_bytes

    @property
    def most_by_memory(self) -> float:
        """Most samples that fit."""
        if self.room_bytes < 0:
            return 0
        return self.room_bytes // self.bytes_per_sample if self.bytes_per_sample else inf

    def most_within(self, seconds: float) -> float:
        """Most samples in this time."""
        return min(floor((seconds - self.fixed_seconds) / self.seconds_per_sample * _SAME), self.most_by_memory)

    def seconds(self, samples: int) -> float:
        """Seconds for ``samples`` samples."""
        return self.fixed_seconds + samples * self.seconds_per_sample


@dataclass(frozen=True, slots=True)
class Shares:
    """Samples of each rank, and the seconds of the slowest one.

    ``even_seconds`` is the time with equal shares; infinite if they do not fit or do not divide the batch.
    """

    samples: tuple[int, ...]
    seconds: float
    even_seconds: float
    reason: str


def best_shares(members: Sequence[Member], samples: int) -> Shares | NoPlan:
    """The division of ``samples`` into shares of at least one sample with the fastest slowest rank."""
    if samples < len(members):
        return NoPlan(f"{samples} samples are not enough for {len(members)} ranks: use fewer ranks, or a larger batch")
    high, low = max(member.seconds(samples) for member in members), 0.0
    if not _can_finish(high, members, samples):
        return NoPlan(_refusal(members, samples))
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if _can_finish(middle, members, samples) else (middle, high)
    taken = _reduced(_most_samples(high, members, samples), members, samples)
    return Shares(tuple(taken), _slowest(members, taken), _even_seconds(members, samples), _reason(members, taken))


def _most_samples(seconds: float, members: Sequence[Member], samples: int) -> list[int]:
    """Most samples that each rank finishes in this time."""
    return [int(min(member.most_within(seconds), samples)) for member in members]


def _can_finish(seconds: float, members: Sequence[Member], samples: int) -> bool:
    """Whether the ranks can finish all samples in this time."""
    most = _most_samples(seconds, members, samples)
    return min(most) >= 1 and sum(most) >= samples


def _reduced(most: list[int], members: Sequence[Member], samples: int) -> list[int]:
    """Samples of each rank, taken away from the most where ranks need most time."""
    taken = list(most)
    by_time = [(-members[rank].seconds(num), rank) for rank, num in enumerate(taken) if num > 1]
    heapq.heapify(by_time)
    for _ in range(sum(most) - samples):
        _, rank = heapq.heappop(by_time)
        taken[rank] -= 1
        if taken[rank] > 1:
            heapq.heappush(by_time, (-members[rank].seconds(taken[rank]), rank))
    return taken


def _slowest(members: Sequence[Member], taken: Sequence[int]) -> float:
    return max(member.seconds(num) for member, num in zip(members, taken, strict=True))


def _even_seconds(members: Sequence[Member], samples: int) -> float:
    share, rest = divmod(samples, len(members))
    fits = all(share <= member.most_by_memory for member in members)
    return _slowest(members, [share] * len(members)) if fits and not rest else inf


def _reason(members: Sequence[Member], taken: Sequence[int]) -> str:
    full = sum(num == member.most_by_memory for member, num in zip(members, taken, strict=True))
    limited = f"; memory limits {full} of {len(members)} ranks" if full else ""
    shares = f"{min(taken)} to {max(taken)} samples" if min(taken) < max(taken) else f"{taken[0]} samples each"
    return f"{shares}, by the speed of the devices{limited}"


def _refusal(members: Sequence[Member], samples: int) -> str:
    least = min(member.bytes_per_sample for member in members) * samples
    free = sum(max(0, member.room_bytes) for member in members)
    if any(member.most_by_memory < 1 for member in members):
        return "not even one sample fits on the smallest device: use fewer devices, or those with more memory"
    return (
        f"{samples} samples need at least {least / GIB:.1f} GiB, "
        f"all devices together offer {free / GIB:.1f} GiB: use a smaller batch"
    )
