"""The port of a service: one that somebody chose is taken or refused, and only one that nobody chose may move on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scamp_service.errors import Unavailable
from scamp_service.processes import supervise
from scamp_service.processes.supervise import PORTS_TRIED, Service, as_environment, free_port, secrets_pipe
from scamp_service.settings import ROOT, SECRETS_PIPE, Settings

LOOPBACK = "127.0.0.1"


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as owner:
        owner.bind((LOOPBACK, 0))
        owner.listen()
        yield owner.getsockname()[1]


def test_one_port_that_is_in_use_is_refused_with_what_to_do(taken: int) -> None:
    with pytest.raises(Unavailable, match=rf"port {taken} on 127\.0\.0\.1 is in use; .* another port with --port"):
        free_port(LOOPBACK, taken, 1)


def test_of_several_ports_the_next_free_one_is_taken(taken: int) -> None:
    assert taken < free_port(LOOPBACK, taken, PORTS_TRIED) < taken + PORTS_TRIED


def test_an_address_of_another_machine_is_no_reason_to_try_other_ports() -> None:
    with pytest.raises(Unavailable, match=r"cannot listen on 192\.0\.2\.1 .*--host"):
        free_port("192.0.2.1", 8100)


@pytest.mark.parametrize(
    ("given", "environment", "next_port", "num_ports"),
    [
        ({}, {}, False, PORTS_TRIED),
        ({"port": 8100}, {}, False, 1),
        ({}, {"SCAMP_PORT": "8100"}, False, 1),
        ({}, {"SCAMP_PORT": "8100"}, True, PORTS_TRIED),
    ],
)
def test_only_a_port_that_nobody_chose_moves_on(
    given: dict[str, int],
    environment: dict[str, str],
    next_port: bool,
    num_ports: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SCAMP_PORT", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    asked: list[tuple[str, int, int]] = []

    def refuse(host: str, first: int, num: int) -> int:
        asked.append((host, first, num))
        raise Unavailable("no port for a test")

    monkeypatch.setattr(supervise, "free_port", refuse)
    with pytest.raises(Unavailable), Service(Settings(data_dir=tmp_path, **given), next_port=next_port):
        pass
    assert asked == [(LOOPBACK, 8100, num_ports)]


def test_a_child_of_ours_reads_the_secrets_from_a_pipe_and_nothing_inherits_them(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, api_token="0123456789abcdef", database_url="sqlite:////tmp/x.db", port=8123)
    code = (
        "import os; from scamp_service.settings import settings_of_process as of; own = of();"
        "print(own.api_token, own.database_url, own.port, sorted(n for n in os.environ if n.startswith('SCAMP_')))"
    )
    with secrets_pipe(settings) as pipe:
        environment = {**os.environ, **as_environment(settings), SECRETS_PIPE: str(pipe)}
        assert "0123456789abcdef" not in str(environment) and "x.db" not in str(environment)
        command = [sys.executable, "-c", code]
        said = subprocess.check_output(command, cwd=ROOT, env=environment, pass_fds=[pipe], text=True)
    assert said.startswith("0123456789abcdef sqlite:////tmp/x.db 8123 ")
    assert not any(name in said for name in ("API_TOKEN", "DATABASE_URL", "PIPE"))
