"""The supervisor: which port it takes, and what it does when its processes or the local Ray die or cannot start."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Self

import httpx
import pytest

from scamp.addresses import remembered_port, running_server
from scamp_service.errors import Unavailable
from scamp_service.processes import supervise
from scamp_service.processes.addresses import free_port
from scamp_service.processes.heartbeat import VARIABLE
from scamp_service.processes.supervise import (
    Service,
    as_environment,
    ray_address_file,
    secrets_pipe,
    try_to_start,
)
from scamp_service.receivers import Receiver
from scamp_service.settings import ROOT, SECRETS_PIPE, ProjectSettings, Settings


def test_a_child_of_ours_reads_the_secrets_from_a_pipe_and_nothing_inherits_them(tmp_path: Path) -> None:
    receiver = Receiver(webhook="https://hooks.example.org/path")
    settings = Settings(
        data_dir=tmp_path,
        api_token="0123456789abcdef",
        database_url="sqlite:////tmp/x.db",
        port=8123,
        notify=[receiver],
    )
    code = (
        "import os; from scamp_service.settings import settings_of_process as of; own = of();"
        "print(own.api_token, own.database_url, own.port, own.notify[0].address,"
        " sorted(n for n in os.environ if n.startswith('SCAMP_')))"
    )
    with secrets_pipe(settings) as pipe:
        environment = {**os.environ, **as_environment(settings), SECRETS_PIPE: str(pipe)}
        assert not any(secret in str(environment) for secret in ("0123456789abcdef", "x.db", "hooks.example.org"))
        command = [sys.executable, "-c", code]
        said = subprocess.check_output(command, cwd=ROOT, env=environment, pass_fds=[pipe], text=True)
    assert said.startswith(f"0123456789abcdef sqlite:////tmp/x.db 8123 {receiver.address} ")
    assert not any(name in said for name in ("API_TOKEN", "DATABASE_URL", "NOTIFY'", "PIPE"))


def test_a_child_of_ours_has_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    projects = {"vision": ProjectSettings(weight=2, devices=8)}
    settings = Settings(data_dir=tmp_path, projects=projects, policy="static-2", self_calibration=False)
    for name, value in as_environment(settings).items():
        monkeypatch.setenv(name, value)
    assert Settings() == settings


class Child:
    """A process that runs until it is told to end."""

    def __init__(self, command: list[str]) -> None:
        self.name = command[-1]
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, seconds: float | None = None) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self.returncode = -15

    kill = terminate


class Ray:
    """A local Ray that starts at once, or fails at once while it is ``broken``."""

    def __init__(self, settings: Settings, data_dir: Path) -> None:
        self.address, self.broken, self._runs = "", False, False

    def alive(self) -> bool:
        return self._runs

    def start(self) -> None:
        self.stop()
        if self.broken:
            raise Unavailable("the local Ray cluster did not start")
        self.address, self._runs = "127.0.0.1:1", True

    def die(self) -> None:
        self._runs = False

    def stop(self) -> None:
        self.address, self._runs = "", False


class World:
    """A service whose processes, Ray and clock are played, with the moments at which each was started."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.cannot_fork: BaseException | None = None
        self.num_failed = 0
        self.started: dict[str, list[float]] = {"api": [], "controller": [], "Ray": []}
        self.children: dict[str, Child] = {}
        self.service = Service(Settings(data_dir=folder))
        start_ray = self.service._start_ray

        def started() -> None:
            self.started["Ray"].append(self.now)
            start_ray()
            self.service._starting.join()

        monkeypatch.setattr(self.service, "_start_ray", started)
        monkeypatch.setattr(self.service, "_wait_for_api", lambda settings: None)
        monkeypatch.setattr(supervise, "LocalRay", Ray)
        monkeypatch.setattr(supervise, "time", self)
        monkeypatch.setattr(subprocess, "Popen", self.popen)

    def monotonic(self) -> float:
        return self.now

    def popen(self, command: list[str], **options: Any) -> Child:
        if self.cannot_fork:
            self.num_failed += 1
            raise self.cannot_fork
        child = Child(command)
        self.started[child.name].append(self.now)
        self.children[child.name] = child
        return child

    @property
    def ray(self) -> Ray:
        assert isinstance(self.service._ray, Ray)
        return self.service._ray

    def live(self, seconds: float) -> None:
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            self.service.watch()


