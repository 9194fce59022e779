"""Errors tell what to do and nothing of our insides."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving import InProcess


def test_an_error_of_ours_tells_nothing_of_our_insides(
    api: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a secret at /home/somebody")

    monkeypatch.setattr(api.store, "studies", broken)
    answer = api.get("/v1/studies", headers={"Authorization": "Bearer hidden-from-logs"})
    assert answer.status_code == 500
    assert answer.json() == {
        "type": "about:blank",
        "title": "Internal Server Error",
        "status": 500,
        "detail": "ScaMP failed on this request; see the log of the API for the reason",
    }
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "a secret at /home/somebody" in caplog.text and "hidden-from-logs" not in caplog.text
