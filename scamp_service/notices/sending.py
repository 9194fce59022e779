"""Sends one delivery: a webhook signed by the specification of Standard Webhooks, or an e-mail.

A webhook goes to addresses of the internet only, and to those of networks that the settings name. This is checked on
the address that is connected to, so a name that leads elsewhere a moment later (DNS rebinding) does not help. No
redirect is followed, and no proxy of the environment is used. An attempt takes ``SECONDS`` at most, whatever the
receiver does.
"""

from __future__ import annotations

import json
import smtplib
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

import httpcore
import httpx
from standardwebhooks import Webhook

from scamp import __version__
from scamp_service.model import Delivery
from scamp_service.notices.retries import Answer
from scamp_service.receivers import Network, Receiver, may_reach

SECONDS = 10.0
GONE = 410
"""Status by which a receiver asks for no more webhooks."""
Resolve = Callable[[str, int], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Means:
    """All that is needed to send: the signing secret, and what the settings say."""

    secret: str
    networks: Sequence[Network] = ()
    smtp_url: str = ""
    mail_from: str = ""


def send(delivery: Delivery, means: Means) -> Answer:
    """Send a delivery once. It never raises for what a receiver does."""
    receiver = Receiver.model_validate(delivery.receiver)
    text = str(delivery.body["data"]["text"])
    if receiver.email is not None:
        return _mail(receiver.email, text, delivery, means)
    event = {"text": _for_slack(text)} if receiver.format == "slack" else delivery.body
    body = json.dumps(event, separators=(",", ":"))
    now = datetime.now(UTC)
    headers = {
        "content-type": "application/json",
        "user-agent": f"ScaMP/{__version__}",
        "webhook-id": delivery.webhook_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(means.secret).sign(delivery.webhook_id, now, body),
    }
    return post(receiver.address, body.encode(), headers, means.networks)


def _for_slack(text: str) -> str:
    """``text`` in which nothing is a link or a mention of everybody; see "Escaping text" in Slack's documentation."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class ForbiddenAddress(Exception):
    """A name that leads to addresses which webhooks may not reach."""


def addresses_of(host: str, port: int) -> list[str]:
    """The IP addresses of a host name, which may itself be one in any notation."""
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    networks: Sequence[Network],
    resolve: Resolve = addresses_of,
) -> Answer:
    """Send a request, whose answer is only its status."""
    deadline = time.monotonic() + SECONDS
    options = {"timeout": dict.fromkeys(("connect", "read", "write", "pool"), SECONDS)}
    try:
        backend = _Guarded(networks, deadline, resolve)
        with (
            httpcore.ConnectionPool(_ssl_context(), network_backend=backend) as pool,
            pool.stream("POST", url, headers=list(headers.items()), content=body, extensions=options) as response,
        ):
            status = response.status
    except ForbiddenAddress as error:
        return Answer(False, str(error), is_final=True)
    except (httpcore.TimeoutException, TimeoutError):
        return Answer(False, f"no answer within {SECONDS:.0f} s")
    except (httpcore.NetworkError, httpcore.ProtocolError, OSError, UnicodeError) as error:
        return Answer(False, _words(error))
    return Answer(200 <= status < 300, f"HTTP {status}", is_final=status == GONE)


class _Guarded(httpcore.SyncBackend):
    """Connects only to addresses that webhooks may reach, and only until the deadline."""

    def __init__(self, networks: Sequence[Network], deadline: float, resolve: Resolve) -> None:
        self._networks, self._deadline, self._resolve = networks, deadline, resolve

    def connect_tcp(self, host: str, port: int, *options: Any, **more: Any) -> httpcore.NetworkStream:
        found_addresses = list(dict.fromkeys(self._resolve(host, port)))
        addresses = [address for address in found_addresses if may_reach(address, self._networks)]
        if not addresses:
            raise ForbiddenAddress(
                f"{host} is at {', '.join(found_addresses)}, which webhooks may not reach; SCAMP_NOTIFY_NETWORKS of "
                "the service lists private networks that they may"
            )
        for address in addresses[:-1]:
            try:
                return self._connect(address, port)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return self._connect(addresses[-1], port)

    def _connect(self, address: str, port: int) -> httpcore.NetworkStream:
        return _Timed(super().connect_tcp(address, port, _left(self._deadline)), self._deadline)


class _Timed(httpcore.NetworkStream):
    """A stream that ends at a deadline: a receiver that sends a byte now and then would otherwise be waited for."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: float) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(self._deadline))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(self._deadline))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Timed(self._stream.start_tls(ssl_context, server_hostname, _left(self._deadline)), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


@cache
def _ssl_context() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def _mail(address: str, text: str, delivery: Delivery, means: Means) -> Answer:
    if not means.smtp_url:
        return Answer(False, "SCAMP_SMTP_URL of the service is not set", is_final=True)
    parts = urlsplit(means.smtp_url)
    sender = means.mail_from or f"scamp@{socket.getfqdn()}"
    message = EmailMessage()
    message["Subject"] = f"ScaMP: {text.splitlines()[0]}"[:150]
    message["From"], message["To"] = sender, address
    message["Message-ID"] = f"<{delivery.webhook_id}@{sender.rpartition('@')[2] or 'scamp'}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(f"{text}\n")
    host, context = parts.hostname or "", ssl.create_default_context()
    is_tls = parts.scheme == "smtps"
    try:
        with (
            smtplib.SMTP_SSL(host, parts.port or 465, timeout=SECONDS, context=context)
            if is_tls
            else smtplib.SMTP(host, parts.port or 25, timeout=SECONDS)
        ) as server:
            if not is_tls:
                server.ehlo_or_helo_if_needed()
                if is_tls := server.has_extn("starttls"):
                    server.starttls(context=context)
            if parts.username:
                if not is_tls:
                    return Answer(False, f"{host} offers no TLS, without which no password is sent to it")
                server.login(unquote(parts.username), unquote(parts.password or ""))
            server.send_message(message)
    except (smtplib.SMTPException, OSError) as error:
        return Answer(False, _words(error))
    return Answer(True, f"accepted by {host}")


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
