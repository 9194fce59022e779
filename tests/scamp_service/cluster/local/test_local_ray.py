"""A private Ray: closed to strangers, found on the loopback interface only, and gone without a trace."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from scamp_service.cluster.local.connection import connect
from scamp_service.cluster.local.local_ray import LocalRay, _environment, check_account, write_token
from scamp_service.errors import Refused, Unavailable
from scamp_service.processes.supervise import end_ray, try_to_start
from scamp_service.settings import Settings
from scamp_service.user_account import UserAccount
from tests.waiting import PATIENCE_SECONDS, until

CLIENT = """
import logging, sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)
print(int(ray.cluster_resources()["virtual_device"]), len(ray.nodes()))
"""


@pytest.fixture(scope="module")
def local_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    data_dir = tmp_path_factory.mktemp("local")
    ray = LocalRay(Settings(data_dir=data_dir, virtual_devices=3, virtual_nodes=2), data_dir)
    ray.start()
    yield ray
    ray.stop()


def client(ray: LocalRay, code: str = CLIENT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Another process that connects to the cluster."""
    base = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    base |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_gcs_rpc_server_connect_timeout_s": "5"}
    command = [sys.executable, "-c", code, ray.address]
    return subprocess.run(command, env=base | environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def members(ray: LocalRay) -> list[int]:
    """The guardian and everything below it."""
    assert ray._guardian is not None
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
    pids = [ray._guardian.pid]
    for pid in pids:
        pids += [child for child, parent in parents.items() if parent == pid]
    return pids


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and "Z" not in _state(pid)]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "Z"


def wait_gone(pids: list[int]) -> None:
    until(lambda: not alive(pids), "the end of every process")


@pytest.mark.ray
def test_a_client_with_the_token_sees_every_virtual_node(local_ray: LocalRay) -> None:
    answer = client(local_ray, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(local_ray.token_path))
    assert answer.stdout.split() == ["6", "2"], answer.stderr


ORPHAN = """
import logging, os, sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)
leave = "setsid python -c 'import os, time; print(os.getpid(), flush=True); os.close(1); time.sleep({seconds})' & "
print(ray.get(ray.remote(lambda: os.popen(leave).read()).remote()))
"""


@pytest.mark.ray
@pytest.mark.parametrize("seconds", [1, 1000], ids=["ends", "lives on"])
def test_processes_that_users_code_leaves_behind_are_ended_and_no_zombies(local_ray: LocalRay, seconds: int) -> None:
    answer = client(
        local_ray,
        ORPHAN.replace("{seconds}", str(seconds)),
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN_PATH=str(local_ray.token_path),
    )
    pid = int(answer.stdout)
    until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the process that was left behind, also as a zombie")
    assert local_ray.alive()


