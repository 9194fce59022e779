"""The files that begin first exist."""

from __future__ import annotations

from tests.conftest import LONG, ROOT


def test_files_that_begin_first_exist() -> None:
    """A file that was moved would begin last, and all would wait for it."""
    assert [file for file in LONG if not (ROOT / "tests" / f"{file}.py").is_file()] == []
