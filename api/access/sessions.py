"""The cookie of a browser that has logged in: signed with the shared token, or the secret of a session of a user."""

from __future__ import annotations

import hashlib
import hmac

COOKIE = "scamp_session"
SESSION_SECONDS = 7 * 24 * 3600


def session_of(token: str, expires: int) -> str:
    """Value of a session cookie until ``expires`` (seconds since the epoch): signed with the token, without it."""
    signature = hmac.new(token.encode(), f"scamp session {expires}".encode(), hashlib.sha256).hexdigest()
    return f"{expires}.{signature}"


def is_session(value: str, token: str, now: float) -> bool:
    """Whether a cookie has this value with the shared token, and has not expired."""
    expires = value.partition(".")[0]
    if not (expires.isascii() and expires.isdecimal() and len(expires) < 20 and int(expires) > now):
        return False
    return hmac.compare_digest(value.encode(), session_of(token, int(expires)).encode())
