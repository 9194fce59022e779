"""Puts the files of two submissions together. ``scamp.user_code.bundling`` makes a zip of a user's files."""

from __future__ import annotations

from scamp.user_code.bundling import bundle_code, file_of, zip_contents
from scamp_service.errors import InvalidInput
from workloads.files.archive import ArchiveError, open_archive

__all__ = ["bundle_code", "file_of", "with_files", "zip_contents"]


def with_files(code: bytes, others: bytes | None) -> bytes:
    """The zip ``code`` with the files of the zip ``others``, which replace those with the same path.

    Raises ``InvalidInput``.
    """
    if others is None:
        return code
    files: dict[str, bytes] = {}
    for data in (code, others):
        try:
            with open_archive(data) as archive:
                files |= {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
        except ArchiveError as error:
            raise InvalidInput(str(error)) from None
    return zip_contents(sorted(files.items()))
