"""Step 1: stops gangs without an open attempt in the database."""

from __future__ import annotations

from collections.abc import Iterator

from scamp_service.control.decide.effects import Effect, StopGang
from scamp_service.control.decide.snapshot import Snapshot


def fence_unknown_gangs(s: Snapshot) -> Iterator[Effect]:
    """Stop every gang that no open attempt has started."""
    keys = {attempt.key for attempt in s.attempts}
    for key in s.gangs:
        if key not in keys:
            yield StopGang(key, "this gang belongs to no open attempt")
