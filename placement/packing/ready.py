"""Prefers devices where an idle rank is ready: a gang that finds none must start one, which takes seconds of a core.

It exchanges only devices that are equal for every policy, so it changes neither which gangs start nor how wide.
"""

from __future__ import annotations

from collections.abc import Sequence

from placement.packing.ledger import Ledger

_NONE, _CLEAN, _SAME_CODE = range(3)


def readiest(ledger: Ledger, devices: Sequence[str], code: str | None) -> tuple[str, ...]:
    """The devices of a gang, each exchanged for an equal one of its node if an idle rank there is more suitable.

    The most suitable rank has run the same code (None: that of built-in workloads), which it need not import again. The
    next best has run no user's code yet.
    """
    if not ledger.is_any_ready:
        return tuple(devices)
    chosen = list(devices)
    for rank, device in enumerate(devices):
        most = _readiness(ledger, device, code)
        if most == _SAME_CODE:
            continue
        for other in ledger.ready_beside(device):
            if other in chosen or (readiness := _readiness(ledger, other, code)) <= most:
                continue
            if ledger.are_equal(device, other):
                chosen[rank], most = other, readiness
    return tuple(chosen)


def _readiness(ledger: Ledger, device: str, code: str | None) -> int:
    ready = ledger.ready_on(device)
    return _SAME_CODE if code in ready else _CLEAN if None in ready else _NONE
