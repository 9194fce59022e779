"""URLs: which service the command line talks to."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from scamp.addresses import LocalService, local_service, running_server
from scamp.errors import InvalidInput, Unavailable
from scamp_service.processes.addresses import write_server_file

LOOPBACK = "127.0.0.1"


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"url": "http://h:x", "pid": 1}'])
def test_a_damaged_server_file_counts_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "server.json").write_text(content)
    assert running_server(tmp_path) is None
    assert LocalService(tmp_path).url.endswith(":8100")


def test_the_address_of_the_own_data_directory_comes_first(tmp_path: Path) -> None:
    local = LocalService(tmp_path)
    assert local.url == "http://127.0.0.1:8100"
    write_server_file(tmp_path, "http://127.0.0.1:8107")
    assert running_server(tmp_path) == local.url_to_change() == "http://127.0.0.1:8107"
    write_server_file(tmp_path, "http://127.0.0.1:8107", runs=False)
    assert running_server(tmp_path) is None
    assert local.url_to_change() == "http://127.0.0.1:8107", "where it comes back, not where others are"
    assert LocalService(tmp_path, port=8108).url_to_change() == "http://127.0.0.1:8108"


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_nothing_is_changed_in_the_service_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily
) -> None:
    host = LOOPBACK if family is socket.AF_INET else "::1"
    with socket.socket(family) as other:
        other.bind((host, 0))
        other.listen()
        local = LocalService(tmp_path, host, other.getsockname()[1])
        url = local.url_to_change()
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        assert local.url == url, "who only reads sees what is there"
        with pytest.raises(Unavailable, match=r"belongs to the user \w+, so nothing was changed; .*--address http"):
            local.url_to_change()
        write_server_file(tmp_path, url)
        assert local.url_to_change() == url, "this data directory says that it is its own"


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
def test_addresses_of_both_kinds_become_urls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, url: str
) -> None:
    monkeypatch.setenv("SCAMP_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("SCAMP_HOST", host)
    monkeypatch.setenv("SCAMP_PORT", "81")
    assert local_service().url == url


@pytest.mark.parametrize("port", ["x", "0", "70000", "-1", "1_0"])
def test_a_port_that_is_none_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    monkeypatch.setenv("SCAMP_PORT", port)
    with pytest.raises(InvalidInput, match=r"SCAMP_PORT is .*whole number from 1 to 65535"):
        local_service()
