"""Checksums of files in folders that users' code can write to."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import BinaryIO

from workloads.files.untrusted import open_plain

_CHUNK_BYTES = 2**20


def sum_of(folder: Path, name: str) -> tuple[int, int]:
    """(CRC-32, bytes) of the plain file ``name`` in ``folder``. Raises ``OSError``."""
    with open_plain(folder, name) as file:
        return sum_of_open(file)


def sum_of_open(file: BinaryIO) -> tuple[int, int]:
    """(CRC-32, bytes) of a file from where it stands."""
    total = num_bytes = 0
    while chunk := file.read(_CHUNK_BYTES):
        total = zlib.crc32(chunk, total)
        num_bytes += len(chunk)
    return total, num_bytes
