"""Passwords, of which only Argon2 hashes are kept."""

from __future__ import annotations

from functools import cache
from typing import Any

from scamp_service.errors import InvalidInput

MIN_PASSWORD, MAX_PASSWORD = 10, 200


def hash_password(password: str) -> str:
    """The hash to store. Raises ``InvalidInput`` for a password that is too short or too long."""
    if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        raise InvalidInput(f"a password has {MIN_PASSWORD} to {MAX_PASSWORD} characters")
    hashed: str = _hasher().hash(password)
    return hashed


def is_password(password: str, hashed: str | None) -> bool:
    """Whether it is the password with this hash. Without one it takes as long, so that times tell nothing."""
    is_right: bool = _hasher().verify(password[:MAX_PASSWORD], hashed or _nobodys_hash())
    return is_right and hashed is not None


@cache
def _hasher() -> Any:
    from pwdlib import PasswordHash  # imported here: few processes need it

    return PasswordHash.recommended()


@cache
def _nobodys_hash() -> str:
    hashed: str = _hasher().hash("nobody has this password")
    return hashed
