"""``scamp serve``: starts the API, the controller and a local Ray as child processes, and restarts what dies or hangs.

It leaves no process behind. It knows nothing about studies: it or any of its children may be killed at any time.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import httpx

from scamp.addresses import running_server, url_of
from scamp.user_code.bundling import SERVICE_LOCK
from scamp_service import patience
from scamp_service.cluster.devices.gpus import expect_rehearsal
from scamp_service.cluster.local.local_ray import LocalRay, check_account
from scamp_service.errors import Conflict, Unavailable
from scamp_service.files import FULL, TOO_MANY_FILES, keep_private, trouble_with, with_remedy
from scamp_service.host import allow_many_files
from scamp_service.processes.addresses import take_port, write_server_file
from scamp_service.processes.heartbeat import VARIABLE, Pulse
from scamp_service.remote.copies import expect_storage
from scamp_service.settings import ROOT, SECRETS, SECRETS_PIPE, Settings
from scamp_service.store.database import expect_shared_database
from scamp_service.temporary import remove_forgotten

log = logging.getLogger("scamp.serve")

MODULES = {"api": ["api"], "controller": ["scamp_service", "controller"]}
RESTART_SECONDS = 1.0
FIRST_RAY_PAUSE_SECONDS = 1.0
LONGEST_RAY_PAUSE_SECONDS = 60.0
"""Seconds from one start of Ray to the next. They double with each start, until a Ray stays up."""
RAY_STAYS_SECONDS = 20.0
"""A Ray that lives so long after its start stays up: should it die, the next one starts at once."""
STOP_SECONDS = 5.0
"""How long a process may take to end, beside the time in which trials may write a checkpoint."""
LAST_BYTES = 500  # of a child's log
CANNOT_LISTEN = "cannot listen on"  # the words of an API whose port was taken meanwhile
MOST_LOST_PORTS = 5
UNFINISHED = "restore-unfinished"
"""The file in a data directory that ``scamp restore`` has not finished."""


class Service:
    """The processes of ``scamp serve``, as a context manager. ``url`` is the address of the API.

    Entering raises ``Refused`` for a user that cannot run users' code, ``InvalidInput`` for a database that other
    processes cannot use, ``Conflict`` when the data directory is in use, and ``Unavailable`` when its port is in use or
    the API does not start, as at a public address with neither a token nor users. Only with ``next_port``, or when
    nobody chose the port, another free one is taken: whoever chose one would otherwise talk to another service there.
    """

    def __init__(self, settings: Settings, *, next_port: bool = False) -> None:
        self.settings = settings
        self._next_port = next_port
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._started: dict[str, float] = {}
        self._pulses: dict[str, Pulse] = {}
        self._ray: LocalRay | None = None
        self._starting = threading.Thread()
        self._ray_pause = 0.0
        self._trouble = ""
        self._lock: IO[str] | None = None
        self._is_recorded = False
        self.url = ""

    def __enter__(self) -> Self:
        settings = self.settings
        allow_many_files()
        check_account(settings)
        expect_shared_database(settings.url)
        settings.expect_autoscaler()
        expect_rehearsal(settings.rehearsal_gpus)
        settings.expect_receivers(settings.notify)
        expect_storage(settings)
        self._lock = lock_data_dir(settings.data_dir)
        keep_private(settings)
        remove_forgotten()
        try:
            self._spawn_api(take_port(settings, next_port=self._next_port))
            if not settings.ray_address:
                self._ray = LocalRay(settings, settings.data_dir)
                self._start_ray()
            self._wait_for_api(settings)  # first, because only one process can migrate the database
            self._spawn("controller")
            write_server_file(settings.data_dir, self.url)
            self._is_recorded = True
        except OSError as error:
            self.stop()
            raise unusable(settings.data_dir, error) from error
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def watch(self) -> None:
        """Restart the processes that have died or hang. Call it about twice a second."""
        self._watch_disk()
        if self._ray is not None and not self._starting.is_alive():
            with _or_later("the local Ray"):
                self._watch_ray(self._ray)
        for name in self._children:
            with _or_later(f"the {name} process"):
                self._watch_child(name)

    def _watch_disk(self) -> None:
        """Say so when the data directory cannot hold anything more: the logs lie there, too."""
        trouble = trouble_with(self.settings.data_dir)
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("the data directory %s %s", self.settings.data_dir, trouble or "can be used again")

    def _watch_ray(self, ray: LocalRay) -> None:
        seconds = time.monotonic() - self._started["ray"]
        if ray.alive():
            if seconds > RAY_STAYS_SECONDS:
                self._ray_pause = 0.0
        elif seconds >= self._ray_pause:
            self._ray_pause = min(LONGEST_RAY_PAUSE_SECONDS, max(FIRST_RAY_PAUSE_SECONDS, 2 * self._ray_pause))
            was_up = bool(ray.address)
            log.warning("the local Ray %s; starting a new one", "has died" if was_up else "did not start")
            self._start_ray()
            if was_up:  # otherwise the controller still waits for the first address
                self._children["controller"].kill()  # its ranks are gone, and the next one sees at once that it is

    def _watch_child(self, name: str) -> None:
        child, pulse = self._children[name], self._pulses[name]
        if child.poll() is not None:
            if time.monotonic() - self._started[name] > RESTART_SECONDS:
                log.warning("the %s process %s", name, self._end_words(name, child.returncode))
                self._spawn(name)
            return
        silent = pulse.silent_seconds()
        if silent > (patience.LOOP_SECONDS[name] if pulse.has_beaten else patience.STARTING_LOOP_SECONDS):
            log.warning("the %s process has not turned its loop for %.0f s; ending it", name, silent)
            child.kill()  # SIGTERM would not reach a frozen process

    def stop(self) -> None:
        """End every process that this service has started, and no other."""
        if self._is_recorded:
            with suppress(OSError):
                write_server_file(self.settings.data_dir, self.url, runs=False)
        for name in self._children:
            self._end(name)
        if self._ray is not None:
            end_ray(self._ray, self._starting)
            ray_address_file(self.settings.data_dir).unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()

    def _start_ray(self) -> None:
        """Start Ray in the background, so that the API answers at once and the controller warms up meanwhile."""
        assert self._ray is not None
        ray_address_file(self.settings.data_dir).unlink(missing_ok=True)
        self._started["ray"] = time.monotonic()
        self._starting = threading.Thread(target=try_to_start, args=(self._ray,), daemon=True)
        self._starting.start()

    def _spawn(self, name: str) -> None:
        pulse = Pulse()
        try:
            self._children[name] = self._popen(name, pulse.child_end)
        except BaseException:
            pulse.close()
            raise
        finally:
            pulse.started()
        if name in self._pulses:
            self._pulses[name].close()
        self._pulses[name] = pulse
        self._started[name] = time.monotonic()

    def _popen(self, name: str, heartbeat: int) -> subprocess.Popen[bytes]:
        logs = self.settings.data_dir / "logs"
        logs.mkdir(exist_ok=True)
        with (logs / f"{name}.log").open("ab") as output:
            return spawn(MODULES[name], self.settings, heartbeat, output)

    def _end(self, name: str) -> None:
        child = self._children[name]
        if child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(STOP_SECONDS + self.settings.stop_seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _spawn_api(self, port: int) -> None:
        self.settings = self.settings.model_copy(update={"port": port})
        self.url = url_of(self.settings.host, port)
        self._spawn("api")

    def _wait_for_api(self, settings: Settings) -> None:
        """Wait until the API answers; on another port if some process has taken the first one meanwhile.

        That process may have ended by now, and the same port be free again.
        """
        tries_left = MOST_LOST_PORTS
        while not answers(self.url, self._children["api"], self._pulses["api"]):
            has_ended = self._children["api"].poll() is not None
            port = take_port(settings, next_port=self._next_port) if has_ended else self.settings.port
            has_lost_port = has_ended and tries_left > 0 and CANNOT_LISTEN in self._last_words("api")
            if port == self.settings.port and not has_lost_port:
                raise Unavailable(f"the API did not start; {self._last_words('api')}")
            tries_left -= 1
            self._spawn_api(port)

    def _end_words(self, name: str, code: int) -> str:
        """How a child ended. A kill comes too suddenly for a last line, so that of its log is from before it."""
        if code == -signal.SIGKILL:
            return f"was killed (SIGKILL) and is started again; see its log {self._log(name)}"
        return f"ended with code {code} and is started again; {self._last_words(name)}"

    def _log(self, name: str) -> Path:
        return self.settings.data_dir / "logs" / f"{name}.log"

    def _last_words(self, name: str) -> str:
        """The last line of a child's log, and where that is."""
        log_file = self._log(name)
        with suppress(OSError), log_file.open("rb") as log_stream:
            log_stream.seek(max(0, log_file.stat().st_size - LAST_BYTES))
            lines = log_stream.read().decode(errors="replace").split("\n")
            if last := [line.strip() for line in lines if line.strip()][-1:]:
                words = "".join(
                    character if character.isprintable() else " " for character in last[0].removeprefix("scamp: ")
                )
                return f"the last line of {log_file} is: {words}"
        return f"see its log {log_file}"


