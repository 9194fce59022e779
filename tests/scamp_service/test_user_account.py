"""Users' code as another Unix user: what it cannot reach then, and what is said where that cannot be.

The tests that start processes need root, and a Python and a checkout that ``nobody`` may read.
"""

from __future__ import annotations

import os
import pwd
import sys
import tempfile
from pathlib import Path

import pytest

from scamp_service.errors import InvalidInput, Refused
from scamp_service.sizing.submission_check import check_workload
from scamp_service.sizing.tracing import trace_process
from scamp_service.study.parse import parse_study
from scamp_service.study.user_code.bundling import bundle_code
from scamp_service.user_account import USER, Lent, UserAccount, account_of, check_folder

OTHER = "nobody"
LOOK = """
import os
from pathlib import Path
from workloads.protocol import Workload

class Mine(Workload):
    pass

def can(act):
    try:
        act()
    except OSError:
        return False
    return True

parent = os.getppid()
while Path(f"/proc/{parent}").stat().st_uid == os.getuid():  # up to the service's own process
    parent = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
raise RuntimeError({
    "uid": os.getuid(), "groups": os.getgroups(), "home": os.environ["HOME"],
    "reads": [name for name in (*FILES, f"/proc/{parent}/environ", f"/proc/{parent}/mem") if can(lambda: open(name))],
    "kills": can(lambda: os.kill(parent, 0)), "becomes root": can(lambda: os.setuid(0)),
    "own code": can(lambda: open(__file__).read()),
    "writes beside it": can(lambda: Path(__file__).parents[2].joinpath("x").touch()),
})
"""


@pytest.fixture
def account() -> UserAccount:
    try:
        other_account = account_of(OTHER)
    except Refused as refused:
        pytest.skip(str(refused))
    assert other_account is not None
    return other_account


def refusal(name: str) -> str:
    with pytest.raises(Refused) as refused:
        account_of.__wrapped__(name)
    return str(refused.value)


def test_without_a_name_nothing_changes() -> None:
    assert account_of("") is None


def test_a_user_that_does_not_exist_is_refused() -> None:
    assert "there is no user 'no-such-user'" in refusal("no-such-user")
    assert "useradd" in refusal("no-such-user")


def test_the_user_of_the_service_itself_is_refused() -> None:
    assert "protects nothing" in refusal(pwd.getpwuid(os.geteuid()).pw_name)


def test_only_root_can_run_code_as_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert "run ScaMP as root" in refusal(OTHER)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start processes as another user")
def test_a_user_that_cannot_run_our_python_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir(0o700)
    (hidden / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(hidden / "python"))
    words = refusal(OTHER)
    assert f"cannot run {hidden}/python" in words
    assert "Permission denied" in words
    assert "TMPDIR" in words


def test_as_another_user_the_code_of_a_study_reads_nothing_of_the_service(
    account: UserAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(USER, OTHER)
    monkeypatch.setattr(trace_process, "COMMAND", [sys.executable, "-m", "workloads.sandbox.server"])
    database = tmp_path / "scamp.db"
    database.write_text("")
    database.chmod(0o600)
    (tmp_path / "mine.py").write_text(f"FILES = [{str(database)!r}, '/etc/shadow']\n{LOOK}")
    spec = parse_study(
        {
            "name": "mine",
            "workload": "mine.py:Mine",
            "objective": {"metric": "loss", "direction": "minimize"},
            "space": {"lr": {"low": 0.1, "high": 1.0}},
        }
    )
    before = set(Path(tempfile.gettempdir()).glob("scamp-lent-*"))
    with pytest.raises(InvalidInput) as refused:
        check_workload(spec, bundle_code(tmp_path / "study.yaml", "mine.py:Mine"))
    expected = {
        "uid": account.uid, "groups": [], "home": account.home, "reads": [], "kills": False, "becomes root": False,
        "own code": True, "writes beside it": False,
    }  # fmt: skip
    assert str(expected) in str(refused.value)
    assert set(Path(tempfile.gettempdir()).glob("scamp-lent-*")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to another user")
def test_only_the_account_reads_what_is_lent_and_it_writes_in_one_folder_of_it(tmp_path: Path) -> None:
    entry = pwd.getpwnam(OTHER)
    lent = Lent.to(UserAccount(OTHER, entry.pw_uid, entry.pw_gid, entry.pw_dir))
    try:
        (tmp_path / "code.zip").write_bytes(b"zip")
        copied = lent.copy(tmp_path / "code.zip")
        assert copied.read_bytes() == b"zip" and lent.copy(tmp_path / "code.zip") == copied
        for path, uid, mode in [(lent.folder, 0, 0o750), (copied, 0, 0o640), (lent.unpacked, entry.pw_uid, 0o700)]:
            assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (uid, mode)
            assert path.stat().st_gid == entry.pw_gid
    finally:
        lent.remove()
    assert not lent.folder.exists()


def test_a_folder_that_the_account_cannot_write_in_is_refused(account: UserAccount, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(0o700)
    with pytest.raises(Refused, match=r"cannot write in .*/closed.*SCAMP_CHECKPOINT_DIR"):
        check_folder(account, tmp_path / "closed")


def test_a_folder_that_does_not_exist_is_made_for_the_account(account: UserAccount) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        check_folder(account, Path(directory) / "new")
        assert (Path(directory) / "new").stat().st_uid == account.uid
        assert list((Path(directory) / "new").iterdir()) == []
