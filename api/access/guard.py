"""Lets requests in: anybody on this machine where there are neither a token nor users, otherwise whoever has a token.

A token is sent as a bearer, or by the browser as a cookie. Other sites cannot use a visitor's browser to reach the API:
unknown ``Host`` names (DNS rebinding) and writes from another origin are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, State
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access.limiter import Limiter
from api.access.sessions import COOKIE, is_session
from api.problems import problem
from api.proxy import FORWARDED, TrustedProxies
from scamp_service.access.model import EVERYTHING, Access
from scamp_service.errors import Unavailable
from scamp_service.settings import LOOPBACK, Settings
from scamp_service.store.store import Store

ACCESS = "scamp.access"
"""Where the scope of a request has its ``Access``."""
NO_TOKEN = "a token is needed: send it as `Authorization: Bearer TOKEN`, or set SCAMP_API_TOKEN for `scamp`"
WRONG_TOKEN = (
    "the API token is wrong, has expired or was revoked: send SCAMP_API_TOKEN of the service or a token of yours as "
    "`Authorization: Bearer TOKEN`"
)
KNOWN_SECONDS = 1.0
"""How long it counts that there are no users, unless this process adds one: requests read nothing for that."""
OPEN_PATHS = ("/healthz", "/readyz", "/login", "/login/oidc", "/login/oidc/callback", "/logout")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
SECURITY_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; object-src 'none'; frame-ancestors 'none'; form-action 'self'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Guard:
    """Middleware that lets a request in with its ``Access``, or refuses it before the body is read: a wrong ``Host``, a
    cross-origin write, a missing token. Adds security headers."""

    def __init__(self, app: ASGIApp, settings: Settings, store: Store) -> None:
        self._app, self._store = app, store
        self._hosts = {*LOOPBACK, settings.host} if settings.host in LOOPBACK else None
        self._token = _digest(settings.api_token) if settings.api_token else None
        self._api_token = settings.api_token
        self._is_open = self._token is None and settings.oidc is None  # unless there are users
        self._proxies = TrustedProxies(settings.proxy_networks)
        self._read_at = time.monotonic()
        self._most_requests = settings.requests_per_minute
        self._requests = Limiter(self._most_requests) if self._most_requests else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        scope = self._proxies.as_sent(scope)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((name, value) for name, value in SECURITY_HEADERS if name not in present),
                ]
            await send(message)

        answer = await self._answer(scope, Headers(scope=scope))
        await answer(scope, receive, with_headers)

    async def _answer(self, scope: Scope, headers: Headers) -> ASGIApp:
        """The app, or what refuses the request."""
        host = headers.get("host", "")
        forwarded = FORWARDED in scope  # only with a token, so that another name for this address gains nothing
        if self._hosts is not None and not forwarded and _host_name(host) not in self._hosts:
            return problem(421, f"this server does not answer for host {host[:100]!r}; use 127.0.0.1 or localhost")
        if scope["method"] not in SAFE_METHODS and _from_elsewhere(
            headers, host, scope["scheme"] if forwarded else None
        ):
            return problem(403, "pages of another origin may not write; use the dashboard, the CLI or the SDK")
        if _is_open(scope["path"]):
            return self._app
        try:
            access = await self._access(headers, scope["app"].state)
        except Unavailable as error:
            return problem(503, str(error), {"Retry-After": "1"})
        if access is not None:
            if wait := self._wait_seconds(access, scope):
                words = f"too many requests: at most {self._most_requests} in a minute; try again in {wait:.0f} seconds"
                return problem(429, words, {"Retry-After": str(max(1, round(wait)))})
            scope[ACCESS] = access
            return self._app
        if scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
            query = scope["query_string"].decode("latin-1")
            address = f"{scope['path']}?{query}" if query else scope["path"]
            return RedirectResponse(f"/login?next={quote(address)}", 303)
        return problem(401, WRONG_TOKEN if "authorization" in headers else NO_TOKEN, {"WWW-Authenticate": "Bearer"})

    def _wait_seconds(self, access: Access, scope: Scope) -> float:
        """Seconds until its user, or the address of one without a name, may send this request; 0: it may now."""
        if self._requests is None:
            return 0.0
        return self._requests.hit(access.name or str((scope.get("client") or ("",))[0]))

    async def _access(self, headers: Headers, state: State) -> Access | None:
        if self._is_open and not await self._are_there_users(state):
            return EVERYTHING
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            secret = credentials.strip()
            if self._token is not None and hmac.compare_digest(_digest(secret), self._token):
                return EVERYTHING
            return await self._of_secret(secret)
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return None
        if morsel is None:
            return None
        if self._token is not None and is_session(morsel.value, self._api_token, time.time()):
            return EVERYTHING
        return await self._of_secret(morsel.value)

    async def _of_secret(self, secret: str) -> Access | None:
        return await run_in_threadpool(self._store.tokens.access_of, secret, now=time.time())

    async def _are_there_users(self, state: State) -> bool:
        """Whether there are users. While the database cannot be read, what was read last counts."""
        if not state.has_users and time.monotonic() - self._read_at > KNOWN_SECONDS:
            self._read_at = time.monotonic()
            with suppress(Unavailable):
                state.has_users = await run_in_threadpool(self._store.users.exist)
        has_users: bool = state.has_users
        return has_users


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith("/static/")


def _host_name(host: str) -> str:
    """Host name without the port and without the brackets of an IPv6 address; empty when it cannot be parsed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _from_elsewhere(headers: Headers, host: str, scheme: str | None) -> bool:
    """Whether a browser says that the request comes from a page of another origin. Other clients say nothing.

    ``scheme`` is None where a proxy may have changed it.
    """
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    its_scheme, _, its_host = origin.rpartition("://")
    return its_host.lower() != host.lower() or scheme not in (None, its_scheme.lower())
