"""The mirror: the process of a host that does what ranks ask for (``workloads.training.checkpoints.outbox``).

Requests are files, which it removes when they are done, so it may be killed at any time. There is one for each folder
of checkpoints: a second one waits.
"""

from __future__ import annotations

import fcntl
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scamp_service.errors import InvalidInput, Unavailable
from scamp_service.remote.copies import Copies, NotStored, Pushed
from scamp_service.remote.layout import pause_seconds
from workloads.files import untrusted
from workloads.files.untrusted import open_plain
from workloads.training.checkpoints.name import CheckpointName, written_checkpoints
from workloads.training.checkpoints.outbox import (
    ALIVE,
    ANSWERS,
    FOLDER,
    FORGET,
    PULL,
    PUSH,
    WHY,
    named,
    open_outbox,
    waiting,
)

log = logging.getLogger("scamp.mirror")

LOOK_SECONDS = 0.1
UPLOADS_AT_ONCE, DOWNLOADS_AT_ONCE = 4, 8
PULL_SECONDS = 60.0
"""Seconds for which a rank waits for a storage that does not answer; then its attempt ends, and is repeated later."""
OLD_ANSWER_SECONDS = 3600.0
SWEEP_SECONDS = 3600.0
OLD_TRIAL_SECONDS = 24 * 3600.0


@dataclass(slots=True)
class _Failing:
    """A request that could not be done: how often in a row, and when it is tried again (monotonic clock)."""

    num_failures: int = 0
    again_at: float = 0.0


@dataclass(slots=True)
class Mirror:
    """Does the requests for one folder of checkpoints, each kind in threads of its own.

    In a folder that ``is_swept`` here, and by nobody else, it removes what is left of trials that were removed.
    """

    copies: Copies
    is_swept: bool = False
    _swept_at: float = field(default_factory=time.monotonic)
    _busy: dict[Path, object] = field(default_factory=dict)
    _failing: dict[Path, _Failing] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, stop: threading.Event) -> None:
        """Do requests until ``stop``."""
        root = self.copies.root
        open_outbox(root)
        with (root / FOLDER / "lock").open("a") as lock:
            while not _is_locked(lock):
                if stop.wait(1.0):
                    return
            self._clean()
            with (
                ThreadPoolExecutor(UPLOADS_AT_ONCE, "push") as uploads,
                ThreadPoolExecutor(DOWNLOADS_AT_ONCE, "pull") as downloads,
            ):
                while not stop.is_set():
                    (root / ALIVE).touch()
                    self._begin(root / FORGET, self._forget, uploads)
                    self._begin(root / PUSH, self._push, uploads)
                    self._begin(root / PULL, self._pull, downloads)
                    if self.is_swept and time.monotonic() - self._swept_at > SWEEP_SECONDS:
                        self._swept_at = time.monotonic()
                        uploads.submit(self.sweep, time.time() - OLD_TRIAL_SECONDS)
                    stop.wait(LOOK_SECONDS)

    def _begin(self, folder: Path, do: Callable[[CheckpointName, Path], None], threads: ThreadPoolExecutor) -> None:
        """Begin the requests in a folder that are due. Of one trial only one is stored at a time."""
        for name, file in named(folder):
            turn = name.trial_id if folder.name != "pull" else file
            with self._lock:
                is_due = time.monotonic() >= self._failing.get(file, _Failing()).again_at
                if not is_due or file in self._busy or turn in self._busy.values():
                    continue
                self._busy[file] = turn
            threads.submit(self._do, do, name, file)

    def _do(self, do: Callable[[CheckpointName, Path], None], name: CheckpointName, file: Path) -> None:
        try:
            if file.exists():  # it was done since the folder was listed, otherwise
                do(name, file)
            self._failing.pop(file, None)
        except Exception as error:
            is_expected = isinstance(error, Unavailable | InvalidInput | OSError)
            log.warning("%s of %s is tried again: %s", file.parent.name, file.name, error, exc_info=not is_expected)
            failing = self._failing.setdefault(file, _Failing())
            failing.num_failures += 1
            failing.again_at = time.monotonic() + pause_seconds(failing.num_failures)
            if file.parent.name == "push":
                _tell(file, str(error))
        finally:
            with self._lock:
                del self._busy[file]

    def _push(self, name: CheckpointName, file: Path) -> None:
        version = _written_at(file)
        request = _request(file)
        needed = [CheckpointName(int(trial), int(step)) for trial, step in request.get("needed", ())]
        pushed = self.copies.push(name, needed, ends=bool(request.get("ends")))
        if pushed is Pushed.WAITS:
            raise Unavailable("the other hosts of its gang have not stored their files yet")
        if pushed is Pushed.GONE:
            log.info("step %d of trial %d is not stored: it is not needed any more", name.step, name.trial_id)
        if _written_at(file) == version:  # otherwise it is asked for anew
            file.unlink()
            file.with_name(file.name + WHY).unlink(missing_ok=True)

    def _forget(self, name: CheckpointName, file: Path) -> None:
        self.copies.forget(name.trial_id, before=name.step)
        file.unlink()

    def _pull(self, name: CheckpointName, file: Path) -> None:
        is_here = self.copies.is_whole_here(name)
        or_older = bool(_request(file).get("or_older"))
        try:
            why = self.copies.pull_or_older(name) if or_older else self._pulled(name)
        except NotStored as error:
            why = "" if is_here else str(error)  # it is on its way to the storage
        except Exception as error:
            if not is_here and time.time() - file.stat().st_mtime < PULL_SECONDS:
                raise
            why = "" if is_here else str(error)
        answer = self.copies.root / ANSWERS / file.name
        unfinished = answer.with_name(f".{answer.name}")
        unfinished.write_text(why)
        with suppress(FileNotFoundError):
            file.unlink()
            unfinished.replace(answer)
        unfinished.unlink(missing_ok=True)

    def _pulled(self, name: CheckpointName) -> str:
        self.copies.pull(name)
        return ""

    def sweep(self, before: float) -> None:
        """Remove trials of which the storage has nothing, whose checkpoints were all stored, the newest one ``before``.

        Then they have been removed there.
        """
        root = self.copies.root
        pending = {request.name.trial_id for request in waiting(root)}
        for folder in (path for path in root.iterdir() if path.name.isdigit()):
            trial_id = int(folder.name)
            with suppress(OSError, Unavailable):
                names = written_checkpoints(root, trial_id)
                is_old = names and all(name.folder(root).stat().st_mtime < before for name in names)
                if is_old and trial_id not in pending and not self.copies.objects.sizes(folder.name):
                    untrusted.remove(folder)

    def _clean(self) -> None:
        """Remove answers to ranks that have died."""
        for file in (self.copies.root / ANSWERS).iterdir():
            with suppress(OSError):
                if time.time() - file.stat().st_mtime > OLD_ANSWER_SECONDS:
                    file.unlink()


def _written_at(file: Path) -> tuple[int, int]:
    """Differs for each request of the same name."""
    status = file.lstat()
    return status.st_ino, status.st_mtime_ns


def _request(file: Path) -> Mapping[str, Any]:
    try:
        with open_plain(file.parent, file.name) as stream:
            request = json.loads(stream.read(2**20) or b"{}")
    except (ValueError, FileNotFoundError):
        return {}
    return request if isinstance(request, dict) else {}


def _tell(file: Path, why: str) -> None:
    """Write beside a request why it could not be done."""
    unfinished = file.with_name(f".{file.name}{WHY}")
    unfinished.write_text(why)
    unfinished.replace(file.with_name(file.name + WHY))


def _is_locked(lock: Any) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
