"""The study database as an Optuna storage: Optuna's own contract, and sharing a study with ScaMP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from optuna.testing.pytest_storages import StorageTestCase

from scamp_service.exchange.optuna_storage import ScampStorage


@pytest.fixture
def url(shared_url: str) -> str:
    return shared_url


@pytest.fixture
def storage(url: str) -> Iterator[ScampStorage]:
    opened = ScampStorage(url)
    yield opened
    opened.close()


class TestContract(StorageTestCase):
    """All tests that Optuna ships for storages."""
