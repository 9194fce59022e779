"""The file that ``scamp backup`` writes: a tar archive whose last member, the manifest, has checksums of all others.

So a file that was cut off has no manifest, and is refused. Its names are those of ``DATABASE`` and of files below
``CHECKPOINTS`` and ``KINDS``.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, Any

from scamp import __version__
from scamp_service.errors import InvalidInput

DATABASE, CHECKPOINTS, KINDS, MANIFEST = "scamp.db", "checkpoints", "device_kinds", "manifest.json"
FORMAT = 1
_PIECE = 2**20


class Writer:
    """Adds files to an archive. ``close`` writes the manifest, without which it is not whole."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._tar = tarfile.TarFile(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT)
        self._sums: dict[str, str] = {}

    def add(self, path: Path, name: str) -> None:
        """Add a file, or a folder with all files in it, under a name."""
        info = self._tar.gettarinfo(path, name)
        if info.isdir():
            self._tar.addfile(info)
            for child in sorted(path.iterdir()):
                self.add(child, f"{name}/{child.name}")
        else:
            info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size  # it may be a second name
            with path.open("rb") as file:
                hashed = _Hashed(file)
                self._tar.addfile(info, hashed)
            self._sums[name] = hashed.sha256.hexdigest()

    def close(self) -> dict[str, Any]:
        """Write the manifest, and return it."""
        manifest = {"format": FORMAT, "scamp": __version__, "made_at": time.time(), "sha256": self._sums}
        data = json.dumps(manifest).encode()
        info = tarfile.TarInfo(MANIFEST)
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))
        self._tar.close()
        return manifest


def extract(archive: Path, place: Callable[[PurePosixPath], Path]) -> dict[str, Any]:
    """Write the files of an archive, each to the path that ``place`` returns for its name, and return the manifest.

    Raises ``InvalidInput`` for what is no whole archive; files may have been written by then.
    """
    sums: dict[str, str] = {}
    try:
        with tarfile.open(archive, "r:") as tar:
            for info in tar:
                if info.name == MANIFEST:
                    return _checked(archive, json.load(tar.extractfile(info) or io.BytesIO()), sums)
                _write(tar, info, place(_name_in(archive, info)), sums)
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise InvalidInput(f"{archive} is no backup of ScaMP, or is damaged ({error}): take another one") from None
    raise InvalidInput(f"{archive} is cut off, as it has no manifest: take another one")


def _write(tar: tarfile.TarFile, info: tarfile.TarInfo, path: Path, sums: dict[str, str]) -> None:
    if info.isdir():
        path.mkdir(parents=True, exist_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        source = tar.extractfile(info)
        assert source is not None, "of a plain file"
        hashed = _Hashed(source)
        with path.open("xb") as target:
            while piece := hashed.read(_PIECE):
                target.write(piece)
            target.flush()
            os.fsync(target.fileno())
        sums[info.name] = hashed.sha256.hexdigest()
    path.chmod(info.mode & 0o777)
    if os.geteuid() == 0:
        os.chown(path, info.uid, info.gid)


def _name_in(archive: Path, info: tarfile.TarInfo) -> PurePosixPath:
    """The name of a member. Raises ``InvalidInput`` for one that no backup has, such as one that leads elsewhere."""
    path = PurePosixPath(info.name)
    is_known = info.name == DATABASE or path.parts[0] in (CHECKPOINTS, KINDS)
    if not (info.isfile() or info.isdir()) or path.is_absolute() or ".." in path.parts or not is_known:
        raise InvalidInput(f"{archive} is no backup of ScaMP: {info.name[:100]!r} cannot be in one")
    return path


def _checked(archive: Path, manifest: dict[str, Any], sums: dict[str, str]) -> dict[str, Any]:
    if manifest.get("format") != FORMAT:
        raise InvalidInput(f"{archive} was written by another version of ScaMP ({manifest.get('scamp')}): use that one")
    if manifest["sha256"] != sums:
        names = sorted(name for name in {*manifest["sha256"], *sums} if manifest["sha256"].get(name) != sums.get(name))
        raise InvalidInput(f"{archive} is damaged: {', '.join(names[:3])} differ from the manifest; take another one")
    return manifest


class _Hashed:
    """A file whose bytes are hashed as they are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.sha256 = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.sha256.update(data)
        return data