def spawn(module: Sequence[str], settings: Settings, heartbeat: int, output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start ``python -m`` with these words, as a process with these settings that ends with this one.

    ``heartbeat`` is the child's end of a ``Pulse``; ``output`` gets what it writes.
    """
    with secrets_pipe(settings) as pipe:
        pipes = {SECRETS_PIPE: str(pipe), VARIABLE: str(heartbeat)}
        return subprocess.Popen(
            [sys.executable, "-m", *module],
            cwd=ROOT,
            env={**os.environ, **as_environment(settings), **pipes},
            pass_fds=[pipe, heartbeat],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )


def answers(
    url: str, api: subprocess.Popen[bytes], pulse: Pulse, seconds: float = patience.STARTING_LOOP_SECONDS
) -> bool:
    """Wait until the process ``api`` answers at ``url``; False if it ends, or does not answer in time.

    Another service may answer at the same address. It cannot once the loop of ``api`` turns, which then has the port.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and api.poll() is None:
        with suppress(httpx.TransportError):
            # A proxy from the environment cannot reach this machine.
            if pulse.has_beaten and httpx.get(f"{url}/healthz", timeout=1.0, trust_env=False).is_success:
                return True
        time.sleep(0.05)
    return False


def try_to_start(ray: LocalRay, times: int = 1) -> None:
    """Start Ray; tries at most this many times. Failures are logged, and ``ray`` is not alive after the last one."""
    for _ in range(times):
        try:
            ray.start()
            break
        except Unavailable as error:
            log.warning("%s", error)
        except Exception:  # our own bug; the service lives on, and tries again
            log.exception("the local Ray did not start")


def end_ray(ray: LocalRay, starting: threading.Thread) -> None:
    """Stop Ray, also while the thread ``starting`` starts it."""
    while starting.is_alive():
        ray.give_up()
        starting.join(0.1)
    ray.stop()


@contextmanager
def _or_later(task: str) -> Iterator[None]:
    """Log that ``task`` cannot be started for want of processes, memory, files or disk; the next ``watch`` tries again.

    A thread that cannot be started raises RuntimeError, and a child that fails before its exec SubprocessError.
    """
    try:
        yield
    except (OSError, MemoryError, RuntimeError, subprocess.SubprocessError) as error:
        words = with_remedy(error) if isinstance(error, OSError) else error
        log.warning("%s cannot be started now (%s: %s); will try again", task, type(error).__name__, words)


def as_environment(settings: Settings) -> dict[str, str]:
    """The settings as environment variables for a child process, but for those that are None.

    Secrets are empty: they go through a pipe.
    """
    values = {**settings.model_dump(mode="json", exclude_none=True), **dict.fromkeys(SECRETS, "")}
    return {
        f"SCAMP_{name.upper()}": json.dumps(value) if isinstance(value, dict | list) else str(value)
        for name, value in values.items()
    }


@contextmanager
def secrets_pipe(settings: Settings) -> Iterator[int]:
    """Yield a file descriptor from which one child reads the secrets (``settings_of_process``), as JSON."""
    reader, writer = os.pipe()
    try:
        with open(writer, "w") as stream:  # less than 64 KiB, so it never waits for the reader
            json.dump(settings.model_dump(mode="json", include=set(SECRETS)), stream)
        yield reader
    finally:
        os.close(reader)


def lock_data_dir(data_dir: Path, *, may_be_unfinished: bool = False) -> IO[str]:
    """Lock the data directory until this process ends.

    Raises ``Conflict`` when another process has the lock or, unless it ``may_be_unfinished``, a restore was killed, and
    ``Unavailable`` when the directory cannot be used.
    """
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = (data_dir / SERVICE_LOCK).open("w")
    except OSError as error:
        raise unusable(data_dir, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        url = running_server(data_dir)
        use = f"use it at {url} with scamp submit" if url else "stop it"
        raise Conflict(f"another ScaMP process is using {data_dir}; {use}, or choose another --data-dir") from None
    if (data_dir / UNFINISHED).exists() and not may_be_unfinished:
        handle.close()
        raise Conflict(f"the restore of {data_dir} was not finished: run `scamp restore` again, or remove {data_dir}")
    return handle


def unusable(data_dir: Path, error: OSError) -> Unavailable:
    """The error that says why a data directory cannot be used, and what to do."""
    where = f": {error.filename}" if error.filename else ""
    if remedy := TOO_MANY_FILES.get(error.errno or 0):
        return Unavailable(f"ScaMP cannot start ({error.strerror}{where}); {remedy}")
    remedy = FULL.get(error.errno or 0, "make it writable for this user")
    return Unavailable(
        f"the data directory {data_dir} cannot be used ({error.strerror}{where}); {remedy}, or choose another one with "
        "--data-dir"
    )


def ray_address_file(data_dir: Path) -> Path:
    """Path of the file that ``LocalRay`` writes once its cluster accepts connections. It holds the address."""
    return data_dir / "ray-address"


def end_with_parent() -> None:
    """Ask Linux to end this child when its parent dies, for any reason.

    Linux looks at the thread that started the child, not at the process: see ``PR_SET_PDEATHSIG`` in prctl(2).
    """
    pr_set_pdeathsig = 1
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
