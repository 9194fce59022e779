"""What a hostile workload tries to reach, one case each, over a ``HostileService``.

Each case first shows that it would work without protection: the service's user, who is root, reaches on the same way
what must not be reached, or a reader waits there for ever. So no case passes for want of something to find.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.services.hostile import CANARY, TRIES, WAYS, HostileService
from tests.waiting import until

NUM_CLIENTS = 45
"""More requests at once than the API has threads."""


class Outcome(NamedTuple):
    """Whether a case reached what it must not, and whether something waited for ever."""

    read: bool
    hung: bool


def waits(program: str, *arguments: str) -> bool:
    """Whether a Python program of root does not end by itself within two seconds."""
    try:
        subprocess.run([sys.executable, "-c", program, *arguments], timeout=1.0, capture_output=True)
    except subprocess.TimeoutExpired:
        return True
    return False


def _reads(path: Path, words: bytes = CANARY.encode()) -> None:
    with path.open("rb") as file:
        assert words and words in file.read(2**16), (
            f"{path} would not be read without protection, so this shows nothing"
        )


def _opening_waits(path: Path) -> None:
    assert waits("import sys; open(sys.argv[1], 'rb').read(1)", str(path)), f"{path} hangs nobody"


def _kept(service: HostileService, name: str, words: bytes = CANARY.encode(), **headers: str) -> Outcome:
    """Ask for a name in the hostile trial's kept files which leads to ``words``."""
    _reads(service.folder(service.study) / "artifacts" / name, words)
    status, body, hung = service.get(_files(service) + "/" + name.replace("/", "%2F"), **headers)
    listed, names, slow = service.get(_files(service))
    return Outcome(status in (200, 206) or words in body + names, hung or slow or listed != 200)


def _files(service: HostileService, study_id: int | None = None, number: int = 0) -> str:
    return f"/v1/studies/{study_id or service.study}/trials/{number}/files"


def _is_alive(service: HostileService) -> bool:
    answers = [service.get(path) for path in service.names_and_numbers()]
    return all(status == 200 and not hung for status, _, hung in answers)


def _asked_by_many(service: HostileService, path: str) -> Outcome:
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        answers = list(clients.map(lambda _: service.get(path), range(NUM_CLIENTS)))
    hung = any(hung for *_, hung in answers) or not _is_alive(service)
    return Outcome(any(status == 200 for status, *_ in answers), hung)


def _fifo(service: HostileService) -> Outcome:
    _opening_waits(service.folder(service.study) / "artifacts/fifo")
    return _asked_by_many(service, _files(service) + "/fifo")


def _no_file(service: HostileService, name: str) -> Outcome:
    """A name that must be answered by 404: it can be seen by who does not look at kinds of files."""
    assert os.path.lexists(service.folder(service.study) / "artifacts" / name)
    status, _, hung = service.get(f"{_files(service)}/{name}")
    return Outcome(status != 404, hung)


def _hollow(service: HostileService) -> Outcome:
    assert (service.folder(service.study) / "artifacts/hollow").stat().st_size == 2**40
    return _no_file(service, "hollow")


def _other_name(
    service: HostileService, name: str, leads_to: Callable[[HostileService], Path], words: bytes
) -> Outcome:
    _reads(leads_to(service), words)
    path = name.replace("VICTIM", str(service.folder(service.victim).name))
    status, body, hung = service.get(f"{_files(service)}/{path}")
    return Outcome(status == 200 or words in body, hung)


def _odd_names(service: HostileService) -> Outcome:
    names = os.listdir(service.folder(service.study) / "artifacts")
    assert any("\n" in name for name in names) and any("\udcff" in name for name in names)
    status, body, hung = service.get(_files(service))
    assert "own" in body.decode()
    return Outcome(b"new" in body or status != 200, hung)


def _deep(service: HostileService) -> Outcome:
    top = service.folder(service.study) / "artifacts"
    with contextlib.suppress(RecursionError, OSError):
        list(top.rglob("*"))
        raise AssertionError("a listing of all depths works")
    status, _, hung = service.get(_files(service))
    return Outcome(False, hung or status != 200)


