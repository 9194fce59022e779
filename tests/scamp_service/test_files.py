"""Files in the data directory can be read by their owner alone."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from scamp_service import files
from scamp_service.files import close_new_files, keep_private, umask_of_ranks, with_remedy
from scamp_service.settings import Settings


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_older_versions_left_readable_is_closed_and_the_folder_itself_stays(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for name in ("checkpoints", "code", "logs", "profiles", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)
    keep_private(Settings(data_dir=tmp_path))
    closed = {path.name for path in tmp_path.iterdir() if mode(path) == 0o700}
    assert closed == {"checkpoints", "code", "logs", "profiles"}
    assert mode(tmp_path) == 0o755, "it may hold other things"


def test_new_files_are_for_us_alone_but_for_checkpoints_where_somebody_wants_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o027)
    try:
        close_new_files()
        (tmp_path / "new").touch()
        assert mode(tmp_path / "new") == 0o600
        assert umask_of_ranks(Settings(data_dir=tmp_path)) == -1
        assert umask_of_ranks(Settings(data_dir=tmp_path, checkpoint_dir="/srv/shared")) == 0o027
    finally:
        os.umask(before)
        monkeypatch.setattr(files, "_given_umask", -1)


@pytest.mark.parametrize(("num_inodes", "num_free", "is_full"), [(1000, 3, True), (1000, 500, False), (0, 0, False)])
def test_a_disk_without_free_inodes_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_inodes: int, num_free: int, is_full: bool
) -> None:
    statvfs = SimpleNamespace(f_files=num_inodes, f_favail=num_free, f_frsize=4096, f_bavail=2**20, f_blocks=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**32))
    monkeypatch.setattr(os, "statvfs", lambda path: statvfs)
    assert ("without free inodes: remove some files" in files.trouble_with(tmp_path)) == is_full


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, "free some space"), (errno.EMFILE, "ulimit -n"), (errno.EACCES, "")]
)
def test_an_error_of_a_full_disk_or_of_too_many_files_has_a_remedy(number: int, remedy: str) -> None:
    words = with_remedy(OSError(number, os.strerror(number), "/data/logs"))
    assert words.startswith(f"[Errno {number}] {os.strerror(number)}: '/data/logs'") and remedy in words
    assert bool(remedy) == (": " in words.partition("/data/logs'")[2])


def test_a_ray_of_another_account_keeps_its_folders(tmp_path: Path) -> None:
    for name in ("checkpoints", "code", "logs"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o770)
    keep_private(Settings(data_dir=tmp_path, ray_address="head:6379"))
    assert [mode(tmp_path / name) for name in ("checkpoints", "code", "logs")] == [0o770, 0o770, 0o700]


def test_a_folder_that_cannot_be_closed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs").chmod(0o755)

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refuse)
    monkeypatch.setattr(Path, "chmod", refuse)
    with caplog.at_level(logging.WARNING):
        keep_private(Settings(data_dir=tmp_path))
    assert "other users may read" in caplog.text and "logs" in caplog.text
