"""Checks of the data directory, the study database and the checkpoints. What they write is removed again."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from scamp.addresses import running_server
from scamp_service.errors import Unavailable
from scamp_service.files import OTHERS, trouble_with, with_remedy
from scamp_service.processes.supervise import lock_data_dir, unusable
from scamp_service.remote.copies import probe
from scamp_service.remote.objects import Objects
from scamp_service.settings import LOOPBACK, Settings
from scamp_service.store.database import Database, expect_shared_database
from scamp_service.upkeep.finding import Doubt

PROBE = bytes(range(256)) * 4096
LOW_BYTES = 2**30
LOCK_SECONDS = 3.0
CLOCK_SECONDS = 5.0
"""How far the clocks of two hosts may differ, and those of a file and of this host."""
REMOTE = ("nfs", "cifs", "smb", "lustre", "fuse.sshfs", "9p", "ceph", "gpfs", "beegfs")
MOUNTS = Path("/proc/self/mounts")
PRIVATE = ("scamp.db", "scamp.db-wal", "scamp.db-shm", "ray-token")


def data_directory(settings: Settings) -> str:
    """It can be made or written to, and no other process uses it."""
    folder = settings.data_dir
    if url := running_server(folder):
        return f"{folder}, which the service at {url} uses"
    try:
        if not (exists := folder.exists()):
            _write_in(_nearest(folder))
        else:
            lock_data_dir(folder).close()
            for written in (folder, folder / "logs"):
                if written is folder or written.exists():
                    _write_in(written)
    except OSError as error:
        raise unusable(folder, error) from error
    return f"{folder}" if exists else f"{folder} is made at the first start"


def disk(settings: Settings) -> str:
    """The disk of the data directory has space and inodes."""
    folder = _nearest(settings.data_dir)
    if trouble := trouble_with(folder):
        raise Unavailable(f"the data directory {settings.data_dir} {trouble}")
    free = shutil.disk_usage(folder).free
    if free < LOW_BYTES:
        raise Doubt(f"only {free // 2**20} MiB are free for {settings.data_dir}: free some, or set SCAMP_KEEP_…_DAYS")
    return f"{free / 2**30:.0f} GiB free"


def owner(settings: Settings) -> str:
    """Its files belong to the user who runs the service, who could otherwise not write them."""
    for path in [settings.data_dir, *sorted(settings.data_dir.glob("*")), *sorted(settings.data_dir.glob("logs/*"))]:
        if path.exists() and (uid := path.stat().st_uid) != os.geteuid() != 0:
            raise Unavailable(
                f"{path} belongs to {_user(uid)}: run ScaMP as that user, or chown -R {_user(os.geteuid())} "
                f"{settings.data_dir}"
            )
    return _user(os.geteuid())


def secrets(settings: Settings) -> str:
    """Nobody else can read the database and the tokens."""
    for path in (settings.data_dir / name for name in PRIVATE):
        if path.exists() and path.stat().st_mode & OTHERS:
            raise Doubt(f"other users may read {path}: chmod 600 {path}")
    return "for their owner alone"


def dates(settings: Settings) -> str:
    """No file of the data directory is of a later time than now."""
    now = time.time()
    for path in sorted(settings.data_dir.glob("*")):
        if path.stat().st_mtime > now + CLOCK_SECONDS:
            raise Doubt(
                f"{path} was written {path.stat().st_mtime - now:.0f} s after now, so the clock was or is wrong: "
                "timedatectl set-ntp true"
            )
    return "none in the future"


def database(settings: Settings) -> str:
    """It answers, is of a version that this one can use, and nobody holds its lock."""
    expect_shared_database(settings.url)
    with opened(settings) as study_database:
        if study_database is None:
            return "is made at the first start"
        words = study_database.outlook(LOCK_SECONDS)
        if abs(seconds := study_database.now() - time.time()) > CLOCK_SECONDS:
            raise Doubt(
                f"its clock differs from that of this host by {seconds:.0f} s: timedatectl set-ntp true on both"
            )
        if study_database.path and (remote := _remote_file_system(study_database.path)):
            raise Doubt(f"SQLite is not safe on {remote}: set SCAMP_DATA_DIR to a local disk, or use PostgreSQL")
    return f"{study_database.name}: {words}"


def checkpoints(settings: Settings) -> str:
    """They can be written and read, where all hosts see them."""
    folder, url = settings.checkpoints, settings.checkpoint_url
    try:
        _write_in(_nearest(folder))
    except OSError as error:
        raise Unavailable(
            f"no checkpoint can be written in {folder}: {with_remedy(error)}; make it writable, or set "
            f"{'SCAMP_CHECKPOINT_CACHE' if url else 'SCAMP_CHECKPOINT_DIR'} to another folder"
        ) from None
    if url:
        probe(Objects(url))
        return f"{url}: written, listed, read and removed; on this host in {folder}"
    is_far = settings.ray_address.rpartition(":")[0].strip("[]") not in ("", *LOOPBACK)
    if is_far and not settings.checkpoint_dir:
        raise Doubt("the hosts of a Ray cluster need one folder for checkpoints: set SCAMP_CHECKPOINT_DIR on each")
    if settings.checkpoint_dir and not folder.exists():
        raise Doubt(f"{folder} does not exist, and is made: mount it first, if it is to be another disk")
    return f"{folder}: written and read"


@contextmanager
def opened(settings: Settings) -> Iterator[Database | None]:
    """The database as it is; None while there is no file. Raises ``Unavailable`` and ``InvalidInput``."""
    path = settings.data_dir / "scamp.db"
    if not settings.database_url and not path.exists():
        yield None
        return
    with closing(Database(settings.url, may_change=False)) as study_database:
        yield study_database


def _nearest(folder: Path) -> Path:
    """The folder, or the first above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _write_in(folder: Path) -> None:
    """Write a file there, rename it, read it and remove it. Raises ``OSError``."""
    with tempfile.TemporaryDirectory(prefix=".scamp-doctor-", dir=folder) as inside:
        written = Path(inside, "written")
        with written.open("wb") as stream:
            stream.write(PROBE)
            stream.flush()
            os.fsync(stream.fileno())
        if written.rename(Path(inside, "renamed")).read_bytes() != PROBE:
            raise OSError(5, "it reads something else than was written", str(folder))


def _remote_file_system(path: Path) -> str:
    """Kind of the file system of a path if it is on another host; empty for a local disk."""
    lines = [line.split() for line in MOUNTS.read_text().splitlines()] if MOUNTS.exists() else []
    mounts = {Path(fields[1]): fields[2] for fields in lines}
    kind = next((mounts[folder] for folder in path.resolve().parents if folder in mounts), "")
    return kind if kind.startswith(REMOTE) else ""


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