class Race:
    """A service whose first ports are taken by another service, which answers there, while its own API starts.

    If it ``is_brief``, the other service ends before this one looks for another port.
    """

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, num_lost: int, is_brief: bool = False, **options: Any
    ) -> None:
        self.ports: list[int] = []
        self._num_lost, self._others, self._is_brief = num_lost, ExitStack(), is_brief
        self.service = Service(Settings(data_dir=folder, ray_address="10.0.0.1:1", **options))
        monkeypatch.delenv("SCAMP_PORT", raising=False)
        monkeypatch.setattr(httpx, "get", lambda *args, **options: httpx.Response(200))
        monkeypatch.setattr(subprocess, "Popen", self._popen)

    def _popen(self, command: list[str], *, env: dict[str, str], stdout: IO[bytes], **options: Any) -> Child:
        child = Child(command)
        if child.name == "api":
            self.ports.append(int(env["SCAMP_PORT"]))
            if len(self.ports) <= self._num_lost and self._is_brief:
                stdout.write(b"scamp: cannot listen on 127.0.0.1 port 8100 (Address already in use)\n")
                stdout.flush()
                child.returncode = 2
            elif len(self.ports) <= self._num_lost:
                self._others.enter_context(socket.create_server(("127.0.0.1", self.ports[-1])))
                threading.Timer(0.2, setattr, (child, "returncode", 2)).start()
            else:
                os.write(int(env[VARIABLE]), b".")
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._others.close()


@pytest.mark.parametrize("num_lost", [0, 1, 2])
def test_a_service_that_loses_its_port_while_it_starts_takes_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_lost: int
) -> None:
    with Race(tmp_path, monkeypatch, num_lost=num_lost) as race, race.service as service:
        assert len(set(race.ports)) == num_lost + 1
        assert service.settings.port == race.ports[-1] == remembered_port(tmp_path)
        assert service.url == running_server(tmp_path) == f"http://127.0.0.1:{race.ports[-1]}"


def test_a_service_that_loses_its_port_to_one_that_has_ended_since_takes_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Race(tmp_path, monkeypatch, num_lost=2, is_brief=True) as race, race.service as service:
        assert len(race.ports) == 3 and service.settings.port == race.ports[-1]
    with (
        Race(tmp_path, monkeypatch, num_lost=99, is_brief=True) as race,
        pytest.raises(Unavailable, match=r"did not start; .* cannot listen on"),
        race.service,
    ):
        pass
    assert len(race.ports) < 10


def test_a_service_that_loses_the_port_that_somebody_chose_says_so_and_remembers_it_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port("127.0.0.1", 8150)
    with Race(tmp_path, monkeypatch, num_lost=1, port=port) as race:
        with pytest.raises(Unavailable, match=f"port {port} on 127.0.0.1 is in use"), race.service:
            pass
        assert race.ports == [port] and remembered_port(tmp_path) is None


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path, monkeypatch)
    with world.service:
        yield world


def test_a_full_disk_is_said_once_and_so_is_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for free in (0, 2**30):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        world.live(5.0)
    first, second = (record.getMessage() for record in caplog.records)
    assert "is on a full disk: free some space" in first
    assert second.endswith("can be used again")


def test_the_end_of_a_child_is_said_with_the_last_line_of_its_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    log_file = world.service.settings.data_dir / "logs" / "controller.log"
    log_file.write_text("an earlier line\nscamp: Ray \x1b[2Jcannot be reached\n\n")
    world.live(5.0)
    world.children["controller"].returncode = 1
    world.live(1.0)
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("the controller process ended with code 1 and is started again; ")
    assert said.endswith(f"the last line of {log_file} is: Ray  [2Jcannot be reached")


