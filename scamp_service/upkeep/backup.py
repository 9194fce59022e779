"""``scamp backup`` and ``scamp restore``: database, checkpoints, files of trials and calibrations, in one file.

Users' code, users, tokens and the secret of webhooks are rows of the database. Traces, unpacked code and the token of a
local Ray are made again, and settings are the environment's.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from scamp.user_code.bundling import SERVICE_LOCK
from scamp_service.errors import Conflict, Unavailable
from scamp_service.files import with_remedy, write_atomically
from scamp_service.processes.supervise import UNFINISHED, lock_data_dir
from scamp_service.settings import Settings
from scamp_service.store.copies import read_copy, write_copy
from scamp_service.temporary import make_folder, remove_folder, remove_forgotten
from scamp_service.upkeep.archive import CHECKPOINTS, DATABASE, KINDS, Writer, extract
from workloads.files import untrusted
from workloads.training.checkpoints.name import CheckpointName

MOST_LOOKS = 5
RECORDED = """
SELECT trial_id, max(checkpoint_step) FROM scamp_attempts JOIN scamp_trials ON scamp_trials.id = trial_id
WHERE checkpoint_step >= 0 AND finished_at IS NULL GROUP BY trial_id
"""


def backup(settings: Settings, file: Path) -> dict[str, Any]:
    """Write everything of this service into ``file``, and return its manifest. A service may run meanwhile.

    Checkpoints in object storage stay there: the database that is restored finds them under its own name.

    ``file`` is replaced once the new one is whole. Raises ``Unavailable``.
    """
    if not settings.database_url and not (settings.data_dir / DATABASE).exists():
        raise Unavailable(f"there is no study database in {settings.data_dir}: choose another one with --data-dir")
    try:
        with _folder_in(file.absolute().parent) as scratch:
            copy, unfinished = scratch / DATABASE, scratch / "unfinished"
            with unfinished.open("xb") as stream, _linked(settings, copy) as checkpoints:
                unfinished.chmod(0o600)
                writer = Writer(stream)
                writer.add(copy, DATABASE)
                for path, name in ((checkpoints, CHECKPOINTS), (settings.data_dir / KINDS, KINDS)):
                    if path is not None and path.exists():
                        writer.add(path, name)
                manifest = writer.close()
                stream.flush()
                os.fsync(stream.fileno())
            unfinished.replace(file)
    except OSError as error:
        raise Unavailable(f"the backup {file} cannot be written: {with_remedy(error)}") from error
    return manifest


def restore(settings: Settings, file: Path) -> dict[str, Any]:
    """Make the data directory that ``backup`` has copied, and return the manifest.

    A restore that was killed leaves a directory with which nothing starts; the next one begins anew. Raises
    ``Conflict`` if the data directory, the folder for checkpoints or the database is not empty or in use,
    ``InvalidInput`` for a file that is no whole backup, and ``Unavailable``.
    """
    data_dir, checkpoints = settings.data_dir, settings.checkpoints
    copy = data_dir / f"{DATABASE}.{UNFINISHED}"
    with lock_data_dir(data_dir, may_be_unfinished=True):
        try:
            _begin(data_dir, checkpoints)
            roots = {DATABASE: copy, CHECKPOINTS: checkpoints, KINDS: data_dir / KINDS}
            manifest = extract(file, lambda name: roots[name.parts[0]].joinpath(*name.parts[1:]))
            if settings.database_url:
                read_copy(copy, settings.url)
                copy.unlink()
            else:
                copy.rename(data_dir / DATABASE)
            (data_dir / UNFINISHED).unlink()
        except OSError as error:
            raise Unavailable(f"{file} cannot be restored in {data_dir}: {with_remedy(error)}") from error
    return manifest


def _begin(data_dir: Path, checkpoints: Path) -> None:
    """Note that a restore has begun, and remove what one that was killed has written."""
    note = data_dir / UNFINISHED
    kept = {SERVICE_LOCK, UNFINISHED}
    inside = [path for path in data_dir.iterdir() if path.name not in kept]
    if note.exists() and note.read_text() == str(checkpoints):
        inside += [checkpoints] if checkpoints.exists() and checkpoints.parent != data_dir else []
        for path in inside:
            untrusted.remove(path)
    elif inside:
        raise Conflict(f"the data directory {data_dir} is not empty: restore into another one with --data-dir")
    elif checkpoints.exists() and any(checkpoints.iterdir()):
        raise Conflict(
            f"the folder for checkpoints {checkpoints} is not empty: set SCAMP_CHECKPOINT_DIR to another one"
        )
    write_atomically(note, str(checkpoints).encode())


@contextmanager
def _linked(settings: Settings, copy: Path) -> Iterator[Path | None]:
    """Write a copy of the database, and yield a folder with all checkpoints that it needs; None if there are none.

    Ranks delete old checkpoints. So they are linked before and after the database is copied, until those from which it
    resumes are all there.
    """
    if settings.checkpoint_url or not settings.checkpoints.is_dir():
        write_copy(settings.url, copy)
        yield None
        return
    with _folder_in(settings.checkpoints) as folder:
        linked = folder / CHECKPOINTS
        linked.mkdir()
        for _ in range(MOST_LOOKS):
            copy.unlink(missing_ok=True)
            _link_all(settings.checkpoints, linked)
            write_copy(settings.url, copy)
            _link_all(settings.checkpoints, linked)
            if all(name.folder(linked).exists() for name in _recorded(copy)):
                break
        yield linked


def _recorded(copy: Path) -> list[CheckpointName]:
    """The checkpoints from which trials of the database resume."""
    with closing(sqlite3.connect(copy)) as connection:
        return [CheckpointName(*row) for row in connection.execute(RECORDED)]


def _link_all(root: Path, target: Path) -> None:
    """Link the checkpoints of all trials that ``target`` does not have yet, and copy their other files."""
    for trial in (path for path in root.iterdir() if path.name.isdigit() and path.is_dir()):
        own_target = _made_as(trial, target / trial.name)
        for path in sorted(trial.iterdir()):
            if path.name.startswith("."):
                continue  # it is being written or deleted
            is_checkpoint, goal = path.name.startswith("step-"), own_target / path.name
            if is_checkpoint and goal.exists():
                continue
            with suppress(FileNotFoundError):  # it is deleted meanwhile
                unfinished = own_target / f".{path.name}"
                _take(path, unfinished, may_link=is_checkpoint)
                if path.exists():  # so all of its files were there
                    shutil.rmtree(goal, ignore_errors=True)
                    unfinished.rename(goal)


def _take(source: Path, target: Path, *, may_link: bool) -> None:
    """Link or copy the plain files of a folder. No link is followed: users' code writes there."""
    shutil.rmtree(target, ignore_errors=True)
    for folder, _, _, descriptor in os.fwalk(source, follow_symlinks=False):
        goal = _made_as(Path(folder), target / Path(folder).relative_to(source))
        for name in untrusted.names_in(descriptor):
            if untrusted.plain_status(descriptor, name) is None:
                continue
            with suppress(OSError):
                if may_link:
                    os.link(name, goal / name, src_dir_fd=descriptor, follow_symlinks=False)
                    continue
            with untrusted.open_in(descriptor, name, Path(folder, name)) as opened, (goal / name).open("xb") as stream:
                shutil.copyfileobj(opened, stream)
                _own(goal / name, os.fstat(opened.fileno()))


def _made_as(source: Path, target: Path) -> Path:
    """The folder ``target``, with mode and owner of ``source``."""
    target.mkdir(exist_ok=True)
    _own(target, source.lstat())
    return target


def _own(path: Path, status: os.stat_result) -> None:
    path.chmod(status.st_mode & 0o777 | 0o700)
    if os.geteuid() == 0:
        os.chown(path, status.st_uid, status.st_gid)


@contextmanager
def _folder_in(parent: Path) -> Iterator[Path]:
    """A folder that goes again; those of backups that were killed go first."""
    remove_forgotten(parent)
    folder = make_folder(parent)
    try:
        yield folder
    finally:
        remove_folder(folder)
