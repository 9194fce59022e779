"""The command that lists deliveries sends a test as well, and its exit code says whether it arrived."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scamp.cli import notices
from scamp_service.notices.notifier import Notifier
from scamp_service.receivers import Receiver
from scamp_service.settings import Settings
from scamp_service.store.store import Store
from tests.scamp.cli.test_exchanging import scamp
from tests.services.receiving import Hooks, receiving
from tests.services.serving import free_port, served, settings_in


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Hooks, Settings, Store]]:
    with receiving() as hooks:
        network = str(ipaddress.ip_network("127.0.0.1"))
        ours = [Receiver(webhook=hooks.url)]
        settings = settings_in(tmp_path, port=free_port(), notify=ours, notify_networks=network)
        with served(settings) as (address, store):
            monkeypatch.setenv("SCAMP_ADDRESS", address)
            yield hooks, settings, store


def test_a_test_says_what_came_of_it(
    hooks: tuple[Hooks, Settings, Store], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server, settings, store = hooks
    notifier = Notifier(store, settings, pause_seconds=0.01)
    notifier.start()
    assert scamp(monkeypatch, "deliveries", "--test") == 0
    assert "delivered (HTTP 204)  This is a test of the notices: they arrive here." in capsys.readouterr().out
    server.answer = lambda: 500
    assert scamp(monkeypatch, "deliveries", "--test") == 1
    assert "given up (HTTP 500)" in capsys.readouterr().out
    notifier.close()
    assert scamp(monkeypatch, "deliveries", "--json") == 0
    assert [row["state"] for row in json.loads(capsys.readouterr().out)] == ["DELIVERED", "GIVEN_UP"]


def test_a_test_that_nobody_sends_says_so(
    hooks: tuple[Hooks, Settings, Store], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notices, "TEST_SECONDS", 0.0)
    assert scamp(monkeypatch, "deliveries") == 0
    assert "nobody was told anything yet" in capsys.readouterr().out
    assert scamp(monkeypatch, "deliveries", "--test") == 1
    assert "the controller does not run" in capsys.readouterr().err


def test_the_secret_is_always_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert scamp(monkeypatch, "webhook-secret", "--data-dir", str(tmp_path / "data")) == 0
    first, second = capsys.readouterr().out.split()
    assert first == second and first.startswith("whsec_")
