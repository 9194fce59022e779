"""Finds out whether a checkpoint is the one that was written: by checksums of its files, and by whose it is.

torch reads tensors without checking them, so a flipped bit would be trained on. Each rank sums up the files that it has
written. Whoever reads a checkpoint compares them; one from before there were sums is taken as it is.
"""

from __future__ import annotations

from pathlib import Path

from workloads.files.sums import sum_of
from workloads.files.untrusted import NotPlain
from workloads.training.checkpoints.agreed import of_all_stages, rank
from workloads.training.checkpoints.folders import explained, read_json, write_json
from workloads.training.checkpoints.name import CheckpointName, written_checkpoints
from workloads.training.faults import StorageFault

SUMS = "sums.json"


def write_sums(staged: Path, name: CheckpointName, tag: str = "", *, leads: bool) -> None:
    """Write the checksums of all files in ``staged``, and that it is the checkpoint ``name``; all ranks call it.

    One rank for each folder ``leads``. For the mirror (``outbox``) there is also the ``tag`` of this save, and how many
    bytes the files have.
    """
    mine = [path for path in sorted(staged.iterdir()) if _writer(path) == rank()]
    sums = of_all_stages({path.name: sum_of(staged, path.name) for path in mine})
    if leads:
        values = {"trial_id": name.trial_id, "step": name.step, "crc32": {file: crc for file, (crc, _) in sums.items()}}
        if tag:
            values |= {"tag": tag, "bytes": {file: num_bytes for file, (_, num_bytes) in sums.items()}}
        write_json(staged / SUMS, values)


def damage(folder: Path, name: CheckpointName | None = None) -> str:
    """Fault of the checkpoint in ``folder``, which should be ``name``, in words; empty if it is intact."""
    try:
        stored = read_json(folder, SUMS)
        owner, sums = CheckpointName(stored["trial_id"], stored["step"]), dict(stored["crc32"])
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError):
        return f"a file in it is damaged: {SUMS}"
    if name is not None and owner != name:
        return f"it is that of step {owner.step} of trial {owner.trial_id}"
    for file, expected in sums.items():
        try:
            sum_now, _ = sum_of(folder, file)
        except (FileNotFoundError, NotPlain) as error:
            return f"{error.strerror}: {error.filename}"
        if sum_now != expected:
            return f"a file in it is damaged: {file} has another checksum than what was written"
    return ""


def expect_intact(folder: Path, name: CheckpointName | None = None) -> None:
    """Raise ``StorageFault`` with the reason unless the checkpoint in ``folder`` is what was written as ``name``."""
    if why := damage(folder, name):
        raise StorageFault(f"{_message_start(folder)}: {why}")


def newest_intact(root: Path, newest: CheckpointName, unfetched: str = "") -> tuple[CheckpointName, str]:
    """``newest``, or the newest older one of its trial that is intact, with the reason in words.

    One that is not there is returned all the same, because whoever loads it says what to do; not if ``unfetched`` says
    why the mirror could not bring it. Raises ``StorageFault`` if none is intact.
    """
    folder = newest.folder(root)
    with explained(_message_start(folder)):
        why = damage(folder, newest) if folder.exists() else unfetched
        if not why:
            return newest, ""
        older = [
            checkpoint for checkpoint in written_checkpoints(root, newest.trial_id) if checkpoint.step < newest.step
        ]
        for earlier in reversed(older):
            if not damage(earlier.folder(root), earlier):
                return (
                    earlier,
                    f"{_message_start(folder)}: {why}",
                )
    raise StorageFault(
        f"{_message_start(folder)}: {why}; no older one is intact, so restore "
        "this folder from a copy, or submit the study again"
    )


def _message_start(folder: Path) -> str:
    """The beginning of a message."""
    return f"the checkpoint of {folder.name.replace('-', ' ')} cannot be read from {folder.parent}"


def _writer(path: Path) -> int:
    """The rank that has written a file of tensors; 0 for all others."""
    number = path.name.removeprefix("__").partition("_")[0]
    return int(number) if number.isdigit() else 0
