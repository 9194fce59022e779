"""The part on credentials counts who is let in, and would see a rule that is missing."""

from __future__ import annotations

import pytest

from api.access import allowed
from benchmarks.facing.credentials_part import Case, measure
from scamp_service.access.model import Access


@pytest.mark.sample
@pytest.mark.full
def test_a_viewer_is_let_in_and_kept_out_where_due() -> None:
    result = measure(Case("viewer"), 60)
    assert result.num_requests > 120
    assert (result.let_in, result.kept_out) == ([], [])


@pytest.mark.full
def test_a_rule_that_is_missing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowed, "expect", lambda *_: None)
    assert any(":stop" in words for words in measure(Case("viewer"), 60).let_in)
    monkeypatch.setattr(Access, "may", lambda *_: False)
    assert measure(Case("viewer"), 60).kept_out