PLANT = """
import os, sys
trap, target, name = sys.argv[1:]
if trap == "link":
    os.symlink(target, name)
elif trap == "moved":
    os.rename(name, name + "-moved")
    os.symlink(target, name)
elif trap == "fifo":
    os.mkfifo(name)
elif trap == "hollow":
    os.truncate(os.open(name, os.O_CREAT | os.O_RDWR), 2**40)
elif trap == "fifo for a folder":
    os.rename(name, name + "-moved")
    os.mkfifo(name)
elif trap == "undo":
    os.unlink(name)
    if os.path.lexists(name + "-moved"):
        os.rename(name + "-moved", name)
"""


@contextmanager
def _planted(service: HostileService, trap: str, path: Path, target: Path | str = "") -> Iterator[None]:
    service.run_as_hostile(PLANT, trap, str(target), str(path))
    try:
        yield
    finally:
        service.run_as_hostile(PLANT, "undo", "", str(path))


def _folder_as_link(service: HostileService, below: str) -> Outcome:
    folder = service.folder(service.study)
    target = service.outside if not below else service.outside / below
    with _planted(service, "moved", folder / below if below else folder, target):
        return _kept(service, "secret")


def _step(service: HostileService) -> Path:
    return max(service.folder(service.study).glob("step-*"), key=lambda step: int(step.name[5:]))


def _in_checkpoint(service: HostileService, trap: str) -> Outcome:
    """A trap among the files of a checkpoint, whose archive is then asked for."""
    path = f"/v1/studies/{service.study}/trials/0/checkpoint"
    assert service.get(path)[0] == 200, "the checkpoint itself can be read"
    file = _step(service) / "trap"
    with _planted(service, trap, file, service.outside / "secret"):
        if trap == "link":
            _reads(file)
        elif trap == "fifo":
            _opening_waits(file)
        answers = _asked_by_many(service, path) if trap == "fifo" else None
        status, body, hung = service.get(path)
        return answers or Outcome(status == 200 or CANARY.encode() in body, hung)


def _step_as_link(service: HostileService) -> Outcome:
    step = _step(service)
    with _planted(service, "moved", step, service.outside):
        _reads(step / "secret")
        status, body, hung = service.get(f"/v1/studies/{service.study}/trials/0/checkpoint")
        return Outcome(status == 200 or CANARY.encode() in body, hung)


def _hard_link(service: HostileService, checkpoint: bool) -> Outcome:
    """Root makes the second name: users could on a host with fs.protected_hardlinks=0."""
    folder = _step(service) if checkpoint else service.folder(service.study) / "artifacts"
    source = Path(tempfile.mkdtemp(dir="/tmp")) / "secret"
    source.write_text(CANARY)
    (folder / "second").hardlink_to(source)
    try:
        _reads(folder / "second")
        path = f"/v1/studies/{service.study}/trials/0/checkpoint" if checkpoint else _files(service) + "/second"
        status, body, hung = service.get(path)
        return Outcome(status == 200 or CANARY.encode() in body, hung)
    finally:
        (folder / "second").unlink()
        shutil.rmtree(source.parent)


def _device(service: HostileService) -> Outcome:
    """Root makes it: users cannot."""
    device = service.folder(service.study) / "artifacts/device"
    os.mknod(device, 0o600 | 0o020000, os.makedev(1, 5))
    os.chown(device, service.account.uid, service.account.gid)
    try:
        assert device.open("rb").read(1) == b"\0"
        return _no_file(service, "device")
    finally:
        device.unlink()


LEASE = """
import fcntl, os, signal, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
sys.stdin.read()
"""


def _lease(service: HostileService) -> Outcome:
    file = service.folder(service.study) / "artifacts/leased"
    with service.as_hostile(LEASE, str(file)) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        answer = _asked_by_many(service, _files(service) + "/leased")
        _opening_waits(file)
        return answer


SWAP = """
import os, sys
folder, target = sys.argv[1:]
os.chdir(folder)
print("swapping", flush=True)
while os.getppid() != 1:
    open("plain", "w").write("own")
    os.replace("plain", "swapped")
    os.symlink(target, "link")
    os.replace("link", "swapped")
"""


def _swapped(service: HostileService) -> Outcome:
    """A name that is a plain file and a link to the canary in turn, many times a second."""
    folder = service.folder(service.study) / "artifacts"
    swapper = service.as_hostile(SWAP, str(folder), str(service.outside / "secret"))
    try:
        assert swapper.stdout is not None and swapper.stdout.readline() == b"swapping\n"
        until(lambda: _checked_then_read(folder / "swapped") == CANARY, "a reader that looks before it opens")
        answers = [service.get(_files(service) + "/swapped") for _ in range(60)]
    finally:
        swapper.kill()
        swapper.communicate()
        (folder / "swapped").unlink()
    return Outcome(any(CANARY.encode() in body for _, body, _ in answers), any(hung for *_, hung in answers))


