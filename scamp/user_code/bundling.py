"""Zips the user's own files for upload, in the client.

Nothing here imports or runs them. The same files always give the same bytes, so that a repeated submission is
recognized.
"""

from __future__ import annotations

import io
import os
import posixpath
import stat
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from scamp.errors import InvalidInput
from scamp.user_code.own_imports import with_imported

MAX_CODE_BYTES = 64 * 2**20
MAX_CODE_FILES = 10_000
SERVICE_LOCK = "service.lock"
"""The file in a data directory that the process which uses it has locked."""
SKIPPED = frozenset({"__pycache__", "node_modules", "venv"})


def bundle_code(study_file: Path, workload: str, working_dir: Path | None = None, also: Sequence[str] = ()) -> bytes:
    """A zip of the workload's file (``FILE.py:Class``, relative to the study's folder), or of all of ``working_dir``.

    ``also`` names more files in the same way, such as that of a sampler. Without ``working_dir``, files of the study's
    folder that these import are in the zip, too.

    With ``working_dir``, ``FILE.py`` is relative to it. Hidden files, ``__pycache__``, ``venv``, ``node_modules``,
    ``*.pyc``, links to folders and data directories of ScaMP are left out. Raises ``InvalidInput`` when the file is
    missing, or for more than 64 MiB or 10,000 files.
    """
    root = study_file.parent if working_dir is None else working_dir
    if not root.is_dir():
        raise InvalidInput(f"the working directory {root} does not exist")
    named_files = {
        _named_file(role, name, root, working_dir) for role, name in (("workload", workload), *_samplers(also))
    }
    files = sorted(with_imported(root, named_files) if working_dir is None else {*named_files, *_walk(root)})
    if len(files) > MAX_CODE_FILES:
        largest, num_files = _largest(files, lambda name: 1)
        raise InvalidInput(
            f"{root} has {len(files)} files, more than {MAX_CODE_FILES}, {num_files} of them in {largest}; choose a "
            "smaller folder"
        )
    return zip_files(root, files)


def _samplers(names: Sequence[str]) -> list[tuple[str, str]]:
    return [("sampler", name) for name in names]


def _named_file(role: str, file_name: str, root: Path, working_dir: Path | None) -> str:
    name = file_of(file_name)
    if name.startswith(("/", "../")):
        raise InvalidInput(
            f"the {role} {file_name!r} is outside the folder {root}: name its folder with --working-dir, and the file "
            "relative to it"
        )
    if not (root / name).is_file():
        hint = "" if working_dir is None else "; with a working directory, the path is relative to it"
        raise InvalidInput(f"the {role} {file_name!r} needs {root / name}, which does not exist{hint}")
    return name


def file_of(workload: str) -> str:
    """The path of the file that a workload ``FILE.py:Class`` names."""
    return posixpath.normpath(workload.rpartition(":")[0])


def _walk(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not _is_skipped(Path(folder, name)))
        for name in files:
            path = Path(folder, name)
            if not name.startswith(".") and path.suffix != ".pyc" and path.is_file():
                yield path.relative_to(root).as_posix()


def _is_skipped(folder: Path) -> bool:
    return folder.name in SKIPPED or folder.name.startswith(".") or (folder / SERVICE_LOCK).exists()


def _largest(files: Iterable[str], size_of: Callable[[str], int]) -> tuple[str, int]:
    """The file, or the folder with a slash, that is largest of those at the top, and its size."""
    sizes: Counter[str] = Counter()
    for name in files:
        first, slash, _ = name.partition("/")
        sizes[first + slash] += size_of(name)
    return sizes.most_common(1)[0]


def zip_files(root: Path, files: Sequence[str]) -> bytes:
    """A zip of these files, named relative to ``root``. Raises ``InvalidInput`` for more than 64 MiB."""
    sizes = {name: (root / name).stat().st_size for name in files}
    if sum(sizes.values()) > MAX_CODE_BYTES:
        largest, num_bytes = _largest(files, sizes.__getitem__)
        raise InvalidInput(
            f"the files in {root} are more than {MAX_CODE_BYTES >> 20} MiB, and {largest} has {num_bytes / 2**20:.0f} "
            "of them; choose a smaller folder, and let the workload read its data from a path that all ranks can reach"
        )
    return zip_contents((name, (root / name).read_bytes()) for name in files)


def zip_contents(contents: Iterable[tuple[str, bytes]]) -> bytes:
    """A zip of files, given as (path, content); the same files in the same order give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents:
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, content)
    return buffer.getvalue()
