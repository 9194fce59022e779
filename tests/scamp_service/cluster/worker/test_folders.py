"""Folders of ranks on the controller's host, and on others."""

from __future__ import annotations

from pathlib import Path

import pytest

from scamp_service.cluster.worker.folders import Folders
from scamp_service.host import kernel
from scamp_service.settings import Settings

ELSEWHERE = Folders("another kernel", Path("/head/code"), Path("/head/checkpoints"))


def test_on_the_controllers_host_ranks_use_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCAMP_DATA_DIR", "/ignored")
    settings = Settings(data_dir=tmp_path)
    folders = Folders.of_controller(settings, settings.checkpoints)
    assert folders.here() == folders == Folders(kernel(), tmp_path / "code", tmp_path / "checkpoints")


def test_on_another_host_ranks_use_the_folders_of_that_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCAMP_DATA_DIR", "/node/data")
    monkeypatch.setenv("SCAMP_CHECKPOINT_DIR", "/node/mount")
    assert ELSEWHERE.here() == Folders(kernel(), Path("/node/data/code"), Path("/node/mount"))


def test_a_shared_folder_without_a_name_is_at_the_same_path_on_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCAMP_DATA_DIR", "/node/data")
    monkeypatch.delenv("SCAMP_CHECKPOINT_DIR", raising=False)
    assert ELSEWHERE.here().checkpoints == Path("/head/checkpoints")


def test_the_checkpoint_folder_is_in_the_data_directory_unless_it_is_set(tmp_path: Path) -> None:
    assert Settings(data_dir=tmp_path).checkpoints == tmp_path / "checkpoints"
    assert Settings(data_dir=tmp_path, checkpoint_dir="/mnt/scamp").checkpoints == Path("/mnt/scamp")
