"""One S3 server for all tests of object storage."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.services.s3 import METHODS, ObjectStorage, object_storage


@pytest.fixture(scope="package")
def server() -> Iterator[ObjectStorage]:
    with object_storage() as storage:
        yield storage


@pytest.fixture
def storage(server: ObjectStorage) -> Iterator[ObjectStorage]:
    """The server with an own folder, which serves as it should again at the end."""
    server.prefix = uuid.uuid4().hex[:8]
    yield server
    server.refuses, server.seconds, server.methods = 0, 0.0, set(METHODS)
