"""No webhook is lost while sender and receiver are killed, and one that comes twice has the same id."""

from __future__ import annotations

import pytest

from benchmarks.facing import hooks_part
from benchmarks.facing.hooks_part import Case, measure


@pytest.mark.full
@pytest.mark.sample
def test_every_end_is_told_over_kills_of_sender_and_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks_part, "MOST_SECONDS", 0.4)
    result = measure(Case(24, 4, seed=1), 300)
    assert (result.hooks_sent, result.hooks_lost, result.hooks_doubled) == (24, 0, 0)
    assert result.num_requests >= 24
