"""Checkpoints in object storage under fire: the process that stores them is killed, and stored objects are corrupted.

The server is that of moto, on this machine; the client is the real s3fs, in the real process.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scamp_service.remote.copies import Copies, NotStored
from scamp_service.remote.objects import Objects
from scamp_service.remote.process import mirroring
from scamp_service.settings import Settings
from tests.services.s3 import BUCKET, ObjectStorage, object_storage
from workloads.files.sums import sum_of
from workloads.training.checkpoints import outbox
from workloads.training.checkpoints.name import CheckpointName, written_checkpoints
from workloads.training.checkpoints.retention import KEEP

TITLE = "Object storage"
HEADER = ("kills", "stored", "lost", "doubled", "corrupted", "corrupt restored", "seconds", "case")
ABOUT = """\
Trials write checkpoints, as ranks do, and the process that stores them in S3 is killed (SIGKILL) at moments drawn from
a seed, while the server takes 20 ms for each object. Then every checkpoint must be there that its host still has. Each
is read by another host and compared byte by byte. *Lost* are those that are not there, or differ; *doubled* are objects
that belong to none, and checkpoints that were to be removed. Then objects are corrupted one at a time: a bit, the end,
or the whole object. *Corrupt restored* are reads that gave other bytes than were written."""

TRIALS, FILES, FILE_BYTES, OBJECT_SECONDS = 4, 12, 20_000, 0.02
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Case:
    """Kills at moments that a seed draws."""

    seed: int
    kills: int

    def __str__(self) -> str:
        return f"seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Result:
    """Numbers of kills, of checkpoints stored, and of what must not be."""

    kills: int
    stored: int
    lost: int
    doubled: int
    corrupted: int
    corrupt_restored: int
    seconds: float

    def row(self) -> list[str]:
        counts = (self.kills, self.stored, self.lost, self.doubled, self.corrupted, self.corrupt_restored)
        return [*map(str, counts), f"{self.seconds:.0f}"]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    return [Case(seed, 2)] if quick else [Case(seed + number, 12) for number in range(3)]


def figures(results: Sequence[Result]) -> Mapping[str, float]:
    return {
        "s3_kills": sum(result.kills for result in results),
        "s3_lost": sum(result.lost for result in results),
        "s3_doubled": sum(result.doubled for result in results),
        "s3_corrupt_restored": sum(result.corrupt_restored for result in results),
    }


def measure(case: Case, seconds: float) -> Result:
    began, rng = time.monotonic(), random.Random(case.seed)
    with object_storage() as storage, tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder, "data"))
        storage.seconds, storage.methods = OBJECT_SECONDS, {"PUT"}
        copies = Copies(Objects(storage.url), settings.checkpoints)
        trials = _Trials(settings.checkpoints, rng)
        with mirroring(settings, storage.url):
            training = threading.Thread(target=trials.train)
            training.start()
            kills = _kill(settings.checkpoints, rng, case.kills)
            trials.ends.set()
            training.join()
            _wait(lambda: not outbox.waiting(settings.checkpoints))
        storage.seconds = 0.0
        elsewhere = Copies(copies.objects, Path(folder, "elsewhere"))
        names = [name for trial in range(TRIALS) for name in written_checkpoints(settings.checkpoints, trial)]
        lost = sum(not _restores(elsewhere, copies, name) for name in names)
        doubled = _doubled(storage, copies, names) + len(outbox.waiting(settings.checkpoints))
        corrupted, restored = _corrupt(storage, copies, names, rng, Path(folder, "third"))
    return Result(kills, len(names), lost, doubled, corrupted, restored, time.monotonic() - began)


class _Trials:
    """Trials that write a checkpoint now and then, and remove all but the last two."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self._root, self._rng, self.ends = root, rng, threading.Event()
        self._steps = dict.fromkeys(range(TRIALS), 0)

    def train(self) -> None:
        while not self.ends.wait(self._rng.uniform(0.05, 0.6)):
            trial_id = self._rng.randrange(TRIALS)
            self._steps[trial_id] += 5
            name = CheckpointName(trial_id, self._steps[trial_id])
            self._write(name)
            for old in written_checkpoints(self._root, trial_id)[:-KEEP]:
                old.folder(self._root).rename(doomed := self._root / f".doomed-{time.monotonic_ns()}")
                for path in doomed.iterdir():
                    path.unlink()
                doomed.rmdir()
            outbox.push(self._root, name, [], ends=True)

    def _write(self, name: CheckpointName) -> None:
        target = name.folder(self._root)
        staged = target.with_name(f".{target.name}")
        staged.mkdir(parents=True)
        files = [f"__{number}_0.distcp" for number in range(FILES)]
        for file in files:
            (staged / file).write_bytes(os.urandom(FILE_BYTES))
        sums = {file: sum_of(staged, file) for file in files}
        values = {
            "trial_id": name.trial_id,
            "step": name.step,
            "crc32": {file: crc for file, (crc, _) in sums.items()},
            "bytes": {file: size for file, (_, size) in sums.items()},
            "tag": f"1-{name.step}",
        }
        (staged / "sums.json").write_text(json.dumps(values))
        staged.rename(target)