def _checked_then_read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text() if not path.is_symlink() else ""
    return ""


CHANGE = """
import os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
os.write(file, bytes(2**24))
print("written", flush=True)
while os.getppid() != 1:
    if sys.argv[2] == "shrinks":
        os.ftruncate(file, 0)
        os.pwrite(file, bytes(2**24), 0)
    else:
        os.ftruncate(file, os.fstat(file).st_size + 4096)
        time.sleep(0.001)
"""


def _changing(service: HostileService, how: str) -> Outcome:
    """A file that becomes longer or shorter while it is sent: the answer ends, and has no more than was announced."""
    file = service.folder(service.study) / "artifacts/changing"
    changer = service.as_hostile(CHANGE, str(file), how)
    try:
        assert changer.stdout is not None and changer.stdout.readline() == b"written\n"
        answers = [service.get(_files(service) + "/changing") for _ in range(5)]
        sizes = {file.stat().st_size for _ in range(10_000)}
        assert len(sizes) > 1, "it does not change"
    finally:
        changer.kill()
        changer.communicate()
        file.unlink()
    return Outcome(False, any(hung for *_, hung in answers) or not _is_alive(service))


def _index_that_runs_code(service: HostileService) -> Outcome:
    """The index of a checkpoint is a pickle, which an operator's ``scamp weights`` reads."""
    harm, index = service.outside / "harm", _step(service) / ".metadata"
    evil = b"cos\nmkdir\n(V" + str(harm).encode() + b"\ntR."
    pickle.loads(evil)
    harm.rmdir()  # it would have been made
    before, sums = index.read_bytes(), index.parent / "sums.json"
    summed = sums.read_bytes()
    try:
        index.write_bytes(evil)
        sums.unlink()
        with contextlib.suppress(Exception):
            service.client.weights(service.study, 0, service.outside / "weights.pt")
    finally:
        index.write_bytes(before)
        sums.write_bytes(summed)
        os.chown(sums, service.account.uid, service.account.gid)
    return Outcome(harm.exists(), False)


def _removed(service: HostileService) -> Outcome:
    """A study is deleted whose trials' folders are a link to ours and a FIFO: it goes, and what is ours stays."""
    linked, fifo = service.folder(service.doomed, 0), service.folder(service.doomed, 1)
    service.run_as_hostile(PLANT, "moved", str(service.outside), str(linked))
    service.run_as_hostile(PLANT, "fifo for a folder", "", str(fifo))
    _reads(linked / "secret")
    assert waits("import shutil, sys; shutil.rmtree(sys.argv[1])", str(fifo)), "its removal hangs nobody"
    service.client.delete(service.doomed)
    try:
        until(lambda: not os.path.lexists(linked) and not os.path.lexists(fifo), "the removal of both")
        hung = False
    except AssertionError:
        hung = True
    return Outcome((service.outside / "secret").read_text() != CANARY, hung)


def _of_its_own(service: HostileService, role: str, name: str) -> Outcome:
    """A try that the code made by itself; the service's user succeeds with the same one."""
    attempt = service.tries[name]
    ways: dict[str, Any] = {}
    exec(WAYS, ways)
    if attempt.way == "environment":
        assert CANARY in service.secrets.values()
    else:
        argument = attempt.argument if attempt.with_rights is None else attempt.with_rights
        assert ways["WAYS"][attempt.way](argument), "the service's user cannot do it either, so this shows nothing"
    said = service.said(role, name)
    assert said, f"the {role} has not tried it"
    return Outcome(any(line["reached"] for line in said), False)


def _unpickled(service: HostileService, name: str) -> Outcome:
    """An object whose pickle runs code where it is read, and looks there for the database's address."""
    assert [line["reached"] for line in service.said("unpickled", "shown")] == [True], "such a pickle finds nothing"
    assert service.said("rank", "sent"), "the rank has sent nothing"
    state = service.client.study(service.pickles)["state"]
    ran = [line["reached"] or line["uid"] == os.geteuid() for line in service.said("unpickled", name)]
    return Outcome(any(ran), state in ("RUNNING", "PENDING"))


