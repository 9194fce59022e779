"""The Unix user that ``SCAMP_USER_CODE_USER`` names: users' code runs as it where the service's own rights would be too
many. This module finds the user, and checks that its processes can do their work."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scamp_service.errors import Refused
from scamp_service.settings import ROOT
from scamp_service.temporary import make_folder, remove_folder
from scamp_service.user_environment import user_environment

USER = "SCAMP_USER_CODE_USER"
PROBE = "import sys, tempfile, workloads.sandbox; tempfile.TemporaryFile(dir=sys.argv[1]).close()"
PROBE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class UserAccount:
    """A Unix user other than our own. Its processes have its main group and no further one."""

    name: str
    uid: int
    gid: int
    home: str

    def environment(self) -> dict[str, str]:
        """Environment of its processes: what users' code may read of ours, without our own home and its folders."""
        variables = {name: value for name, value in user_environment(os.environ).items() if not name.startswith("XDG_")}
        account_variables = {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}
        return variables | account_variables | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True, slots=True)
class Lent:
    """A folder that the account can read, and in which only ``unpacked`` is its own.

    So it cannot make a link there through which we, as root, would write to another file.
    """

    folder: Path
    account: UserAccount

    @classmethod
    def to(cls, account: UserAccount) -> Lent:
        """A new one, in the folder for temporary files."""
        lent = cls(make_folder(), account)
        os.chown(lent.folder, 0, account.gid)
        lent.folder.chmod(0o750)
        lent.unpacked.mkdir(mode=0o700)
        os.chown(lent.unpacked, account.uid, account.gid)
        return lent

    @property
    def unpacked(self) -> Path:
        """The folder in which the account may write."""
        return self.folder / "unpacked"

    def copy(self, file: Path) -> Path:
        """A copy of ``file`` that the account can read, made at the first call with a file of this name."""
        copied = self.folder / file.name
        if not copied.exists():
            unfinished = self.folder / f".{file.name}"
            shutil.copyfile(file, unfinished)
            os.chown(unfinished, 0, self.account.gid)
            unfinished.chmod(0o640)
            unfinished.rename(copied)
        return copied

    def remove(self) -> None:
        """Remove the folder and everything in it."""
        remove_folder(self.folder)


def started_as(account: UserAccount | None) -> dict[str, Any]:
    """Arguments of ``subprocess.Popen`` for a process of the account; none for our own user."""
    return {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": ()}


@cache
def account_of(name: str) -> UserAccount | None:
    """The account with this name, once it is sure that its processes can work; None for an empty name.

    Raises ``Refused``, which says what to do.
    """
    if not name:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise Refused(
            f"{USER}: there is no user {name!r} on this machine; create it (useradd --system --create-home {name}), or "
            "correct the name"
        ) from None
    if entry.pw_uid == os.geteuid():
        raise Refused(f"{USER}: ScaMP itself runs as {name}, so this protects nothing; name another user")
    if os.geteuid() != 0:
        raise Refused(f"{USER}: only root may start processes as {name}; run ScaMP as root, or unset the variable")
    account = UserAccount(name, entry.pw_uid, entry.pw_gid, entry.pw_dir)
    _check(account)
    return account


def check_folder(account: UserAccount, folder: Path) -> None:
    """Raise ``Refused`` unless the account can write in ``folder``, which is made for it where it does not exist."""
    if not folder.exists():
        for above in reversed([parent for parent in folder.parents if not parent.exists()]):
            above.mkdir()
            above.chmod(0o755)  # the account must search it, whatever our umask is
        folder.mkdir(mode=0o700)
        os.chown(folder, account.uid, account.gid)
    if why := _why_not(account, folder):
        raise Refused(
            f"{USER}: {account.name} cannot write in {folder}, where its ranks keep checkpoints ({why}); set "
            f"SCAMP_CHECKPOINT_DIR to a folder that {account.name} owns, outside of folders that only root may search"
        )


def _check(account: UserAccount) -> None:
    """Raise ``Refused`` unless a process of the account can run our Python, read our code and write where it must."""
    with _lent(account) as lent:
        why = _why_not(account, lent.unpacked)
    if why:
        raise Refused(
            f"{USER}: {account.name} cannot run {sys.executable} with the code in {ROOT}, and write in "
            f"{tempfile.gettempdir()} ({why}); let this user read both and search every folder above them (so nothing "
            "may lie in /root), and set TMPDIR to a folder in which it can work"
        )


def _why_not(account: UserAccount, folder: Path) -> str:
    """Why a process of the account cannot import our code or write in ``folder``; empty if it can."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE, str(folder)], cwd="/", env=account.environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=PROBE_SECONDS, **started_as(account),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    words: list[str] = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return words[-1]


@contextmanager
def _lent(account: UserAccount) -> Iterator[Lent]:
    lent = Lent.to(account)
    try:
        yield lent
    finally:
        lent.remove()
