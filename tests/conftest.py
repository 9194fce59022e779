"""Shared by all tests. What needs Ray, PostgreSQL, a browser or a GPU is marked; on CI only the GPU may be missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def find_postgres() -> Path | None:
    """The directory of PostgreSQL's server binaries, if they are installed."""
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    on_path = shutil.which("initdb")
    if on_path:
        candidates.append(Path(on_path).resolve().parent)
    return next((path for path in candidates if (path / "initdb").exists() and (path / "postgres").exists()), None)


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = {
        "postgres": None if find_postgres() else "PostgreSQL's server binaries (initdb, postgres) are not installed",
        "browser": None if find_chromium() else "Chromium is not installed",
    }
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker) and reason:
                if os.environ.get("CI"):
                    pytest.exit(f"{reason}, and on CI nothing but the GPU may be skipped", returncode=2)
                item.add_marker(pytest.mark.skip(reason=reason))
