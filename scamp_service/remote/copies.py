"""Copies checkpoints of one host to object storage and back. Every act may be killed at any time, and is repeated.

Users' code writes in the folders of checkpoints, so they are read by ``workloads.files.untrusted``, and what comes from
the storage is written into folders that nobody else has opened yet.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from scamp_service.errors import Refused, Unavailable
from scamp_service.remote.layout import (
    Manifest,
    attempt_of,
    manifest_of,
    needless,
    tag_folder,
    whole_ones,
)
from scamp_service.remote.objects import Objects
from scamp_service.settings import Settings
from workloads.files import untrusted
from workloads.files.sums import sum_of, sum_of_open
from workloads.files.untrusted import open_folder, open_plain
from workloads.training.checkpoints.name import CheckpointName, trial_folder, written_checkpoints

SUMS, RECORD = "sums.json", "next.json"
_MOST_JSON_BYTES = 2**26


class Pushed(StrEnum):
    """The fate of a request to store a checkpoint."""

    DONE = "DONE"
    GONE = "GONE"  # it is no longer here, damaged, or a later attempt has stored its own
    WAITS = "WAITS"  # for files of other hosts


class NotStored(Exception):
    """A checkpoint is not in the storage, or not as it was written; the message says which."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Checkpoints in ``objects``, of which the folder ``root`` of this host has some."""

    objects: Objects
    root: Path

    # --- to the storage ----------------------------------------------------------------------------------------------

    def push(self, name: CheckpointName, needed: Collection[CheckpointName], *, ends: bool) -> Pushed:
        """Store this host's files of a checkpoint; if it ``ends`` it, also the manifest, once all files are there.

        Then what nobody needs any more is removed. ``needed`` are other checkpoints of the trial that must stay. Files
        that are there already are not sent again. Raises ``Unavailable``.
        """
        mine = self._written(name)
        if mine is None:
            return Pushed.GONE
        stored = self.manifest(name)
        if stored is not None and attempt_of(stored.tag) > attempt_of(mine.tag):
            return Pushed.GONE
        if stored is None or stored.tag != mine.tag:
            folder = tag_folder(name, mine.tag)
            try:
                self._upload(mine, folder)
            except OSError:  # removed meanwhile: others are newer
                self.objects.remove_all(folder)
                return Pushed.GONE
            if not ends:
                return Pushed.DONE
            if mine.missing(self.objects.sizes(folder)):
                return Pushed.WAITS
            self.objects.write(manifest_of(name), mine.encoded())
        if ends:
            self._tidy(mine, needed)
        return Pushed.DONE

    def forget(self, trial_id: int, before: int) -> None:
        """Remove the stored checkpoints of a trial that attempts before the attempt ``before`` have written."""
        for name in whole_ones(trial_id, self.objects.sizes(str(trial_id))):
            stored = self.manifest(name)
            if stored is not None and attempt_of(stored.tag) < before:
                self.objects.remove(manifest_of(name))
                self.objects.remove_all(tag_folder(name, stored.tag))

    def remove(self, trial_id: int) -> None:
        """Remove everything that is stored of a trial."""
        for name in whole_ones(trial_id, self.objects.sizes(str(trial_id))):
            self.objects.remove(manifest_of(name))
        self.objects.remove_all(str(trial_id))

    def _upload(self, mine: Manifest, folder: str) -> None:
        """Send the files that this host has and the storage has not. Raises ``OSError`` if one is gone or damaged."""
        there = self.objects.sizes(folder)
        local = mine.name.folder(self.root)
        for file in mine.missing(there):
            if not (local / file).exists() and local.exists():
                continue  # another host has it
            if sum_of(local, file) != (mine.sums[file], mine.sizes[file]):
                raise OSError(5, "it is damaged", str(local / file))
            with open_plain(local, file) as stream:
                self.objects.upload(stream.fileno(), f"{folder}/{file}")

    def _tidy(self, mine: Manifest, needed: Collection[CheckpointName]) -> None:
        trial_id = mine.name.trial_id
        names = self.objects.sizes(str(trial_id))
        for folder in needless(mine, names, needed, written_checkpoints(self.root, trial_id)):
            if "/" not in folder:
                self.objects.remove(f"{trial_id}/{folder}/manifest.json")
            self.objects.remove_all(f"{trial_id}/{folder}")

    # --- from the storage --------------------------------------------------------------------------------------------

    def pull(self, name: CheckpointName) -> None:
        """Have a checkpoint here as it is stored. What is here of it, of the same save and intact, is not read again.

        Raises ``NotStored`` and ``Unavailable``; then nothing here has changed.
        """
        stored = self.manifest(name)
        if stored is None:
            raise NotStored(f"the checkpoint of step {name.step} is not in {self.objects.url}")
        written = self._written(name)
        is_same = written is not None and written.tag == stored.tag
        if is_same and all(self._is_intact(stored, file) for file in stored.sums):
            return
        with self._folder_for(name) as folder:
            for file in stored.sums:
                if not (is_same and self._is_intact(stored, file) and self._link(name, file, folder)):
                    self._download(stored, file, folder)
            _write_json(folder, SUMS, stored.to_json())
            if stored.record is not None:
                _write_json(folder, RECORD, stored.record)

    def pull_or_older(self, name: CheckpointName) -> str:
        """As ``pull``, or have the newest older checkpoint of the trial that is whole; returns why in that case.

        Raises ``NotStored`` if there is none, and ``Unavailable``.
        """
        try:
            self.pull(name)
            return ""
        except NotStored as error:
            why = str(error)
        for older in reversed(whole_ones(name.trial_id, self.objects.sizes(str(name.trial_id)))):
            if older < name:
                with suppress(NotStored):
                    self.pull(older)
                    return why
        raise NotStored(why)

    def bring(self, name: CheckpointName) -> None:
        """As ``pull``, but what is whole here needs no storage. Raises ``NotStored`` and ``Unavailable``."""
        try:
            self.pull(name)
        except (NotStored, Unavailable):
            if not self.is_whole_here(name):
                raise

    def is_whole_here(self, name: CheckpointName) -> bool:
        """Whether this host has the whole checkpoint, and intact."""
        written = self._written(name)
        return written is not None and all(self._is_intact(written, file) for file in written.sums)

    def manifest(self, name: CheckpointName) -> Manifest | None:
        """The manifest of a stored checkpoint; None if there is none, or it is damaged."""
        data = self.objects.read(manifest_of(name))
        return None if data is None else Manifest.of(data, name)

    def _written(self, name: CheckpointName) -> Manifest | None:
        """The checkpoint as a save on this host has written it, or a part of it; None if there is none."""
        folder = name.folder(self.root)
        try:
            with open_plain(folder, SUMS) as file:
                manifest = Manifest.of(file.read(_MOST_JSON_BYTES), name)
        except OSError:
            return None
        record = None
        with suppress(OSError, ValueError), open_plain(folder, RECORD) as file:
            record = json.loads(file.read(_MOST_JSON_BYTES))
        return None if manifest is None else Manifest(name, manifest.tag, manifest.sums, manifest.sizes, record)

    def _is_intact(self, manifest: Manifest, file: str) -> bool:
        try:
            return sum_of(manifest.name.folder(self.root), file) == (manifest.sums[file], manifest.sizes[file])
        except OSError:
            return False

    def _link(self, name: CheckpointName, file: str, folder: int) -> bool:
        """Give a file of the checkpoint that is here a second name; False if that cannot be done."""
        try:
            with open_folder(name.folder(self.root)) as source:
                os.link(file, file, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        except OSError:
            return False
        return True

    def _download(self, stored: Manifest, file: str, folder: int) -> None:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        with open(descriptor, "rb") as stream:
            if not self.objects.download(f"{tag_folder(stored.name, stored.tag)}/{file}", descriptor):
                raise NotStored(
                    f"a file of the checkpoint of step {stored.name.step} is not in {self.objects.url}: {file}"
                )
            if sum_of_open(stream) != (stored.sums[file], stored.sizes[file]):
                raise NotStored(
                    f"a file of the checkpoint of step {stored.name.step} in {self.objects.url} is damaged: {file} has "
                    "another checksum than what was written"
                )
            _give(descriptor, folder)
            os.fsync(descriptor)

    @contextmanager
    def _folder_for(self, name: CheckpointName) -> Iterator[int]:
        """A new folder, which takes the place of the checkpoint's at the end, unless something is raised."""
        trial, target = trial_folder(self.root, name.trial_id), name.folder(self.root)
        if not trial.exists():
            with suppress(FileExistsError):
                trial.mkdir(parents=True)
            with open_folder(self.root) as above, open_folder(trial) as made:
                _give(made, above)
        unfinished, doomed = (trial / f".{kind}-{name.step}-{uuid.uuid4().hex}" for kind in ("pull", "old"))
        with open_folder(trial) as above:
            os.mkdir(unfinished.name, dir_fd=above)
            try:
                with open_folder(trial, unfinished.name) as folder:
                    yield folder
                    _give(folder, above)
                    os.fsync(folder)
                with suppress(FileNotFoundError):
                    os.rename(target.name, doomed.name, src_dir_fd=above, dst_dir_fd=above)
                os.rename(unfinished.name, target.name, src_dir_fd=above, dst_dir_fd=above)
                os.fsync(above)
            finally:
                for left in (unfinished, doomed):
                    with suppress(OSError):
                        untrusted.remove(left)


def _write_json(folder: int, name: str, value: object) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    with open(descriptor, "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(descriptor)
        _give(descriptor, folder)


def _give(descriptor: int, folder: int) -> None:
    """Let a new file belong to the owner of the folder above: ranks may be another user than the service."""
    if os.geteuid() == 0:
        owner = os.fstat(folder)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def stored_at(settings: Settings, identity: str) -> str:
    """URL of the checkpoints of the study database with this name; empty if they are in a folder.

    Trials are numbered anew in each database, so services may share a bucket.
    """
    return f"{settings.checkpoint_url}/{identity}" if settings.checkpoint_url else ""


def expect_storage(settings: Settings) -> None:
    """Raise ``InvalidInput`` if checkpoints are to be in object storage for which this environment has no library.

    Raises ``Refused`` if users' code is to run as somebody else: the mirror, which belongs to the service, would write
    into folders of that user, where it could be led astray.
    """
    if settings.checkpoint_url:
        if settings.user_code_user:
            raise Refused(
                f"SCAMP_CHECKPOINT_DIR is {settings.checkpoint_url}, which cannot be combined with "
                "SCAMP_USER_CODE_USER: mount the bucket as a folder and name that, or unset one of them"
            )
        Objects(settings.checkpoint_url).expect_library()


def copies_of(settings: Settings, identity: Callable[[], str]) -> Copies | None:
    """The copies in object storage; None if checkpoints are in a folder. ``identity`` is asked only if they are not."""
    if not settings.checkpoint_url:
        return None
    return Copies(Objects(stored_at(settings, identity())), settings.checkpoints)


def probe(objects: Objects) -> None:
    """Write, list, read and remove an object. Raises ``Unavailable``."""
    name, data = f"doctor-{uuid.uuid4().hex}", os.urandom(1000)
    objects.write(name, data)
    try:
        is_equal = objects.read(name) == data
        is_listed = objects.sizes().get(name) == len(data)
    finally:
        objects.remove(name)
    if not (is_equal and is_listed):
        raise Unavailable(f"the object storage {objects.url} returns something else than was written: choose another")
