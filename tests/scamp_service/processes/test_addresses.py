"""Ports and URLs: which port a service takes, and which service the command line talks to."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from scamp_service.errors import Unavailable
from scamp_service.processes import addresses
from scamp_service.processes.addresses import (
    PORTS_TRIED,
    free_port,
    own_url,
    running_server,
    take_port,
    url_of,
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


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"url": "http://h:x", "pid": 1}'])
def test_a_damaged_server_file_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.delenv("SCAMP_PORT", raising=False)
    (tmp_path / "server.json").write_text(content)
    assert running_server(tmp_path) is None
    assert own_url(Settings(data_dir=tmp_path), to_change=False).endswith(":8100")


def test_the_address_of_the_own_data_directory_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCAMP_PORT", raising=False)
    settings = Settings(data_dir=tmp_path)
    assert own_url(settings, to_change=False) == "http://127.0.0.1:8100"
    write_server_file(tmp_path, "http://127.0.0.1:8107")
    assert running_server(tmp_path) == own_url(settings, to_change=True) == "http://127.0.0.1:8107"
    write_server_file(tmp_path, "http://127.0.0.1:8107", runs=False)
    assert running_server(tmp_path) is None
    assert own_url(settings, to_change=True) == "http://127.0.0.1:8107", "where it comes back, not where others are"
    assert own_url(Settings(data_dir=tmp_path, port=8108), to_change=True) == "http://127.0.0.1:8108"


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_nothing_is_changed_in_the_service_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily
) -> None:
    host = LOOPBACK if family is socket.AF_INET else "::1"
    with socket.socket(family) as other:
        other.bind((host, 0))
        other.listen()
        settings = Settings(data_dir=tmp_path, host=host, port=other.getsockname()[1])
        url = own_url(settings, to_change=True)
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        assert own_url(settings, to_change=False) == url, "who only reads sees what is there"
        with pytest.raises(Unavailable, match=r"belongs to the user \w+, so nothing was changed; .*--address http"):
            own_url(settings, to_change=True)
        write_server_file(tmp_path, url)
        assert own_url(settings, to_change=True) == url, "this data directory says that it is its own"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:81"),
        ("0.0.0.0", "http://127.0.0.1:81"),
        ("::1", "http://[::1]:81"),
        ("[::1]", "http://[::1]:81"),
        ("::", "http://[::1]:81"),
        ("fe80::1%eth0", "http://[fe80::1%25eth0]:81"),
        ("localhost", "http://localhost:81"),
    ],
)
def test_addresses_of_both_kinds_become_urls(host: str, url: str) -> None:
    assert url_of(Settings(host=host).host, 81) == url


def test_a_host_without_ipv6_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(family: socket.AddressFamily) -> socket.socket:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(Unavailable, match=r"cannot listen on ::1 \(Address family.*--host"):
        free_port("::1", 8100)
