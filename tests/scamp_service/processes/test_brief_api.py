"""Studies can be read while no service runs."""

from __future__ import annotations

import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from scamp.client import Client
from scamp_service.errors import Unavailable
from scamp_service.processes import brief_api
from scamp_service.processes.supervise import spawn
from scamp_service.settings import Settings
from scamp_service.store.store import Store
from tests.services.serving import full_spec


@pytest.mark.full
def test_it_answers_whoever_has_started_it_and_says_why_it_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit: list[tuple[Any, ...]] = []
    monkeypatch.setattr("atexit.register", lambda *call: at_exit.append(call))
    settings = Settings(data_dir=tmp_path)
    assert not brief_api.has_database(settings)
    store = Store(settings.url)
    store.studies.create(full_spec(), now=1.0)
    store.close()
    assert brief_api.has_database(settings)
    url, token = brief_api.start_api(settings)
    with Client(url, token) as client:
        assert [study["id"] for study in client.studies()] == [1]
    assert httpx.get(f"{url}/v1/studies", trust_env=False).status_code == 401, "it is not for others on the machine"
    (tmp_path / "scamp.db").write_bytes(b"no database")
    with pytest.raises(Unavailable, match=r"cannot be read; .*scamp\.db"):
        brief_api.start_api(settings)
    for call, api in (call for call in at_exit if isinstance(call[-1], subprocess.Popen)):
        call(api)
        assert api.returncode is not None


@pytest.mark.full
def test_it_takes_another_port_if_some_process_has_taken_the_first_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, ports, others = Settings(data_dir=tmp_path), list[int](), ExitStack()
    monkeypatch.setattr("atexit.register", lambda *call: others.callback(*call))

    def taken_first(module: Any, brief: Settings, heartbeat: int, output: Any) -> subprocess.Popen[bytes]:
        ports.append(brief.port)
        if len(ports) == 1:
            others.enter_context(socket.create_server((brief.host, brief.port)))
        return spawn(module, brief, heartbeat, output)

    monkeypatch.setattr(brief_api, "spawn", taken_first)
    Store(settings.url).close()
    with others:
        url, _ = brief_api.start_api(settings)
        assert len(ports) == 2 and url.endswith(f":{ports[1]}")
