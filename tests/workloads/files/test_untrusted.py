"""What users' code may leave in a folder, and what who reads or removes it then does."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
from pathlib import Path

import pytest

from workloads.files import untrusted
from workloads.files.untrusted import NotPlain, names_in, open_folder, open_plain, remove
from workloads.trial import kept_files


def hard_link_status(folder: Path, uid: int) -> str:
    """The answer for a file with two names, whose folder belongs to ``uid``."""
    (folder / "file").write_text("")
    (folder / "second").hardlink_to(folder / "file")
    fields = list(os.stat(folder))
    fields[4] = uid
    return untrusted.why_not_plain(os.stat(folder / "second"), os.stat_result(fields))


def test_a_plain_file_is_read_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_text("text")
    with open_plain(tmp_path, "a/b/c") as file:
        assert file.read() == b"text"


@pytest.mark.parametrize("name", ["link", "below/secret", "fifo", "socket", "folder", "hollow"])
def test_what_is_no_plain_file_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path / "outside/secret")
    (root / "below").symlink_to(tmp_path / "outside")
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as server, (root / "hollow").open("wb") as hollow:
        monkeypatch.chdir(root)  # a socket's path may not exceed 107 characters
        server.bind("socket")
        hollow.truncate(2**40)
        with pytest.raises(OSError) as refused:
            open_plain(root, name)
    assert not isinstance(refused.value, FileNotFoundError)
    assert refused.value.filename == str(root / name.partition("/")[0]), "and not a word of what a link leads to"


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "", ".", "..", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("")
    (tmp_path / "root/a").mkdir(parents=True)
    with pytest.raises(NotPlain, match="leads out of its folder"):
        open_plain(tmp_path / "root", name)


def test_the_trusted_folder_may_be_a_link_and_all_below_it_may_not(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/file").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "root")
    with open_plain(tmp_path / "link", "file") as file:
        assert file.read() == b"text"
    with pytest.raises(OSError):
        open_plain(tmp_path, "link/file")


def test_a_file_with_a_lease_does_not_keep_its_reader(tmp_path: Path) -> None:
    """Who holds a lease on a file lets everybody wait who opens it, for 45 seconds each."""
    (tmp_path / "file").write_text("text")
    lease = os.open(tmp_path / "file", os.O_RDWR)
    try:
        fcntl.fcntl(lease, fcntl.F_SETSIG, signal.SIGURG)  # SIGIO would end this process
        fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(BlockingIOError):
            open_plain(tmp_path, "file")
    finally:
        os.close(lease)


def test_a_second_name_of_a_file_counts_only_for_its_owner(tmp_path: Path) -> None:
    assert hard_link_status(tmp_path, os.geteuid()) == ""


def test_a_second_name_of_anothers_file_is_refused(tmp_path: Path) -> None:
    assert hard_link_status(tmp_path, os.geteuid() + 1) == "it belongs to another user than its folder"


def test_only_what_was_kept_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "7/artifacts"
    folder.mkdir(parents=True)
    for name in ("a", "new\nline", ".hidden", b"\xff".decode(errors="surrogateescape"), "b"):
        (folder / name).write_text("")
    assert [name for name, _ in kept_files(tmp_path, "7/artifacts")] == ["a", "b"]
    monkeypatch.setattr("workloads.trial.MAX_LISTED", 1)
    assert [name for name, _ in kept_files(tmp_path, "7/artifacts")] == ["a"]


def test_so_many_names_of_a_folder_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / name).touch()
    monkeypatch.setattr(untrusted, "MAX_ENTRIES", 2)
    with open_folder(tmp_path) as folder:
        assert len(names_in(folder)) == 2


@pytest.mark.parametrize("kind", ["link", "fifo", "file", "folder"])
def test_removal_takes_everything_but_what_links_lead_to(tmp_path: Path, kind: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").touch()
    target = tmp_path / "target"
    if kind == "link":
        target.symlink_to(tmp_path / "outside")
    elif kind == "fifo":
        os.mkfifo(target)
    elif kind == "file":
        target.touch()
    else:
        (target / "a/b").mkdir(parents=True)
        (target / "a/link").symlink_to(tmp_path / "outside")
        (target / "a/b/c").touch()
        os.mkfifo(target / "a/fifo")
    remove(target)
    assert not os.path.lexists(target) and (tmp_path / "outside/kept").exists()


def test_removal_of_deep_folders_needs_neither_stack_nor_descriptors(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_DIRECTORY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=descriptor)
        above, descriptor = descriptor, os.open("d", os.O_DIRECTORY, dir_fd=descriptor)
        os.close(above)
    os.close(descriptor)
    remove(tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_removal_of_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        remove(tmp_path / "none")
    assert missing.value.errno == errno.ENOENT and missing.value.filename == str(tmp_path / "none")
