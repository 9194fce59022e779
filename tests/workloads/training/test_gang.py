"""The network interface of a gang's collectives."""

from __future__ import annotations

import os
from typing import Any

import pytest

from workloads.training import gang


class FakeStore:
    """A rendezvous store at an address."""

    def __init__(self, host: str) -> None:
        self.host, self.port = host, 1


@pytest.fixture(autouse=True)
def _stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang, "TCPStore", FakeStore)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)


def interface_within(store: Any) -> str | None:
    with gang._gloo_interface(store):
        return os.environ.get("GLOO_SOCKET_IFNAME")


def test_a_gang_on_one_host_uses_the_loopback_interface() -> None:
    assert interface_within(FakeStore("127.0.0.1")) == "lo"
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_a_gang_over_hosts_uses_the_interface_that_leads_to_its_store() -> None:
    """Another address of the loopback network stands for another host: the interface towards it has 127.0.0.1."""
    assert interface_within(FakeStore("127.0.0.2")) == "lo"
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_gloo_decides_where_no_interface_is_known() -> None:
    assert interface_within(FakeStore("::2")) is None


def test_the_users_choice_of_an_interface_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert interface_within(FakeStore("127.0.0.2")) == "eth7"
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
