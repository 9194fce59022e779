"""Only hashes of passwords are kept."""

from __future__ import annotations

import pytest

from scamp_service.access.passwords import hash_password, is_password
from scamp_service.errors import InvalidInput


def test_a_password_is_known_by_its_hash_alone() -> None:
    hashed = hash_password("correct horse")
    assert hashed.startswith("$argon2id$") and "correct" not in hashed
    assert is_password("correct horse", hashed)
    assert not is_password("correct horsf", hashed)
    assert not is_password("nobody has this password", None)


@pytest.mark.parametrize("password", ["short", "x" * 201])
def test_a_password_of_another_length_is_refused(password: str) -> None:
    with pytest.raises(InvalidInput, match="10 to 200"):
        hash_password(password)
