"""Hits in a minute are limited by key, and those of users of the API by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.access.limiter import Limiter
from tests.services.serving import settings_in
from tests.services.team import Team


def test_a_key_has_to_wait_after_its_hits_until_the_minute_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1e9
    monkeypatch.setattr("time.time", lambda: now)
    limiter = Limiter(2)
    assert limiter.wait_seconds("a") == 0.0
    assert [limiter.hit("a"), limiter.hit("a"), limiter.hit("b")] == [0.0, 0.0, 0.0]
    assert limiter.hit("a") > 0 and limiter.wait_seconds("a") > 0 and limiter.wait_seconds("b") == 0.0
    now += limiter.wait_seconds("a") + 0.1
    assert limiter.wait_seconds("a") == 0.0 and limiter.hit("a") == 0.0


def test_each_user_has_so_many_requests_in_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCAMP_REQUESTS_PER_MINUTE", "5")
    assert settings_in(tmp_path).requests_per_minute == 5
    team = Team(tmp_path)
    answers = [team.ask("viewer", "GET", "/v1/me") for _ in range(6)]
    assert [answer.status_code for answer in answers[:5]] == [200] * 5
    assert answers[5].status_code == 429 and 0 < int(answers[5].headers["retry-after"]) <= 60
    assert "at most 5 in a minute" in answers[5].json()["detail"]
    assert team.ask("other", "GET", "/v1/me").status_code == 200
    assert team.ask("", "GET", "/healthz").status_code == 200
    team.api.close()
