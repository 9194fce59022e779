"""Receivers of notices, as a study (its key notify) and the settings (SCAMP_NOTIFY) name them, and the addresses that
webhooks may reach.

Nothing is sent here: see ``scamp_service.notices``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MOST_RECEIVERS = 10
Kind = Literal["study.ended", "trial.failed", "trial.healed", "trial.best", "quota.near", "devices.idle", "trial.idle"]
"""Everything that a receiver may ask for."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_EMAIL = re.compile(r"[^\s@,;:<>\"()\[\]\\]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class Receiver(BaseModel):
    """A webhook or an e-mail address, and what it is told ``on``. ``format`` is that of a webhook's body."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    webhook: Annotated[str, Field(max_length=2000)] | None = None
    email: Annotated[str, Field(max_length=254)] | None = None
    on: Annotated[list[Kind], Field(min_length=1, max_length=7)] = ["study.ended"]
    format: Literal["standard", "slack"] = "standard"

    @field_validator("webhook")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        if url is not None:
            expect_url(url, "http", "https")
        return url

    @field_validator("email")
    @classmethod
    def _is_email(cls, address: str | None) -> str | None:
        if address is not None and not (address.isascii() and _EMAIL.fullmatch(address)):
            raise ValueError("must be one e-mail address, such as ada@example.org")
        return address

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.webhook is None) == (self.email is None):
            raise ValueError("must have either webhook, a URL, or email, an address")
        if self.email is not None and self.format != "standard":
            raise ValueError(f"format {self.format} is that of a webhook; an e-mail has none")
        return self

    @property
    def address(self) -> str:
        """The URL or the e-mail address."""
        return self.webhook or f"{self.email}"

    @property
    def shown(self) -> str:
        """The address without the path of a URL, which may be a secret, as those of Slack are."""
        if self.webhook is None:
            return self.address
        parts = urlsplit(self.webhook)
        return f"{parts.scheme}://{parts.netloc}/" + ("…" if parts.path.strip("/") or parts.query else "")


def expect_url(url: str, *schemes: str) -> None:
    """Raise ``ValueError`` unless ``url`` is one of these schemes and names a host."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or not re.fullmatch(r"[!-~]+", url):
        raise ValueError(f"must be a URL that begins with {' or '.join(f'{scheme}://' for scheme in schemes)}")
    if "http" in schemes and "@" in urlsplit(url).netloc:
        raise ValueError("must be a URL without a user or a password")


def may_reach(address: str, networks: Sequence[Network]) -> bool:
    """Whether webhooks may go to this IP address: one of the internet, or of one of the ``networks``.

    An IPv6 address that stands for an IPv4 one (mapped, 6to4, NAT64) is judged as that.
    """
    number = _meant(ipaddress.ip_address(address))
    is_public = number.is_global and not number.is_multicast and not number.is_reserved
    return is_public or any(number in network for network in networks)


def _meant(address: Address) -> Address:
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def is_forbidden_host(url: str, networks: Sequence[Network]) -> bool:
    """Whether the host of ``url`` is an IP address, or ``localhost``, that webhooks may not reach.

    Any other name is looked up when a notice is sent.
    """
    host = urlsplit(url).hostname or ""
    try:
        return not may_reach("127.0.0.1" if host == "localhost" else host, networks)
    except ValueError:
        return False
