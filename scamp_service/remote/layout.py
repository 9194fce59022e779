"""Which objects a checkpoint is, when it is whole, and which of them may go. Pure.

The files of a checkpoint are ``TRIAL/step-N/TAG/FILE``. The ``tag`` is that of one save, and begins with the number of
its attempt, so files of two saves never mix. ``TRIAL/step-N/manifest.json`` is written last: it names the tag, and the
size and checksum of every file. Without it there is no checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workloads.training.checkpoints.name import CheckpointName
from workloads.training.checkpoints.retention import outdated

MANIFEST = "manifest.json"
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Manifest:
    """A save of a checkpoint: ``sums`` and ``sizes`` (bytes) of its files.

    ``record`` are the steps after it, for who resumes to compare (``training.guard.resuming``); None: there are none.
    """

    name: CheckpointName
    tag: str
    sums: Mapping[str, int]
    sizes: Mapping[str, int]
    record: Any = None

    @classmethod
    def of(cls, data: bytes, name: CheckpointName) -> Manifest | None:
        """The manifest in an object, or in the file of sums of a checkpoint; None if it is not that of ``name``."""
        try:
            values = json.loads(data)
            owner = CheckpointName(values["trial_id"], values["step"])
            sums = {str(file): int(total) for file, total in values["crc32"].items()}
            sizes = {str(file): int(size) for file, size in values["bytes"].items()}
            manifest = cls(owner, str(values["tag"]), sums, sizes, values.get("record"))
            attempt_of(manifest.tag)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        is_sound = owner == name and sums.keys() == sizes.keys() and all(map(_is_plain, (*sums, manifest.tag)))
        return manifest if is_sound else None

    def to_json(self) -> dict[str, Any]:
        """The content of a checkpoint's file of sums."""
        return {
            "trial_id": self.name.trial_id,
            "step": self.name.step,
            "crc32": dict(self.sums),
            "bytes": dict(self.sizes),
            "tag": self.tag,
        }

    def encoded(self) -> bytes:
        """The object."""
        return json.dumps({**self.to_json(), "record": self.record}).encode()

    def missing(self, sizes: Mapping[str, int]) -> list[str]:
        """The files that are not among the objects with these ``sizes``, or not whole."""
        return sorted(file for file, size in self.sizes.items() if sizes.get(file) != size)


def step_folder(name: CheckpointName) -> str:
    """Folder of all objects of a checkpoint."""
    return f"{name.trial_id}/step-{name.step}"


def manifest_of(name: CheckpointName) -> str:
    """The object with which a checkpoint is whole."""
    return f"{step_folder(name)}/{MANIFEST}"


def tag_folder(name: CheckpointName, tag: str) -> str:
    """Folder of the files of one save."""
    return f"{step_folder(name)}/{tag}"


def attempt_of(tag: str) -> int:
    """The attempt that wrote a checkpoint. Raises ``ValueError``."""
    return int(tag.partition("-")[0])


def whole_ones(trial_id: int, objects: Iterable[str]) -> list[CheckpointName]:
    """The checkpoints that have a manifest among ``objects``, named below the folder of their trial; by step."""
    return sorted(
        CheckpointName(trial_id, step) for step, *rest in filter(None, map(_parts, objects)) if rest == [MANIFEST]
    )


def needless(
    newest: Manifest,
    objects: Iterable[str],
    needed: Collection[CheckpointName],
    here: Collection[CheckpointName],
) -> list[str]:
    """Folders below that of the trial with nothing that anybody needs, now that ``newest`` is whole.

    They are outdated checkpoints, and files of uploads that have no manifest. ``objects`` are all of the trial. Those
    that are still ``here`` on this host may be on their way.
    """
    objects, trial_id = list(objects), newest.name.trial_id
    complete = whole_ones(trial_id, objects)
    gone = {f"step-{name.step}" for name in outdated(complete, newest.name, needed)}
    for step, tag, *_ in filter(None, map(_parts, objects)):
        name = CheckpointName(trial_id, step)
        if tag == MANIFEST or f"step-{step}" in gone:
            continue
        is_other = name == newest.name and tag != newest.tag
        is_left = name < newest.name and name not in complete and name not in needed and name not in here
        if is_other or is_left:
            gone.add(f"step-{step}/{tag}")
    return sorted(gone)


def pause_seconds(num_failures: int) -> float:
    """Seconds until something is tried again that has failed so often in a row."""
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(num_failures - 1, 10))


def _parts(name: str) -> tuple[int, str, *tuple[str, ...]] | None:
    """(step, tag or manifest, file) of an object below a trial's folder; None for what is no part of a checkpoint."""
    step, *rest = name.split("/")
    number = step.removeprefix("step-")
    return (int(number), rest[0], *rest[1:]) if number.isdigit() and step != number and rest else None


def _is_plain(file: str) -> bool:
    return file not in ("", ".", "..") and "/" not in file and "\0" not in file
