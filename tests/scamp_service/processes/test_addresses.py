"""Which port a service takes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from scamp.addresses import url_of
from scamp_service.errors import Unavailable
from scamp_service.processes import addresses
from scamp_service.processes.addresses import (
    PORTS_TRIED,
    free_port,
    take_port,
    write_server_file,
)
from scamp_service.settings import Settings

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
    ("ports", "environment", "next_port", "num_ports"),
    [
        ({}, {}, False, PORTS_TRIED),
        ({"port": 8100}, {}, False, 1),
        ({}, {"SCAMP_PORT": "8100"}, False, 1),
        ({}, {"SCAMP_PORT": "8100"}, True, PORTS_TRIED),
    ],
)
def test_only_a_port_that_nobody_chose_moves_on(
    ports: dict[str, int],
    environment: dict[str, str],
    next_port: bool,
    num_ports: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SCAMP_PORT", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    calls: list[tuple[str, int, int]] = []

    def refuse(host: str, first: int, num: int) -> int:
        calls.append((host, first, num))
        raise Unavailable("no port for a test")

    monkeypatch.setattr(addresses, "free_port", refuse)
    with pytest.raises(Unavailable):
        take_port(Settings(data_dir=tmp_path, **ports), next_port=next_port)
    assert calls == [(LOOPBACK, 8100, num_ports)]


def test_a_service_takes_the_port_of_the_last_time_again_while_it_is_free(
    tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCAMP_PORT", raising=False)
    settings = Settings(data_dir=tmp_path)
    free = free_port(LOOPBACK, taken)
    write_server_file(tmp_path, url_of(LOOPBACK, free), runs=False)
    assert take_port(settings, next_port=False) == free, "it keeps its port though 8100 may be free"
    write_server_file(tmp_path, url_of(LOOPBACK, taken), runs=False)
    assert take_port(settings, next_port=True) != taken
    chosen = settings.model_copy(update={"port": free})
    assert take_port(chosen, next_port=False) == free, "what somebody chose comes first"


def test_a_host_without_ipv6_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(family: socket.AddressFamily) -> socket.socket:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(Unavailable, match=r"cannot listen on ::1 \(Address family.*--host"):
        free_port("::1", 8100)
