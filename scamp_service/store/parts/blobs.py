"""Files of users, stored by their content."""

from __future__ import annotations

import hashlib
from typing import cast

from scamp_service.errors import InvalidInput, NotFound
from scamp_service.store import queries, schema
from scamp_service.store import statements as sql
from scamp_service.store.parts.part import WritingPart

MAX_BLOB_BYTES = 64 * 2**20


class Blobs(WritingPart):
    """Reads and writes of files."""

    def put(self, data: bytes) -> str:
        """Store bytes under their sha256, and return it in hex. Raises ``InvalidInput`` above 64 MiB."""
        if len(data) > MAX_BLOB_BYTES:
            raise InvalidInput(
                f"{len(data) / 2**20:.1f} MiB of files are more than the {MAX_BLOB_BYTES // 2**20} MiB allowed; "
                "leave out data, and read it from a path that all nodes share"
            )
        sha256 = hashlib.sha256(data).hexdigest()
        if self._row(sql.HAS_BLOB, sha256=sha256):
            return sha256
        with self._write() as connection:
            connection.execute(self._insert_new(schema.blobs, "sha256"), {"sha256": sha256, "data": data})
        return sha256

    def get(self, sha256: str) -> bytes:
        """The bytes that ``put`` stored. Raises ``NotFound``."""
        data = self._value(queries.BLOB, sha256=sha256)
        if data is None:
            raise NotFound(f"no file with sha256 {sha256} is stored; upload it again")
        return cast(bytes, data)
