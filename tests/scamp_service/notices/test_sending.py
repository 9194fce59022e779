"""Webhooks are signed, go only where they may, follow nothing and wait for nobody; e-mail says the same."""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from email import message_from_bytes
from typing import Any
from urllib.parse import urlsplit

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from scamp_service.lifecycle import DeliveryState
from scamp_service.model import Delivery
from scamp_service.notices import sending
from scamp_service.notices.sending import Means, post, send
from scamp_service.receivers import Receiver
from tests.services.receiving import Hooks, mail_server, receiving

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
LOCAL = [ipaddress.ip_network("127.0.0.1")]
TEXT = "Study 3 “digits”: Completed."
BODY = {"type": "study.ended", "timestamp": "2026-11-29T12:00:00Z", "data": {"text": TEXT}}


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    with receiving() as hooks:
        yield hooks


def delivery(**receiver: Any) -> Delivery:
    row = Receiver.model_validate(receiver).model_dump(mode="json")
    return Delivery(1, "msg_1", "study.ended", "", 3, "", row, BODY, DeliveryState.WAITING, 0.0, 0.0)


def test_a_webhook_is_signed_in_the_standard_form(hooks: Hooks) -> None:
    assert send(delivery(webhook=hooks.url), Means(SECRET, LOCAL)).is_delivered
    ((headers, body),) = hooks.requests
    assert Webhook(SECRET).verify(body, headers) == BODY and headers["webhook-id"] == "msg_1"
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_b3RoZXI=").verify(body, headers)


def test_a_webhook_of_slack_has_the_text_alone_and_calls_nobody(hooks: Hooks) -> None:
    event = {**BODY, "data": {"text": "Trial 4 has failed: <!channel> & more"}}
    sent = replace(delivery(webhook=hooks.url, format="slack"), body=event)
    assert send(sent, Means(SECRET, LOCAL)).is_delivered
    assert json.loads(hooks.requests[0][1]) == {"text": "Trial 4 has failed: &lt;!channel&gt; &amp; more"}


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "127.1", "017700000001", "[::1]", "[::ffff:127.0.0.1]"],
)
def test_a_webhook_to_this_machine_is_refused_however_its_address_is_written(hooks: Hooks, host: str) -> None:
    answer = post(hooks.url.replace("127.0.0.1", host), b"{}", {}, ())
    assert answer.is_final and "SCAMP_NOTIFY_NETWORKS" in answer.words and not hooks.requests


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fe80::1%eth0"])
def test_a_name_that_leads_to_a_private_address_is_refused(address: str) -> None:
    answer = post("https://example.org/", b"", {}, (), lambda host, port: [address])
    assert answer.is_final and answer.words.startswith(f"example.org is at {address}, which webhooks may not reach")


def test_a_name_is_looked_up_once_and_that_address_is_connected_to(hooks: Hooks) -> None:
    lookups = list[str]()

    def resolve(host: str, port: int) -> list[str]:  # the second answer leads elsewhere, as DNS rebinding does
        lookups.append(host)
        return ["10.0.0.1", "127.0.0.1"] if len(lookups) == 1 else ["10.0.0.1"]

    url = hooks.url.replace("127.0.0.1", "hooks.test")
    assert post(url, b"{}", {}, LOCAL, resolve).is_delivered and lookups == ["hooks.test"]
    assert hooks.requests[0][0]["host"] == urlsplit(url).netloc


@pytest.mark.parametrize(("status", "is_final"), [(302, False), (404, False), (500, False), (410, True)])
def test_only_a_status_of_success_counts_and_no_redirect_is_followed(hooks: Hooks, status: int, is_final: bool) -> None:
    hooks.answer = lambda: status
    answer = post(hooks.url, b"{}", {}, LOCAL)
    assert (answer.is_delivered, answer.words, answer.is_final) == (False, f"HTTP {status}", is_final)
    assert len(hooks.requests) == 1


@pytest.mark.parametrize("byte", [b"", b"H"])
def test_a_receiver_that_never_answers_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch, byte: bytes) -> None:
    monkeypatch.setattr(sending, "SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                while not ended.wait(0.02):
                    connection.send(byte)

        thread = threading.Thread(target=drip)
        thread.start()
        answer = post(f"http://127.0.0.1:{server.getsockname()[1]}/", b"{}", {}, LOCAL)
        ended.set()
        thread.join()
    assert answer.words == "no answer within 0 s"


def test_a_receiver_that_is_away_is_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    answer = post(f"http://127.0.0.1:{port}/", b"{}", {}, LOCAL)
    assert not answer.is_delivered and not answer.is_final and "refused" in answer.words


def test_an_e_mail_says_the_same_and_can_be_told_from_its_double() -> None:
    with mail_server() as mails:
        means = Means(SECRET, smtp_url=mails.url, mail_from="scamp@example.org")
        answer = send(delivery(email="ada@example.org"), means)
        (message,) = map(message_from_bytes, mails.messages)
    assert answer.is_delivered and answer.words == "accepted by 127.0.0.1"
    assert (message["To"], message["From"]) == ("ada@example.org", "scamp@example.org")
    assert message["Message-ID"] == "<msg_1@example.org>"
    content: Any = message.get_payload(decode=True)
    assert content.decode().strip() == TEXT


def test_no_password_is_sent_without_tls() -> None:
    with mail_server() as mails:
        url = mails.url.replace("smtp://", "smtp://user:word@")
        answer = send(delivery(email="ada@example.org"), Means(SECRET, smtp_url=url))
        assert "offers no TLS" in answer.words and not mails.messages


def test_an_e_mail_without_a_server_is_not_tried_again() -> None:
    answer = send(delivery(email="ada@example.org"), Means(SECRET))
    assert answer.is_final and "SCAMP_SMTP_URL" in answer.words