@pytest.mark.ray
def test_a_client_without_the_token_is_refused(local_ray: LocalRay) -> None:
    strangers = [{"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}]
    with ThreadPoolExecutor() as pool:  # together: Ray takes its time to give up
        for answer in pool.map(lambda environment: client(local_ray, **environment), strangers):
            assert answer.returncode != 0
            assert re.search("authenticat", answer.stderr, re.IGNORECASE), answer.stderr


@pytest.mark.ray
def test_it_listens_on_the_loopback_interface_only(local_ray: LocalRay) -> None:
    sockets = {target for pid in members(local_ray) for target in _open_files(pid)}
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                addresses.add(fields[1].partition(":")[0])
    assert addresses
    assert addresses <= {"0100007F", "0000000000000000FFFF00000100007F", "0" * 24 + "01000000"}


def _open_files(pid: int) -> Iterator[str]:
    """Files that a process has open, as far as it does not close them meanwhile."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                yield os.readlink(link)


def check_that_it_ends_itself(tmp_path: Path, victim: str, with_signal: signal.Signals) -> None:
    ray = LocalRay(Settings(data_dir=tmp_path), tmp_path)
    ray.start()
    try:
        before = members(ray)
        (pid,) = [pid for pid in before if victim in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]]
        os.kill(pid, with_signal)
        until(lambda: not ray.alive(), "the end of this Ray")
        wait_gone(before)
        ray.start()
        assert client(ray, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(ray.token_path)).stdout.split() == ["4", "1"]
    finally:
        ray.stop()


@pytest.mark.ray
def test_it_ends_itself_when_its_gcs_dies_and_starts_again(tmp_path: Path) -> None:
    check_that_it_ends_itself(tmp_path, "gcs_server", signal.SIGKILL)


@pytest.mark.ray
def test_it_gives_up_at_once_when_its_gcs_dies_while_it_starts(tmp_path: Path) -> None:
    ray = LocalRay(Settings(data_dir=tmp_path), tmp_path)
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(ray.start)
        os.kill(until(lambda: find(ray, "gcs_server"), "the GCS"), signal.SIGKILL)
        with pytest.raises(Unavailable, match="did not start"):
            starting.result()
    assert "ending this Ray while it starts, because gcs_server died" in (tmp_path / "logs" / "ray.log").read_text()
    assert not ray.alive()


@pytest.mark.soak
@pytest.mark.ray
def test_a_start_does_not_wait_for_agents_that_a_busy_machine_delays(tmp_path: Path) -> None:
    """A raylet that waits for them dies after 15 seconds."""
    ray = LocalRay(Settings(data_dir=tmp_path), tmp_path)
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(ray.start)
        try:
            for agent in ("dashboard/agent.py", "runtime_env/agent/main.py"):
                os.kill(until(partial(find, ray, agent), agent), signal.SIGSTOP)
            starting.result()
            assert ray.alive()
        finally:
            ray.stop()


@pytest.mark.ray
def test_whoever_stops_a_ray_that_starts_does_not_wait_for_its_start(tmp_path: Path) -> None:
    ray = LocalRay(Settings(data_dir=tmp_path), tmp_path)
    starting = threading.Thread(target=try_to_start, args=(ray,))
    starting.start()
    os.kill(until(lambda: find(ray, "gcs_server"), "the GCS"), signal.SIGSTOP)  # the start would wait for a minute
    processes = members(ray)
    end_ray(ray, starting)
    assert not ray.alive() and alive(processes) == []


def find(ray: LocalRay, words: str) -> int:
    """A process of a cluster that may be starting, by words in its first arguments; 0 if there is none."""
    for pid in members(ray) if ray._guardian is not None else []:
        with contextlib.suppress(OSError):
            if words in " ".join(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:3]):
                return pid
    return 0


@pytest.mark.soak
@pytest.mark.parametrize(
    ("victim", "with_signal"), [("gcs_server", signal.SIGSTOP), ("raylet", signal.SIGKILL), ("raylet", signal.SIGSTOP)]
)
def test_it_ends_itself_whatever_of_it_is_lost(tmp_path: Path, victim: str, with_signal: signal.Signals) -> None:
    check_that_it_ends_itself(tmp_path, victim, with_signal)


def test_the_token_is_secret_from_the_first_moment_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "data" / "ray-token"
    write_token(path)
    token = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert len(token) == 64
    write_token(path)
    assert path.read_text() == token
    path.write_text("")  # left by a start on a full disk
    write_token(path)
    assert len(path.read_text()) == 64 and path.stat().st_mode & 0o777 == 0o600


def test_an_open_ray_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(Refused, match="with tokens only"):
        connect("127.0.0.1:1", tmp_path, "scamp")


@pytest.mark.ray
def test_a_ray_that_cannot_start_says_where_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scamp_service.cluster.local.local_ray.OBJECT_STORE_BYTES", 1)
    ray = LocalRay(Settings(data_dir=tmp_path), tmp_path)
    with pytest.raises(Unavailable, match=r"ray\.log"):
        ray.start()
    assert not ray.alive()
    assert "Traceback" in (tmp_path / "logs" / "ray.log").read_text()


@pytest.mark.parametrize("full", ["ray-address.new", "ray-token"])
def test_a_full_disk_leaves_no_ray_behind(full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A stand-in for the guardian: it says an address, and ends when its standard input closes.
    stand_in = tmp_path / "guardian"
    stand_in.write_text("#!/bin/sh\necho 127.0.0.1:1\nexec cat\n")
    stand_in.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    ray = LocalRay(Settings(data_dir=tmp_path), tmp_path)
    if full == "ray-token":
        monkeypatch.setattr("scamp_service.cluster.local.local_ray.write_token", no_space)
    else:
        (tmp_path / full).symlink_to("/dev/full")
    with pytest.raises(Unavailable, match="No space left on device"):
        ray.start()
    assert not ray.alive()
    assert ray.address == ""
    assert not (tmp_path / "ray-address").exists()


def no_space(path: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.ray
def test_stop_leaves_no_process_and_no_folder(local_ray: LocalRay) -> None:
    processes = members(local_ray)
    folders = {Path(path) for pid in processes for path in re.findall(r"/tmp/scamp-\w+", _arguments(pid))}
    assert local_ray.alive()
    assert len(processes) >= 4
    assert len(folders) == 1
    assert all(folder.exists() for folder in folders)
    local_ray.stop()
    assert not local_ray.alive()
    assert alive(processes) == []
    assert not any(folder.exists() for folder in folders)


def _arguments(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def known_account(monkeypatch: pytest.MonkeyPatch) -> None:
    account = UserAccount("coder", 12345, 12345, "/home/coder")
    monkeypatch.setattr("scamp_service.cluster.local.local_ray.account_of", lambda name: account if name else None)


def test_ranks_run_as_another_user_only_with_a_database_that_this_user_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_account(monkeypatch)
    checked: list[Path] = []
    monkeypatch.setattr(
        "scamp_service.cluster.local.local_ray.check_folder", lambda account, folder: checked.append(folder)
    )
    with pytest.raises(Refused, match="use PostgreSQL"):
        check_account(Settings(data_dir=tmp_path, user_code_user="coder"))
    url = "postgresql+psycopg://scamp@host/scamp"
    check_account(Settings(data_dir=tmp_path, user_code_user="coder", database_url=url))
    assert checked == [tmp_path / "checkpoints"]


def test_who_trains_on_another_ray_is_not_checked_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known_account(monkeypatch)
    check_account(Settings(data_dir=tmp_path, user_code_user="coder", ray_address="head:6379"))
    check_account(Settings(data_dir=tmp_path))


def test_the_environment_of_this_ray_is_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"PGPASSWORD": "p", "SCAMP_API_TOKEN": "t", "https_proxy": "u:p@h", "RAY_AUTH_TOKEN": "r"}
    variables = {"NCCL_DEBUG": "INFO", **secrets}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    environment = _environment(Path("/token"), None)
    assert variables.keys() & environment.keys() == {"NCCL_DEBUG"}
    assert int(environment["RAY_ROTATION_MAX_BYTES"]) <= 2**21 and environment["RAY_ROTATION_BACKUP_COUNT"] == "1"
    assert environment["RAY_AUTH_TOKEN_PATH"] == "/token" and environment["PATH"] == os.environ["PATH"]
