"""Access to the API: without a token, anyone on this machine; with a token, whoever sends it as a bearer or a cookie.

Other sites cannot use a visitor's browser to reach the API: unknown ``Host`` names (DNS rebinding) and writes from
another origin are refused. There are no users or roles here.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import Annotated
from urllib.parse import parse_qs, quote, urlsplit

from fastapi import APIRouter, Query, Request, Response
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import problem, read_body
from api.proxy import FORWARDED, TrustedProxies
from scamp_service.errors import Refused
from scamp_service.settings import Settings

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
MIN_TOKEN = 16
NO_TOKEN = "an API token is needed: send it as `Authorization: Bearer TOKEN`, or set SCAMP_API_TOKEN for `scamp`"
WRONG_TOKEN = "the API token is wrong: send the SCAMP_API_TOKEN of the service as `Authorization: Bearer TOKEN`"
SESSION_SECONDS = 7 * 24 * 3600
MOST_FAILED = 10
WINDOW_SECONDS = 60.0
MOST_CLIENTS = 10_000
COOKIE = "scamp_session"
OPEN_PATHS = ("/healthz", "/readyz", "/login", "/logout")
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


def check_settings(settings: Settings) -> None:
    """Raise ``Refused`` for an address that other machines can reach without a token, and for a token easy to guess."""
    token = settings.api_token
    TrustedProxies(settings.trusted_proxies)
    if settings.host not in LOOPBACK and not token:
        raise Refused(
            f"{settings.host} can be reached from other machines: set SCAMP_API_TOKEN to at least {MIN_TOKEN} "
            "characters (`openssl rand -hex 16` makes one), or listen on 127.0.0.1"
        )
    if settings.trusted_proxies and not token:
        raise Refused("SCAMP_TRUSTED_PROXIES makes ScaMP reachable through a proxy: set SCAMP_API_TOKEN as well")
    if token and (len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token):
        raise Refused(
            f"SCAMP_API_TOKEN must be at least {MIN_TOKEN} printable ASCII characters without spaces; "
            "`openssl rand -hex 16` makes one"
        )


class Guard:
    """Middleware that refuses a wrong ``Host``, a cross-origin write or a missing token, and adds security headers.

    It refuses before the body is read.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._hosts = LOOPBACK | {settings.host} if settings.host in LOOPBACK else None
        self._token = _digest(settings.api_token) if settings.api_token else None
        self._api_token = settings.api_token
        self._proxies = TrustedProxies(settings.trusted_proxies)

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

        refusal = self._refusal(scope, Headers(scope=scope))
        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        forwarded = FORWARDED in scope  # only with a token, so that another name for this address gains nothing
        if self._hosts is not None and not forwarded and _host_name(host) not in self._hosts:
            return problem(421, f"this server does not answer for host {host[:100]!r}; use 127.0.0.1 or localhost")
        if scope["method"] not in SAFE_METHODS and _from_elsewhere(
            headers, host, scope["scheme"] if forwarded else None
        ):
            return problem(403, "pages of another origin may not write; use the dashboard, the CLI or the SDK")
        if self._token is None or _is_open(scope["path"]) or self._knows(headers):
            return None
        if scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
            query = scope["query_string"].decode("latin-1")
            address = f"{scope['path']}?{query}" if query else scope["path"]
            return RedirectResponse(f"/login?next={quote(address)}", 303)
        return problem(401, WRONG_TOKEN if "authorization" in headers else NO_TOKEN, {"WWW-Authenticate": "Bearer"})

    def _knows(self, headers: Headers) -> bool:
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return hmac.compare_digest(_digest(credentials.strip()), self._token or b"")
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return morsel is not None and _is_session(morsel.value, self._api_token, time.time())


def session_of(token: str, expires: int) -> str:
    """Value of a session cookie until ``expires`` (seconds since the epoch): signed with the token, without it."""
    signature = hmac.new(token.encode(), f"scamp session {expires}".encode(), hashlib.sha256).hexdigest()
    return f"{expires}.{signature}"


