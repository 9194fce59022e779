"""Traces in progress are named with their seconds."""

from __future__ import annotations

import contextlib
import time

import pytest

from scamp_service.sizing.tracing.under_way import UnderWay


def test_what_is_under_way_is_named_with_its_seconds_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    seen = UnderWay()
    assert str(seen) == ""
    with seen.doing("1 rank"):
        now = 103.0
        with contextlib.suppress(KeyError), seen.doing("FSDP over 2 ranks"):
            now = 110.0
            assert str(seen) == "1 rank 10 s; FSDP over 2 ranks 7 s"
            raise KeyError
        assert str(seen) == "1 rank 10 s"
    assert str(seen) == ""


def test_it_says_how_many_of_several_expected_tasks_are_done() -> None:
    seen = UnderWay()
    with seen.doing("1 rank"):
        seen.expect(1)
        assert str(seen) == "1 rank 0 s"
        seen.end()
        seen.expect(5)
        assert str(seen) == "1 rank 0 s (1 of 6 done)"
