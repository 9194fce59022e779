"""Checks the zip of a user's own files, and unpacks it into a folder.

It does not import torch, so the API can check a submission before anything is stored.
"""

from __future__ import annotations

import io
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from scamp.user_code.bundling import MAX_CODE_BYTES, MAX_CODE_FILES

# zipfile raises these for broken, encrypted and exotic archives, and the file system for conflicting names.
_UNZIP_ERRORS = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError, OSError)


class ArchiveError(Exception):
    """The zip is broken, too large, or has members that are not plain files inside its folder."""


@contextmanager
def open_archive(data: bytes) -> Iterator[zipfile.ZipFile]:
    """The opened zip, after a check of its directory. Raises ``ArchiveError``, also for errors while it is read."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _check_members(archive.infolist())
            yield archive
    except _UNZIP_ERRORS as error:
        why = error.strerror if isinstance(error, OSError) else error  # not the paths, which are those of this host
        raise ArchiveError(
            f"the files sent along are not a zip that can be read ({why}): make the zip again, without encryption"
        ) from error


def unpack_code(data: bytes, target: Path) -> Path:
    """Unzip ``data`` into the folder ``target`` and return ``target``.

    In a folder that exists, files that are missing or were changed are written again: users' code may do that to its
    own files, and other processes share the folder. Raises ``ArchiveError``, and then leaves no new folder behind.
    """
    if target.is_dir():
        with open_archive(data) as archive:
            _restore(archive, target)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
        staged = Path(temporary) / "code"
        staged.mkdir()
        with open_archive(data) as archive:
            _extract(archive, staged)
        try:
            staged.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process has unpacked the same code in the meantime
                raise
    return target


def _check_members(members: list[zipfile.ZipInfo]) -> None:
    if len(members) > MAX_CODE_FILES:
        raise ArchiveError(
            f"the zip of your files has {len(members)} files, more than {MAX_CODE_FILES}: send only your code"
        )
    _check_size(sum(member.file_size for member in members))
    for member in members:
        path = PurePosixPath(member.filename)
        if path.is_absolute() or ".." in path.parts or "\\" in member.filename or ":" in member.filename:
            raise ArchiveError(
                f"the zip of your files has a file outside its folder, {member.filename!r}: use relative paths without "
                "'..', backslashes and colons"
            )
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ArchiveError(
                f"the zip of your files has a link or special file, {member.filename!r}: send plain files only"
            )
    names = [PurePosixPath(member.filename) for member in members if not member.is_dir()]
    file_names = set(names)
    twice = next((name for name in names if names.count(name) > 1), None) if len(names) > len(file_names) else None
    if twice or (twice := next((name for name in names if not file_names.isdisjoint(name.parents)), None)):
        raise ArchiveError(f"the zip of your files has two files at {str(twice)!r}, or one above it: rename one")


def _check_size(num_bytes: int) -> None:
    if num_bytes > MAX_CODE_BYTES:
        raise ArchiveError(
            f"the zip of your files unpacks to more than {MAX_CODE_BYTES >> 20} MiB: send only your code, not data sets"
        )


def _extract(archive: zipfile.ZipFile, folder: Path) -> None:
    for name, content in _contents(archive):
        path = folder / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(content)


def _restore(archive: zipfile.ZipFile, folder: Path) -> None:
    for name, content in _contents(archive):
        path = folder / name
        if content is None or (path.is_file() and path.read_bytes() == content):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            Path(temporary, "file").write_bytes(content)
            Path(temporary, "file").replace(path)  # a process that reads it sees a whole file


def _contents(archive: zipfile.ZipFile) -> Iterator[tuple[str, bytes | None]]:
    """Yield (name, content) of each member; the content of a folder is None."""
    unpacked_bytes = 0
    for member in archive.infolist():
        if member.is_dir():
            yield member.filename, None
            continue
        with archive.open(member) as source:
            content = source.read(MAX_CODE_BYTES - unpacked_bytes + 1)  # the size in the zip's directory may be wrong
        unpacked_bytes += len(content)
        _check_size(unpacked_bytes)
        yield member.filename, content
