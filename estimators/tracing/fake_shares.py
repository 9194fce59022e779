"""Rows of other ranks in a trace, which only one rank of a gang runs: code that reads their number asks here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_shares = ContextVar[Sequence[int]]("shares", default=())
"""Samples of each data-parallel rank, first those of the one that is traced; empty: all have as many."""


@contextmanager
def fake_shares(shares: Sequence[int]) -> Iterator[None]:
    """Trace a rank of a layout with these shares."""
    token = _shares.set(shares)
    try:
        yield
    finally:
        _shares.reset(token)


def rows_of_largest(num: int) -> int:
    """Rows of the rank that has most, where the traced one has ``num``."""
    shares = _shares.get()
    return -(-num * max(shares) // shares[0]) if shares else num


def rows_of_all(num: int, num_ranks: int) -> int:
    """Rows of all ranks, where the traced one has ``num``."""
    shares = _shares.get()
    return -(-num * sum(shares) // shares[0]) if shares else num * num_ranks
