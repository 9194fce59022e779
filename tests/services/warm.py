"""Warm processes for tests: what they fork begins in milliseconds, where a Python that imports torch takes seconds.

``python tests/services/warm.py FOLDER`` imports torch, the workloads and the command line once, then listens on two
sockets in ``FOLDER``: ``plain``, and ``traced``, whose process has also traced a model, as the trace process does
first. Each request names a module; a fork runs it as ``__main__`` with the arguments, environment and file descriptors
of the request. The fork ends with its connection. Neither process has a thread when it forks, so a fork begins with a
sound torch.

A third socket is that of a fork that has collected the tests of a run with ``-n``: its forks are the test processes
(``tests/services/collected.py``).

``python tests/services/warm.py FOLDER/SOCKET MODULE`` stands in for ``python -m MODULE``: it passes on its own file
descriptors, and ends as the fork ends. It imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
SOCKETS = ("plain", "traced")
MODULES = (
    "workloads.sandbox.server",
    "workloads.training.runtime",
    "workloads.models.vit_digits",
    "workloads.models.stdlib_gpt",
    "scamp_service.cli.main",
    "scamp_service.cli.first_answer",
    "scamp_service.processes.supervise",
    "scamp_service.cli.tables.estimate",
    "scamp_service.cli.named_plan",
    "scamp_service.cli.tables.screen",
    "scamp_service.sizing.estimate",
    "scamp_service.sizing.screen.screening",
)
_LENGTH = struct.Struct("I")


SHARED = "SCAMP_TESTS_WARM"
"""Environment variable: the folder of the pair that all test processes of a run use."""


class Warm:
    """Both processes, or those of ``SHARED``; the forks end with them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._collected: Fork | None = None
        if SHARED in os.environ:
            self.folder = Path(os.environ[SHARED])
            return
        self.folder = Path(tempfile.mkdtemp(prefix="scamp-warm-", dir="/tmp"))  # a socket's path is at most 107 long
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SCAMP_"))}
        ours = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self.folder)],
            cwd=ROOT,
            env=kept | ours,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        ready = self._process.stdout.read(len(SOCKETS))
        assert len(ready) == len(SOCKETS), "the warm process did not start"

    def command(self, module: str) -> list[str]:
        """In place of ``python -m MODULE``, from the process that has traced."""
        return stand_in(self.folder / "traced", module)

    def test_process(self, arguments: Sequence[str]) -> list[str]:
        """In place of ``python`` for a process that runs tests, from one that has collected them with ``arguments``.

        Tests in these processes use this pair.
        """
        os.environ[SHARED] = str(self.folder)
        (theirs_in, self._ends), (ours_out, theirs_out) = os.pipe(), os.pipe()
        path = self.folder / f"tests-{os.getpid()}"
        environment = os.environ | {"JE_ARROW_MALLOC_CONF": "background_thread:false"}  # a thread of pyarrow's
        self._collected = self.start(
            "tests.services.collected", [str(path), *arguments], environment, [theirs_in, theirs_out, 2]
        )
        os.close(theirs_in)
        os.close(theirs_out)
        with open(ours_out, "rb") as said:
            assert said.read(1), "the tests were not collected"
        return stand_in(path, "tests.services.one_process")

    def start(
        self,
        module: str,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        files: Sequence[int] = (0, 1, 2),
    ) -> Fork:
        return Fork(self.folder / "plain", module, arguments, environment or os.environ, files)

    def run(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run`` of ``python -m MODULE ARGUMENTS`` without standard input, its output captured."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull, "rb") as none:
            fork = self.start(module, arguments, environment, [none.fileno(), out.fileno(), err.fileno()])
            try:
                code = fork.wait(seconds)
            finally:
                fork.close()
            texts = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (out, err)]
        return subprocess.CompletedProcess([module, *arguments], code, *texts)

    def close(self) -> None:
        if self._collected is not None:
            self._collected.close()
            os.close(self._ends)
        if self._process is not None:
            self._process.communicate()  # its standard input closes
            shutil.rmtree(self.folder)


