"""Files in the data directory can be read by their owner alone."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from scamp_service import files
from scamp_service.files import close_new_files, keep_private, umask_of_ranks
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
