"""A receiver is a URL or an e-mail address. Webhooks may reach only addresses of the internet or of named networks."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from pydantic import ValidationError

from scamp_service.receivers import Receiver, is_forbidden_host, may_reach

HOOK = "https://hooks.example.org/services/T0/secret"


@pytest.mark.parametrize(
    ("receiver", "words"),
    [
        ({}, "must have either webhook"),
        ({"webhook": HOOK, "email": "ada@example.org"}, "must have either webhook"),
        ({"webhook": "ftp://example.org/"}, "begins with http:// or https://"),
        ({"webhook": "https://"}, "begins with http"),
        ({"webhook": "https://exa mple.org"}, "begins with http"),
        ({"webhook": "https://user:word@example.org/"}, "without a user or a password"),
        ({"webhook": "https://example.org:0/"}, "begins with http"),
        ({"email": "ada"}, "one e-mail address"),
        ({"email": "ada@example.org, eve@example.org"}, "one e-mail address"),
        ({"email": "ada@example.org\nBcc: eve@example.org"}, "one e-mail address"),
        ({"email": "ada@example.org", "format": "slack"}, "format slack is that of a webhook"),
        ({"webhook": HOOK, "on": []}, "at least 1 item"),
        ({"webhook": HOOK, "on": ["study.began"]}, "Input should be"),
        ({"webhook": HOOK, "every": 3}, "Extra inputs"),
    ],
)
def test_a_receiver_that_cannot_be_told_is_refused(receiver: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Receiver.model_validate(receiver)


def test_a_receiver_is_told_of_the_end_of_a_study_by_default() -> None:
    receiver = Receiver.model_validate({"webhook": HOOK})
    assert (receiver.on, receiver.format, receiver.address) == (["study.ended"], "standard", HOOK)


def test_the_path_of_a_webhook_is_not_shown() -> None:
    assert Receiver(webhook=HOOK).shown == "https://hooks.example.org/…"
    assert Receiver(webhook="http://example.org").shown == "http://example.org/"
    assert Receiver(email="ada@example.org").shown == "ada@example.org"


PRIVATE = (
    *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
    *("224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2002:a9fe:a9fe::"),
)


@pytest.mark.parametrize("address", PRIVATE)
def test_a_webhook_may_not_reach_an_address_that_is_not_of_the_internet(address: str) -> None:
    assert not may_reach(address, ())


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:220:1::1", "::ffff:93.184.215.14"])
def test_a_webhook_may_reach_an_address_of_the_internet(address: str) -> None:
    assert may_reach(address, ())


def test_a_webhook_may_reach_the_networks_that_are_named_and_no_other() -> None:
    networks = [ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("::1")]
    assert may_reach("10.1.2.3", networks) and may_reach("::ffff:10.1.2.3", networks) and may_reach("::1", networks)
    assert not may_reach("10.2.2.3", networks) and not may_reach("127.0.0.1", networks)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254"]
)
def test_a_host_that_names_itself_private_is_known_without_looking_it_up(host: str) -> None:
    assert is_forbidden_host(f"http://{host}:80/", ())
    assert not is_forbidden_host("http://example.org/", ())
