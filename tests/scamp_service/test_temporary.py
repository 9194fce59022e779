"""Temporary folders of processes that were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scamp_service import temporary
from scamp_service.settings import ROOT
from scamp_service.temporary import make_folder, remove_folder, remove_forgotten

HOLD = "import sys; from pathlib import Path; from scamp_service.temporary import make_folder\n"
HOLD += "print(make_folder(Path(sys.argv[1])), flush=True); sys.stdin.read()"


def test_only_folders_whose_process_is_gone_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = make_folder(tmp_path)
    (mine / "file").touch()
    (tmp_path / "scamp-of-another-kind").mkdir()
    (tmp_path / "scamp-link").symlink_to(mine)
    command: list[str | Path] = [sys.executable, "-c", HOLD, tmp_path]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        held = Path(other.stdout.readline().strip())
        assert held.stat().st_mode & 0o777 == 0o700
        remove_forgotten(tmp_path)
        assert held.is_dir()
        assert (mine / "file").exists()
        os.kill(other.pid, signal.SIGKILL)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    remove_forgotten(tmp_path)
    assert held.is_dir(), "it is another user's"
    monkeypatch.undo()
    remove_forgotten(tmp_path)
    assert not held.exists()
    assert (mine / "file").exists()
    remove_folder(mine)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scamp-link", "scamp-of-another-kind"]


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, folders = temporary._lock, []

    def late(folder: Path, flags: int = 0) -> int | None:
        folders.append(folder)
        if len(folders) == 1:
            folder.rmdir()
        return lock(folder, flags)

    monkeypatch.setattr(temporary, "_lock", late)
    assert make_folder(tmp_path) == folders[1]
    remove_folder(folders[1])
