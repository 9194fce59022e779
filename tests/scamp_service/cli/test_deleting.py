"""``scamp delete`` against a real service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scamp_service.cli.main import app
from scamp_service.errors import Conflict
from scamp_service.lifecycle import StudyState
from scamp_service.store.store import Store
from tests.services.serving import free_port, full_spec, served, settings_in


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[str, Store]]:
    with served(settings_in(tmp_path, port=free_port())) as (url, store):
        store.studies.create(full_spec(), now=1.0)
        yield url, store


def test_a_study_is_deleted_only_when_that_is_confirmed(service: tuple[str, Store]) -> None:
    url, store = service
    assert store.studies.move(1, [StudyState.RUNNING], StudyState.COMPLETED, now=2.0)
    refused = CliRunner().invoke(app, ["delete", "1", "--address", url], input="n\n")
    assert refused.exit_code == 1 and "with its 0 trials" in refused.output
    assert store.studies.page() != []
    assert CliRunner().invoke(app, ["delete", "1", "--address", url], input="y\n").exit_code == 0
    assert store.studies.page() == []
    assert CliRunner().invoke(app, ["delete", "1", "--yes", "--address", url]).exit_code == 0, "it is deleted already"


def test_a_running_study_is_not_deleted(service: tuple[str, Store]) -> None:
    url, store = service
    result = CliRunner().invoke(app, ["delete", "1", "--yes", "--address", url])
    assert isinstance(result.exception, Conflict) and "scamp stop 1" in str(result.exception)
    assert len(store.studies.page()) == 1