def test_a_child_that_was_killed_is_not_said_with_what_its_log_had_before(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    log_file = world.service.settings.data_dir / "logs" / "controller.log"
    log_file.write_text("Ray says something unrelated\n")
    world.live(5.0)
    world.children["controller"].returncode = -9
    world.live(1.0)
    (said,) = (record.getMessage() for record in caplog.records)
    assert said == f"the controller process was killed (SIGKILL) and is started again; see its log {log_file}"


@pytest.mark.parametrize("name", ["", "logs", "service.lock"])
def test_a_data_directory_that_cannot_be_used_is_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "data"
    if name == "service.lock":
        (folder / name).mkdir(parents=True)
    else:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name if name else folder).write_text("a file")
    with (
        pytest.raises(Unavailable, match=r"the data directory .*/data cannot be used \(.*--data-dir"),
        World(folder, monkeypatch).service,
    ):
        pass


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "cannot be used .*free some space"),
        (errno.EMFILE, r"cannot start \(Too many open files\); allow"),
    ],
)
def test_what_a_start_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str) -> None:
    world = World(tmp_path, monkeypatch)
    world.cannot_fork = OSError(number, os.strerror(number))
    with pytest.raises(Unavailable, match=words), world.service:
        pass


def test_a_ray_that_dies_is_replaced_at_once_with_the_controller(world: World) -> None:
    for _ in range(3):
        world.live(30)
        ray_address_file(world.service.settings.data_dir).write_text("the address of the one that dies")
        world.ray.die()
        world.live(0.5)
        assert world.started["Ray"][-1] == world.started["controller"][-1] == world.now
        assert not ray_address_file(world.service.settings.data_dir).exists(), "the controller waits for the new one"
    assert len(world.started["api"]) == 1


def test_a_ray_that_dies_twice_in_a_row_is_still_replaced_at_once(world: World) -> None:
    world.live(30)
    for _ in range(2):
        world.ray.die()
        world.live(4)
    assert [world.now - when for when in world.started["Ray"][1:]] == [7.5, 3.5]


def test_pauses_grow_to_a_minute_while_ray_cannot_start_and_the_controller_stays(world: World) -> None:
    world.live(30)
    world.ray.broken = True
    world.ray.die()
    num_controllers = len(world.started["controller"])
    died = world.now
    world.live(500)
    assert len(world.started["controller"]) == num_controllers + 1, "only the one that knew the dead Ray"
    starts = [when - died for when in world.started["Ray"][1:]]
    assert starts == pytest.approx([0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 63.5, *range(124, 500, 60)], abs=1)
    world.ray.broken = False
    world.live(60 + 30)
    assert world.ray.alive()
    world.ray.die()
    world.live(0.5)
    assert world.ray.alive(), "it has been up for a while, so the next one starts at once again"


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EAGAIN, "no process"), OSError(errno.EMFILE, "no file"), subprocess.SubprocessError("preexec_fn")],
)
def test_a_process_that_cannot_be_started_now_is_started_later(world: World, error: Exception) -> None:
    world.live(30)
    open_files = len(os.listdir("/proc/self/fd"))
    world.cannot_fork = error
    for child in world.children.values():
        child.kill()
    world.live(10)
    world.cannot_fork = None
    world.live(0.5)
    assert world.started["api"][1:] == world.started["controller"][1:] == [world.now]
    # Every failure would leak a pipe; meanwhile, files of other tests may be closed.
    assert len(os.listdir("/proc/self/fd")) < open_files + world.num_failed


def test_a_controller_is_not_forgotten_when_it_cannot_be_started_beside_a_new_ray(world: World) -> None:
    world.live(30)
    world.cannot_fork = OSError(errno.ENOMEM, "no memory")
    world.ray.die()
    world.live(5)
    world.cannot_fork = None
    world.live(0.5)
    assert world.started["controller"][-1] == world.now


def test_a_thread_that_cannot_be_started_for_ray_is_started_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.live(30)
    world.ray.die()
    with monkeypatch.context() as full:

        def refuse(thread: Any) -> None:
            raise RuntimeError("can't start new thread")

        full.setattr(threading.Thread, "start", refuse)
        full.setattr(threading.Thread, "join", lambda thread: None)
        world.live(5)
    assert not world.ray.alive()
    world.live(10)
    assert world.ray.alive() and len(world.started["controller"]) == 2


@pytest.mark.parametrize("error", [Unavailable("no"), OSError(errno.ENOSPC, "full"), KeyError("a bug of ours")])
def test_whatever_keeps_ray_from_starting_is_logged(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Ray):
        def start(self) -> None:
            raise error

    with caplog.at_level(logging.WARNING):
        try_to_start(Failing(Settings(), Path()), 2)  # type: ignore[arg-type]
    assert len(caplog.records) == 2
