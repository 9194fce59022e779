"""One API in this process over a database of its own, for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.serving import InProcess, settings_in


@pytest.fixture
def api(tmp_path: Path) -> Iterator[InProcess]:
    api = InProcess(settings_in(tmp_path))
    yield api
    api.close()
