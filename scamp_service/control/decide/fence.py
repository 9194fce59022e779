"""Step 1: stops gangs that the database does not know."""

from __future__ import annotations

from collections.abc import Iterator

from scamp_service.control.decide.effects import Effect, StopGang
from scamp_service.control.decide.snapshot import Snapshot


def fence_unknown_gangs(s: Snapshot) -> Iterator[Effect]:
    known = {attempt.key for attempt in s.attempts}
    for key in s.gangs:
        if key not in known:
            yield StopGang(key, "no open attempt has this gang")
