"""Requests that a trusted reverse proxy forwards, as the browser sent them: with its scheme, host and address."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.types import Scope

from scamp_service.receivers import Network

FORWARDED = "scamp.forwarded"


class TrustedProxies:
    """The networks whose ``X-Forwarded-*`` headers are believed; those of others are ignored."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = networks

    def as_sent(self, scope: Scope) -> Scope:
        """The request as the browser sent it to the proxy; unchanged unless a trusted proxy forwards it.

        A proxy may append its values to those that the browser invented, so the last ones count.
        """
        if not self._trusts(scope.get("client")):
            return scope
        headers = Headers(scope=scope)
        scheme = _last(headers, "x-forwarded-proto").lower()
        if scheme not in ("http", "https"):
            return scope
        host = _last(headers, "x-forwarded-host") or headers.get("host", "")
        other_headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
        client = (_last(headers, "x-forwarded-for") or scope["client"][0], 0)
        changed = {"scheme": scheme, "headers": [(b"host", host.encode("latin-1")), *other_headers], "client": client}
        return {**scope, **changed, FORWARDED: True}

    def _trusts(self, client: tuple[str, int] | None) -> bool:
        try:
            return client is not None and any(ip_address(client[0]) in network for network in self._networks)
        except ValueError:
            return False


def _last(headers: Headers, name: str) -> str:
    return ",".join(headers.getlist(name)).rpartition(",")[2].strip()