class Fork:
    """A running fork; closing it kills the process."""

    def __init__(
        self, path: Path, module: str, arguments: Sequence[str], environment: Mapping[str, str], files: Sequence[int]
    ) -> None:
        request = {"module": module, "arguments": arguments, "environment": dict(environment), "folder": os.getcwd()}
        data = json.dumps(request).encode()
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(path))
        socket.send_fds(self._connection, [_LENGTH.pack(len(data))], list(files))
        self._connection.sendall(data)

    def wait(self, seconds: float | None = None) -> int:
        """The exit code, or the number of the signal that ended it, negative."""
        self._connection.settimeout(seconds)
        answer = self._connection.recv(64)
        assert answer, "the warm process has ended"
        return int(answer)

    def close(self) -> None:
        self._connection.close()


def stand_in(path: Path, module: str) -> list[str]:
    return [sys.executable, "-S", "-E", __file__, str(path), module]


def listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    return listener


def serve(listener: socket.socket) -> None:
    """Fork for each request until standard input closes. Returns in forks alone, once their module has run."""
    os.write(1, b".")
    wake, woken = os.pipe()[::-1]
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    forks: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        for file in (0, listener, woken):
            selector.register(file, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == 0:
                    _end(forks)
                elif key.fileobj == woken:
                    os.read(woken, 4096)
                    _reap(forks, selector)
                elif key.fileobj is listener:
                    connection, _ = listener.accept()
                    pid = _fork(connection, [listener, *forks.values()], (wake, woken), selector)
                    forks[pid] = connection
                    selector.register(connection, selectors.EVENT_READ, pid)
                else:  # whoever asked for this fork has gone
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(key.data, signal.SIGKILL)
                    selector.unregister(key.fileobj)


def _end(forks: Mapping[int, socket.socket]) -> None:
    for pid in forks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    os._exit(0)


def _reap(forks: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    while forks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        if connection := forks.pop(pid, None):
            with contextlib.suppress(KeyError):
                selector.unregister(connection)
            with contextlib.suppress(OSError):
                connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            connection.close()


def _fork(
    connection: socket.socket, sockets: Sequence[socket.socket], pipes: Sequence[int], selector: selectors.BaseSelector
) -> int:
    length, files, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
    data, size = b"", _LENGTH.unpack(length)[0]
    while len(data) < size:
        data += connection.recv(size - len(data))
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        selector.close()
        for opened in (connection, *sockets):
            opened.close()
        for pipe in pipes:
            os.close(pipe)
        for number, file in enumerate(files):
            os.dup2(file, number)
        _run(json.loads(data))
    for file in files:
        os.close(file)
    return pid


def _run(request: Mapping[str, Any]) -> None:
    """As ``python -m MODULE`` does; never returns."""
    import atexit
    import runpy
    import traceback
    import warnings

    from workloads.sandbox.fork import die_with_parent

    code: Any = 1
    try:
        die_with_parent()
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.argv[1:] = request["arguments"]
        if action := os.environ.get("PYTHONWARNINGS"):
            warnings.simplefilter(action)  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)  # as it must be, here
        try:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as left:
            code = left.code
            if code is not None and not isinstance(code, int):
                print(code, file=sys.stderr)
                code = 1
        except BaseException:
            traceback.print_exc()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code or 0)


def _warm_up(folder: Path) -> None:
    import gc
    import importlib

    from workloads.sandbox import fork, server

    listeners = {}
    for name in SOCKETS:
        listeners[name] = listen(folder / name)
    for module in MODULES:
        importlib.import_module(module)
    from scamp_service.sizing.tracing import trace_process

    trace_process.COMMAND = stand_in(folder / "traced", "workloads.sandbox.server")
    gc.collect()
    gc.freeze()
    if os.fork() == 0:
        fork.die_with_parent()
        listeners["plain"].close()
        server.warm_up_tracing()
        serve(listeners["traced"])
    listeners["traced"].close()
    serve(listeners["plain"])


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.path[0] = str(ROOT)
        _warm_up(Path(sys.argv[1]))
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the fork ends as it wants to
        # A process that is killed says nothing; its fork may see the end of its input first, and leave files open.
        quiet = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
        stood_in = Fork(Path(sys.argv[1]), sys.argv[2], sys.argv[3:], quiet, (0, 1, 2))
        ended = stood_in.wait()
        sys.exit(ended if ended >= 0 else 128 - ended)
