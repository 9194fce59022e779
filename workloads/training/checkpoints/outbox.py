"""Requests of ranks to the mirror: the process of a host that copies checkpoints to and from object storage.

A request is a small file below the folder of all checkpoints, so it outlives who wrote it and who does it, and ranks
need no credentials. Users' code can write here as well, as in all checkpoints: the mirror trusts nothing in a request
but its name. Without torch.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workloads.files.untrusted import open_plain
from workloads.training.checkpoints.name import CheckpointName

FOLDER = ".mirror"
PUSH, PULL, ANSWERS, FORGET = (f"{FOLDER}/{name}" for name in ("push", "pull", "answers", "forget"))
ALIVE = f"{FOLDER}/alive"
WHY = ".why"
LOOK_SECONDS = 0.1
LATE_SECONDS = 120.0
DEAD_SECONDS = 60.0
"""Seconds after its last sign of life for which ranks wait for a mirror."""
_NAME = re.compile(r"(\d{1,18})-(\d{1,18})(?:-[0-9a-f]{32})?")


class NotFetched(Exception):
    """A checkpoint could not be brought to this host; the message says why."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A checkpoint that is only on this host since ``since`` (seconds since the epoch).

    ``why`` says why the last try to store it failed; empty if none has.
    """

    name: CheckpointName
    since: float
    why: str

    def is_late(self, now: float) -> bool:
        """Whether it takes so long that somebody should know."""
        return self.why != "" or now - self.since > LATE_SECONDS


def open_outbox(root: Path) -> None:
    """Make the folders for requests."""
    for folder in (PUSH, PULL, ANSWERS, FORGET):
        (root / folder).mkdir(parents=True, exist_ok=True)


def push(root: Path, name: CheckpointName, needed: Collection[CheckpointName], *, ends: bool) -> None:
    """Ask to store this host's files of a checkpoint, which remains asked for until it is done.

    The host that ``ends`` it says when all files of all hosts are there, and which other checkpoints are ``needed``.
    """
    text = json.dumps({"needed": [[other.trial_id, other.step] for other in sorted(needed)], "ends": ends})
    _write(root / PUSH / f"{name.trial_id}-{name.step}", text)


def forget(root: Path, trial_id: int, before: int) -> None:
    """Ask to remove the stored checkpoints of a trial that attempts before the attempt ``before`` have written."""
    _write(root / FORGET / f"{trial_id}-{before}", "")


def fetch(root: Path, name: CheckpointName, *, or_older: bool, lives: Callable[[], None]) -> str:
    """Wait until this host has a checkpoint as it is stored, and return why it has not; empty if it has.

    With ``or_older`` it then has the newest older one that is whole, if there is any. ``lives`` is called meanwhile.
    Raises ``NotFetched`` if nobody answers.
    """
    request = f"{name.trial_id}-{name.step}-{uuid.uuid4().hex}"
    answer, began = root / ANSWERS / request, time.time()
    _write(root / PULL / request, json.dumps({"or_older": or_older}))
    while not answer.exists():
        if time.time() - max(began, _changed_at(root / ALIVE)) > DEAD_SECONDS:
            (root / PULL / request).unlink(missing_ok=True)
            raise NotFetched(
                "the process that copies checkpoints to and from object storage does not run on this host; see "
                "logs/mirror.log in the data directory"
            )
        lives()
        time.sleep(LOOK_SECONDS)
    why = answer.read_text()
    answer.unlink()
    return why


def waiting(root: Path, trial_id: int | None = None) -> list[Waiting]:
    """The checkpoints that are only on this host, of one trial or of all; by trial and step."""
    requests = []
    for name, file in named(root / PUSH):
        if trial_id in (None, name.trial_id):
            with suppress(FileNotFoundError):
                since = file.stat().st_mtime
                requests.append(Waiting(name, since, _text_of(file.with_name(file.name + WHY))))
    return sorted(requests, key=lambda each: each.name)


def late_words(root: Path, trial_id: int, before: CheckpointName | None = None) -> str:
    """Says which checkpoints of a trial are only on this host, since when and why; empty if none is for long.

    Those from ``before`` on do not count.
    """
    now = time.time()
    requests = [each for each in waiting(root, trial_id) if each.is_late(now) and (not before or each.name < before)]
    if not requests:
        return ""
    steps = ", ".join(str(each.name.step) for each in requests)
    since = time.strftime("%F %T", time.localtime(requests[0].since))
    why = f": {requests[-1].why}" if requests[-1].why else ""
    return f"only on host {socket.gethostname()} since {since}: checkpoint of step {steps}{why}"


def named(folder: Path) -> list[tuple[CheckpointName, Path]]:
    """The requests in a folder, by trial and step."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    matches = ((_NAME.fullmatch(name), folder / name) for name in names)
    return sorted((CheckpointName(int(match[1]), int(match[2])), file) for match, file in matches if match)


def _write(file: Path, text: str) -> None:
    new = file.with_name(f".{uuid.uuid4().hex}")
    new.write_text(text)
    new.replace(file)


def _text_of(file: Path) -> str:
    try:
        with open_plain(file.parent, file.name) as stream:
            return stream.read(1000).decode(errors="replace")
    except OSError:
        return ""


def _changed_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0