def _kill(root: Path, rng: random.Random, num: int) -> int:
    """Kill the mirror so many times, each time once it has sent something since it began."""
    pid_file, killed = root / outbox.FOLDER / "pid", 0
    for _ in range(num):
        _wait(lambda last=killed: int(_text(pid_file) or last) != last and _has_begun(root, pid_file))  # type: ignore[misc]
        time.sleep(rng.uniform(0.0, 1.0))
        killed = int(_text(pid_file))
        with suppress(ProcessLookupError):
            os.kill(killed, signal.SIGKILL)
    return num


def _has_begun(root: Path, pid_file: Path) -> bool:
    alive = root / outbox.ALIVE
    return alive.exists() and alive.stat().st_mtime > pid_file.stat().st_mtime and bool(outbox.waiting(root))


def _restores(elsewhere: Copies, copies: Copies, name: CheckpointName) -> bool:
    with suppress(NotStored):
        elsewhere.pull(name)
        return _content(elsewhere, name) == _content(copies, name)
    return False


def _content(copies: Copies, name: CheckpointName) -> dict[str, bytes]:
    folder = name.folder(copies.root)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "sums.json"}


def _doubled(storage: ObjectStorage, copies: Copies, names: Sequence[CheckpointName]) -> int:
    """Objects that belong to no checkpoint which its host still has."""
    needed = {
        f"{name.trial_id}/step-{name.step}/{part}"
        for name in names
        for part in ("manifest.json", *(f"1-{name.step}/{file}" for file in _content(copies, name)))
    }
    return len(set(storage.names()) - needed)


def _corrupt(
    storage: ObjectStorage, copies: Copies, names: Sequence[CheckpointName], rng: random.Random, folder: Path
) -> tuple[int, int]:
    """Corrupt objects one at a time, and count how many there were and how often other bytes were read."""
    num, restored, objects = 0, 0, storage.names()
    for name in names:
        start = f"{name.trial_id}/step-{name.step}/"
        for path in rng.sample([path for path in objects if path.startswith(start)], 2):
            place = f"{BUCKET}/{storage.prefix}/{path}"
            data = storage.files.cat_file(place)
            for changed in (_flipped(data, rng), data[: rng.randrange(len(data))], None):
                num += 1
                storage.files.rm_file(place) if changed is None else storage.files.pipe_file(place, changed)
                reader = Copies(copies.objects, folder / str(num))
                with suppress(NotStored):
                    reader.pull(name)
                    restored += _content(reader, name) != _content(copies, name)
            storage.files.pipe_file(place, data)
    return num, restored


def _flipped(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _wait(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError("the mirror does nothing")
        time.sleep(0.05)
