"""Files of a trial that change while they are sent, and more of them than this process may open."""

from __future__ import annotations

import io
import resource
import shutil
import tarfile
from pathlib import Path

import pytest

from scamp_service.errors import Unavailable
from scamp_service.exchange.trial_files import archive, first_bytes
from workloads.training.checkpoints.name import CheckpointName

NAME = CheckpointName(7, 10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = NAME.folder(tmp_path)
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        (folder / name).write_text(name * 1000)
    return folder


def contents(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as packed:
        return {member.name: packed.extractfile(member).read() for member in packed}  # type: ignore[union-attr]


def test_a_checkpoint_that_is_deleted_meanwhile_is_still_whole(folder: Path, tmp_path: Path) -> None:
    parts = archive(tmp_path, NAME)
    shutil.rmtree(folder)
    assert contents(b"".join(parts)) == {"a": b"a" * 1000, "b": b"b" * 1000}


def test_an_archive_of_a_file_that_is_cut_off_breaks(folder: Path, tmp_path: Path) -> None:
    parts = archive(tmp_path, NAME)
    sent = [next(parts)]  # the header of the first file, which says its size
    (folder / "a").write_text("a")
    with pytest.raises(OSError, match="became shorter"):
        sent += parts
    assert len(sent[0]) == tarfile.BLOCKSIZE


def test_a_file_that_grows_is_sent_as_long_as_it_was_said_to_be() -> None:
    assert b"".join(first_bytes(io.BytesIO(b"0123456789"), 4)) == b"0123"


def test_an_archive_that_would_take_most_file_descriptors_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (7, 7))
    with pytest.raises(Unavailable, match=r"has 2 files or more.*ulimit -n"):
        archive(tmp_path, NAME)


def test_names_that_are_no_text_are_sent_as_they_are(folder: Path, tmp_path: Path) -> None:
    odd = b"\xff\n".decode(errors="surrogateescape")
    (folder / odd).write_text("odd")
    assert contents(b"".join(archive(tmp_path, NAME)))[odd] == b"odd"
