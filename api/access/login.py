"""The login page, which exchanges a token, or the name and password of a user, for a session cookie."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from html import escape
from typing import Annotated, Literal
from urllib.parse import parse_qs, quote, urlsplit

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse

from api.access.limiter import Limiter
from api.access.oidc import STATE_COOKIE, STATE_SECONDS, Provider
from api.access.sessions import COOKIE, SESSION_SECONDS, session_of
from api.problems import read_body
from scamp_service.access.model import Actor
from scamp_service.access.passwords import is_password
from scamp_service.errors import NotFound, Refused, ScampError, Unavailable
from scamp_service.settings import Settings
from scamp_service.store.store import Store

MOST_FAILED = 10
"""Wrong tokens and passwords in a minute from one address, or for one user."""
_WRONG_TOKEN = "This token is wrong, has expired or was revoked."
_WRONG_PASSWORD = "Name or password is wrong. To log in with a token, leave the name empty."
_USER = """<p><label for="user">Name (empty for a token)</label> <input id="user" name="user" autofocus
autocomplete="username"></p>"""


def login_router(settings: Settings, store: Store) -> APIRouter:
    """Routes of the login page and of the button to log out."""
    router = APIRouter(include_in_schema=False)
    failed = Limiter(MOST_FAILED)
    provider = Provider(settings.oidc) if settings.oidc else None

    def page(target: str, wrong: str, status: int = 401, headers: Mapping[str, str] | None = None) -> HTMLResponse:
        issuer = settings.oidc.issuer if settings.oidc else ""
        return _login_page(target, wrong, _has_users(store), issuer, status, headers)

    @router.get("/login")
    def login_page(target: Annotated[str, Query(alias="next")] = "/") -> HTMLResponse:
        return page(_local(target), "")

    @router.post("/login")
    async def login(request: Request) -> Response:
        form = parse_qs((await read_body(request, 8192)).decode("utf-8", "replace"))
        target = _local(form.get("next", ["/"])[0])
        name, secret = form.get("user", [""])[0].strip(), form.get("token", [""])[0].strip()
        client = request.client.host if request.client else ""
        guessed = [client, *([f"user {name}"] if name else [])]
        if wait := max(map(failed.wait_seconds, guessed)):
            words = f"Too many wrong attempts. Try again in {wait:.0f} seconds."
            return await run_in_threadpool(page, target, words, 429, {"Retry-After": str(max(1, round(wait)))})
        session = await run_in_threadpool(session_for, name, secret, client)
        if session is None:
            for key in guessed:
                failed.hit(key)
            return await run_in_threadpool(page, target, _WRONG_PASSWORD if name else _WRONG_TOKEN)
        answer = RedirectResponse(target, 303)
        _set_cookie(answer, request, COOKIE, session, SESSION_SECONDS)
        return answer

    def session_for(name: str, secret: str, address: str) -> str | None:
        """Value of the cookie for this name and password, or for this token without a name; None if it is wrong."""
        now = time.time()
        expires_at = now + SESSION_SECONDS
        if name:
            if not is_password(secret, store.users.password(name)):
                return None
            tokens = store.acting(Actor(name, address)).tokens
            return tokens.create(name, "browser", expires_at=expires_at, is_session=True, now=now)[1]
        if settings.api_token and hmac.compare_digest(_digest(secret), _digest(settings.api_token)):
            return session_of(secret, int(expires_at))
        return store.tokens.begin_session(secret, address, expires_at=expires_at, now=now)

    @router.get("/login/oidc")
    def begin_at_provider(request: Request, target: Annotated[str, Query(alias="next")] = "/") -> Response:
        if provider is None:
            raise NotFound("no OpenID Connect provider is set (SCAMP_OIDC)")
        try:
            address, cookie = provider.begin(_callback(request), _local(target))
        except Refused as error:
            return page(_local(target), str(error))
        answer = RedirectResponse(address, 303)
        _set_cookie(answer, request, STATE_COOKIE, cookie, STATE_SECONDS, samesite="lax")  # sent on the way back
        return answer

    @router.get("/login/oidc/callback")
    def end_at_provider(request: Request) -> Response:
        if provider is None:
            raise NotFound("no OpenID Connect provider is set (SCAMP_OIDC)")
        now = time.time()
        try:
            cookie = request.cookies.get(STATE_COOKIE, "")
            identity, target = provider.finish(_callback(request), cookie, request.query_params)
            roles, is_admin = provider.rights(identity.groups)
            address = request.client.host if request.client else ""
            provided = store.acting(Actor("", address)).users  # not by the name, which people may choose there
            name = provided.log_in(
                identity.subject, identity.name, email=identity.email, roles=roles, is_admin=is_admin, now=now
            )
            tokens = store.acting(Actor(name, address)).tokens
            _, session = tokens.create(name, "browser", expires_at=now + SESSION_SECONDS, is_session=True, now=now)
        except ScampError as error:
            return page("/", str(error))
        request.app.state.has_users = True
        # Not a redirect: browsers leave out SameSite=Strict cookies on one that began at another site.
        answer = HTMLResponse(f'<meta http-equiv="refresh" content="0; url={escape(target)}">')
        _set_cookie(answer, request, COOKIE, session, SESSION_SECONDS)
        answer.delete_cookie(STATE_COOKIE, path="/login")
        return answer

    @router.post("/logout")
    def logout(request: Request) -> Response:
        store.tokens.log_out(request.cookies.get(COOKIE, ""), now=time.time())
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict", path="/")
        return answer

    return router


def _has_users(store: Store) -> bool:
    try:
        return store.users.exist()
    except Unavailable:  # the shared token still lets one in
        return False


def _callback(request: Request) -> str:
    return f"{request.url.scheme}://{request.headers.get('host', '')}/login/oidc/callback"


def _set_cookie(
    answer: Response,
    request: Request,
    name: str,
    value: str,
    seconds: int,
    samesite: Literal["strict", "lax"] = "strict",
) -> None:
    secure = request.url.scheme == "https"
    path = "/login" if name == STATE_COOKIE else "/"
    answer.set_cookie(name, value, max_age=seconds, httponly=True, samesite=samesite, secure=secure, path=path)


def _login_page(
    target: str, wrong: str, has_users: bool, issuer: str, status: int, headers: Mapping[str, str] | None
) -> HTMLResponse:
    at_provider = f'<p><a href="/login/oidc?next={quote(target)}">Log in at {escape(urlsplit(issuer).netloc)}</a></p>'
    secret = "Password, or a token" if has_users else "API token"
    user = _USER if has_users else '<input name="username" value="scamp" autocomplete="username" hidden>'
    html = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in · ScaMP</title><link rel="stylesheet" href="/static/current/style.css">
<link rel="icon" href="/static/current/favicon.svg" type="image/svg+xml"></head>
<body class="login"><main><h1>ScaMP</h1>
<form method="post" action="/login">
{user}
<p><label for="token">{secret}</label> <input id="token" name="token" type="password" required
autocomplete="current-password"></p>
<input type="hidden" name="next" value="{escape(target)}">
{f'<p role="alert">{escape(wrong)}</p>' if wrong else ""}
<p><button type="submit">Log in</button></p>
{at_provider if issuer else ""}
</form></main></body></html>
"""
    return HTMLResponse(html, status if wrong else 200, {"Cache-Control": "no-store", **(headers or {})})


def _local(target: str) -> str:
    """Path to redirect to after login: ``target``, or ``/`` when it would lead to another site."""
    return target if target.startswith("/") and not target.startswith(("//", "/\\")) else "/"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