def _is_session(value: str, token: str, now: float) -> bool:
    expires = value.partition(".")[0]
    if not (expires.isascii() and expires.isdecimal() and len(expires) < 20 and int(expires) > now):
        return False
    return hmac.compare_digest(value.encode(), session_of(token, int(expires)).encode())


class FailedLogins:
    """Counts wrong tokens by client address, to slow down guessing."""

    def __init__(self) -> None:
        self._failed: dict[str, tuple[float, int]] = {}

    def wait_seconds(self, client: str, now: float) -> float:
        """Seconds until this client may try again; 0 when it may now."""
        began, number = self._failed.get(client, (now, 0))
        return max(0.0, began + WINDOW_SECONDS - now) if number >= MOST_FAILED else 0.0

    def add(self, client: str, now: float) -> None:
        """Count a wrong token."""
        if len(self._failed) >= MOST_CLIENTS:
            self._failed = {name: entry for name, entry in self._failed.items() if now - entry[0] < WINDOW_SECONDS}
        if len(self._failed) >= MOST_CLIENTS:
            self._failed.clear()  # bounded memory matters more: the token is not a word that guessing finds
        began, number = self._failed.get(client, (now, 0))
        self._failed[client] = (began, number + 1) if now - began < WINDOW_SECONDS else (now, 1)


def login_router(settings: Settings) -> APIRouter:
    """Routes of the login page, which exchanges the token for a session cookie."""
    router = APIRouter(include_in_schema=False)
    failed = FailedLogins()

    @router.get("/login")
    def login_page(target: Annotated[str, Query(alias="next")] = "/") -> HTMLResponse:
        return _login_page(_local(target), "")

    @router.post("/login")
    async def login(request: Request) -> Response:
        form = parse_qs((await read_body(request, 8192)).decode("utf-8", "replace"))
        target = _local(form.get("next", ["/"])[0])
        token = form.get("token", [""])[0].strip()
        client = request.client.host if request.client else ""
        if wait := failed.wait_seconds(client, time.monotonic()):
            words = f"Too many wrong tokens from this address. Try again in {wait:.0f} seconds."
            return _login_page(target, words, 429, {"Retry-After": str(max(1, round(wait)))})
        if not settings.api_token or not hmac.compare_digest(_digest(token), _digest(settings.api_token)):
            failed.add(client, time.monotonic())
            return _login_page(target, "This is not the token. ScaMP was started with another SCAMP_API_TOKEN.")
        answer = RedirectResponse(target, 303)
        secure = request.url.scheme == "https"
        answer.set_cookie(
            COOKIE, session_of(token, int(time.time()) + SESSION_SECONDS), max_age=SESSION_SECONDS,
            httponly=True, samesite="strict", secure=secure, path="/",
        )  # fmt: skip
        return answer

    @router.post("/logout")
    def logout() -> Response:
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict", path="/")
        return answer

    return router


def _login_page(target: str, wrong: str, status: int = 401, headers: Mapping[str, str] | None = None) -> HTMLResponse:
    html = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in · ScaMP</title><link rel="stylesheet" href="/static/current/style.css">
<link rel="icon" href="/static/current/favicon.svg" type="image/svg+xml"></head>
<body class="login"><main><h1>ScaMP</h1>
<form method="post" action="/login">
<input name="username" value="scamp" autocomplete="username" hidden>
<p><label for="token">API token</label> <input id="token" name="token" type="password" required autofocus
autocomplete="current-password"></p>
<input type="hidden" name="next" value="{escape(target)}">
{f'<p role="alert">{escape(wrong)}</p>' if wrong else ""}
<p><button type="submit">Log in</button></p>
</form></main></body></html>
"""
    return HTMLResponse(html, status if wrong else 200, {"Cache-Control": "no-store", **(headers or {})})


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


def _local(target: str) -> str:
    """Path to redirect to after login: ``target``, or ``/`` when it would lead to another site."""
    return target if target.startswith("/") and not target.startswith(("//", "/\\")) else "/"