def _runs_to_its_end(service: HostileService) -> Outcome:
    trial = service.client.trial(service.study, 0)
    return Outcome(False, trial["state"] != "COMPLETED")


def _shadow(service: HostileService) -> Path:
    return Path("/etc/shadow")


def _of_the_victim(service: HostileService) -> Path:
    return service.folder(service.victim) / "artifacts/secret"


CASES: dict[str, Callable[[HostileService], Outcome]] = {
    "a kept file is a link to a file of the service": partial(_kept, name="to-the-canary"),
    "a kept file is such a link, and a range is asked for": lambda service: _kept(
        service, "to-the-canary", Range="bytes=0-5"
    ),
    "a kept file is a relative link": partial(_kept, name="relative"),
    "a kept file is a link to a link": partial(_kept, name="to-a-link"),
    "a kept file is below a link to a folder": partial(_kept, name="to-a-folder/secret"),
    "a kept file is a link to the environment of who reads it": partial(_kept, name="to-environ", words=b"PATH="),
    "a kept file is a link to the token of Ray": lambda service: _kept(
        service, "to-the-ray-token", (service.data_dir / "ray-token").read_bytes()
    ),
    "a kept file is a link to the passwords of the host": partial(_kept, name="to-shadow", words=b"root:"),
    "a kept file is a link to the database": partial(_kept, name="to-the-database", words=b"scram-sha-256"),
    "a kept file is a link to one of another project": partial(_kept, name="to-a-kept-file"),
    "a kept file is a link to a checkpoint of another project": partial(_kept, name="to-a-checkpoint", words=b"step"),
    "a kept file is a link to an endless device": partial(_kept, name="to-zero", words=b"\0"),
    "the folder of kept files is a link": partial(_folder_as_link, below="artifacts"),
    "the folder of the trial is a link": partial(_folder_as_link, below=""),
    "a kept file is a FIFO, which many ask for": _fifo,
    "a kept file is a socket": partial(_no_file, name="socket"),
    "a kept file is a folder": partial(_no_file, name="folder"),
    "a kept file is a device": _device,
    "a kept file is a terabyte of nothing": _hollow,
    "a kept file is a second name of a file of root": partial(_hard_link, checkpoint=False),
    "a kept file has a lease, and many ask for it": _lease,
    "a kept file is a link in every other moment": _swapped,
    "a kept file grows while it is sent": partial(_changing, how="grows"),
    "a kept file shrinks while it is sent": partial(_changing, how="shrinks"),
    "names of kept files are no text": _odd_names,
    "folders of kept files are 2000 deep": _deep,
    "a name leads to another project": partial(
        _other_name, name="..%2F..%2FVICTIM%2Fartifacts%2Fsecret", leads_to=_of_the_victim, words=CANARY.encode()
    ),
    "a name is a path of the host": partial(_other_name, name="%2Fetc%2Fshadow", leads_to=_shadow, words=b"root:"),
    "a name leads up to a path of the host": partial(
        _other_name, name="%2e%2e%2f" * 12 + "etc%2Fshadow", leads_to=_shadow, words=b"root:"
    ),
    "a checkpoint has a link": partial(_in_checkpoint, trap="link"),
    "a checkpoint has a FIFO, and many ask for it": partial(_in_checkpoint, trap="fifo"),
    "a checkpoint has a terabyte of nothing": partial(_in_checkpoint, trap="hollow"),
    "a checkpoint has a second name of a file of root": partial(_hard_link, checkpoint=True),
    "a checkpoint is a link to a folder of the service": _step_as_link,
    "the index of a checkpoint runs code": _index_that_runs_code,
    "a pickle is the name of a metric": partial(_unpickled, name="metric-name"),
    "a pickle is the value of a metric": partial(_unpickled, name="metric-value"),
    "a pickle is the tensor of a metric": partial(_unpickled, name="metric-tensor"),
    "a pickle is a message to the sink": partial(_unpickled, name="message-to-the-sink"),
    "a hostile trial runs to its end": _runs_to_its_end,
    **{f"a rank {name}": partial(_of_its_own, role="rank", name=name) for name in TRIES},
    **{f"a trace {name}": partial(_of_its_own, role="trace", name=name) for name in TRIES},
    "folders of trials are a link and a FIFO, and are removed": _removed,  # last: it deletes them
}
