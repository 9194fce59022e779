"""Opens, lists and removes what lies below a folder in which users' code writes, where every name may be a trap.

The service may run as root, and users' code as somebody else. So no link is followed, each folder is opened from the
one above it, only plain files are opened, and nothing waits for another process, as a FIFO or a lease on a file would.
``root`` is a trusted folder: links in its own path are followed. All functions raise ``OSError``.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO

MAX_ENTRIES = 100_000
"""Entries of one folder that are listed, so that nobody fills the memory of who lists them."""
HOLLOW_BYTES = 2**30
_HOLLOW_RATIO = 100
_ROUNDS_OF_REMOVAL = 3
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class NotPlain(OSError):
    """The name belongs to a link, a FIFO, a file of somebody else or the like; the message says to which."""


def open_plain(root: Path, name: str | PurePosixPath) -> BinaryIO:
    """The plain file ``name`` below ``root``, opened for reading."""
    path = PurePosixPath(name)
    with open_folder(root, path.parent) as folder:
        return open_in(folder, path.name, root / path)


def open_in(folder: int, name: str, path: Path) -> BinaryIO:
    """The plain file ``name`` of an opened folder, for reading; ``path`` is what errors call it."""
    with _named(path):
        descriptor = os.open(_checked(name), _FILE, dir_fd=folder)
        try:
            status = os.fstat(descriptor)
            if why := why_not_plain(status, os.fstat(folder)) or _hollow(descriptor, status):
                raise NotPlain(errno.EINVAL, why)
            return open(descriptor, "rb")  # it closes the descriptor from here on
        except BaseException:
            os.close(descriptor)
            raise


@contextmanager
def open_folder(root: Path, name: str | PurePosixPath = "") -> Iterator[int]:
    """A descriptor of the folder ``name`` below ``root``; of ``root`` itself without a name."""
    path = PurePosixPath(name)
    with _named(root / path):
        descriptor = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
        try:
            for part in path.parts:
                above, descriptor = descriptor, os.open(_checked(part), _FOLDER, dir_fd=descriptor)
                os.close(above)
        except BaseException:
            os.close(descriptor)
            raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def names_in(folder: int) -> list[str]:
    """The first ``MAX_ENTRIES`` names in an opened folder, sorted."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in islice(entries, MAX_ENTRIES))


def plain_status(folder: int, name: str) -> os.stat_result | None:
    """The status of a plain file in an opened folder, and None if it is anything else or not there."""
    with suppress(OSError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return None if why_not_plain(status, os.fstat(folder)) else status
    return None


def why_not_plain(status: os.stat_result, folder: os.stat_result) -> str:
    """Why what has this status is no plain file of a folder's user, in words; empty if it is one.

    Where the kernel allows it (fs.protected_hardlinks=0), users can link a file of ours, or of anybody else, into a
    folder of theirs. Ranks of several users may share a folder, so files of others that have no second name are plain.
    """
    if not stat.S_ISREG(status.st_mode):
        return "it is no plain file"
    is_ours = status.st_uid == os.geteuid()
    if status.st_uid != folder.st_uid and (is_ours or status.st_nlink != 1):
        return "it belongs to another user than its folder"
    return ""


def remove(path: Path) -> None:
    """Remove ``path``, be it a folder with all in it or anything else; what a link leads to stays.

    Depth costs neither stack nor descriptors: each folder below is first moved to the top.
    """
    with open_folder(path.parent) as above, _named(path):
        try:
            folder = os.open(path.name, _FOLDER, dir_fd=above)
        except NotADirectoryError:
            os.unlink(path.name, dir_fd=above)
            return
        try:
            for remaining in reversed(range(_ROUNDS_OF_REMOVAL)):
                _empty(folder)
                try:
                    os.rmdir(path.name, dir_fd=above)
                    return
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY or not remaining:  # somebody still writes there
                        raise
        finally:
            os.close(folder)


def _empty(folder: int) -> None:
    waiting = os.listdir(folder)
    while waiting:
        name = waiting.pop()
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            continue
        except IsADirectoryError:
            waiting += _remove_but_folders(folder, name)


def _remove_but_folders(folder: int, name: str) -> list[str]:
    """Remove the folder ``name`` in ``folder``, and return the new names in ``folder`` of the folders that it had."""
    moved = []
    below = os.open(name, _FOLDER, dir_fd=folder)
    try:
        for inner in os.listdir(below):
            try:
                os.unlink(inner, dir_fd=below)
            except IsADirectoryError:
                moved.append(uuid.uuid4().hex)
                os.rename(inner, moved[-1], src_dir_fd=below, dst_dir_fd=folder)
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=folder)
    return moved


def _checked(part: str) -> str:
    if part in ("", ".", "..") or "/" in part or "\0" in part:
        raise NotPlain(errno.EINVAL, "its name leads out of its folder")
    return part


def _hollow(descriptor: int, status: os.stat_result) -> str:
    """Why this large file is not worth to be read, in words: hardly anything of its size was ever written.

    Such a file is made in no time, and fills the disk of who copies it. File systems that know nothing of holes say so.
    """
    is_hollow = status.st_size > HOLLOW_BYTES and 512 * status.st_blocks * _HOLLOW_RATIO < status.st_size
    if is_hollow and os.lseek(descriptor, 0, os.SEEK_HOLE) < status.st_size:
        return f"its {status.st_size} bytes are almost all a hole"
    return ""


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Give errors the whole path, and words that fit a link."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPlain(error.errno, "it is a link", str(path)) from None
        raise type(error)(error.errno, error.strerror, str(path)) from None
