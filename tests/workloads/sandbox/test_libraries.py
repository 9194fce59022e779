"""Only installed libraries are listed, not the user's files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from workloads.sandbox import libraries
from workloads.sandbox.libraries import import_all, imported_since


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_num_threads", lambda: 1)


def test_installed_modules_are_listed_and_a_users_own_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_users_own.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("a_users_own")
    assert imported_since(set(sys.modules) - {"a_users_own", "numpy"}, os.environ) == ["numpy"]


def test_nothing_is_listed_where_imports_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(os.environ)
    monkeypatch.setenv("SOMETHING_NEW", "1")
    assert imported_since((), before) == []
    monkeypatch.setattr(libraries, "_num_threads", lambda: 2)
    assert imported_since((), os.environ) == []


def test_what_cannot_be_imported_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "another_own.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    import_all(["no_such_module", "another_own", "colorsys"])
    assert "another_own" not in sys.modules and "colorsys" in sys.modules
