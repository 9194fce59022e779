"""Real processes for tests: ``scamp`` commands, a service with a data directory of its own, and what is left of them.

A data directory marks every process that was started for it, through the environment that each inherits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from scamp.client import Client
from scamp_service.store.store import Store
from tests.services.serving import free_port
from tests.waiting import PATIENCE_SECONDS, until

ROOT = Path(__file__).resolve().parent.parent.parent


def environment(data_dir: Path, **variables: str) -> dict[str, str]:
    """Variables of a process that belongs to ``data_dir``, whatever is set outside of the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SCAMP_", "PYTHON"))}
    ours = {"SCAMP_DATA_DIR": str(data_dir), "SCAMP_PORT": str(free_port()), "PYTHONUNBUFFERED": "1"}
    ours["SCAMP_SELF_CALIBRATION"] = "false"  # it would take processor time from every test that waits
    return kept | ours | {"COLUMNS": "200", "PYTHONWARNINGS": "default"} | variables


def run_scamp(data_dir: Path, *arguments: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """``scamp ARGUMENTS``, to its end, in a new Python; the fixture ``scamp`` takes a warm one."""
    command = [sys.executable, "-m", "scamp_service", *map(str, arguments)]
    variables = environment(data_dir, **extra)
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def pids_of(data_dir: Path, words: str = "") -> list[int]:
    """The living processes of a data directory whose command line has ``words``."""
    mark = f"SCAMP_DATA_DIR={data_dir}\0".encode()
    return [pid for pid, command in _commands() if words in command and mark in _read(pid, "environ") + b"\0"]


def trains(pid: int) -> bool:
    """Whether a rank is under the memory budget of a trial: an idle one has no limit."""
    line = next((line for line in _read(pid, "limits").decode().splitlines() if line.startswith("Max data size")), "")
    return bool(line) and line.split()[3] != "unlimited"


def _commands() -> list[tuple[int, str]]:
    commands = [(int(entry.name), _read(int(entry.name), "cmdline")) for entry in Path("/proc").glob("[0-9]*")]
    return [(pid, line.replace(b"\0", b" ").decode()) for pid, line in sorted(commands) if line and pid != os.getpid()]


def _read(pid: int, name: str) -> bytes:
    """Empty for a process that has ended; a zombie has neither command line nor environment."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


class Served:
    """A running ``scamp serve``."""

    def __init__(self, data_dir: Path, **variables: str) -> None:
        self.data_dir = data_dir
        self.output = data_dir.parent / f"serve-{time.monotonic_ns()}.out"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "scamp_service", "serve"],
                cwd=ROOT,
                env=environment(data_dir, **variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.url = until(self._url, "the service's address")
        self.client = Client(self.url)

    def _url(self) -> str | None:
        text = self.output.read_text()
        assert self.process.poll() is None, f"the service ended: {text}"
        return text.split("ScaMP is at ")[1].split()[0] if "ScaMP is at " in text else None

    def pids(self, words: str = "") -> list[int]:
        return pids_of(self.data_dir, words)

    def store(self) -> Store:
        return Store(f"sqlite:///{self.data_dir}/scamp.db")

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """SIGKILL of the supervisor alone."""
        self.process.kill()
        self.process.wait()

    def abandon(self) -> None:
        """Whatever a test has left running."""
        self.client.close()
        if self.process.poll() is None:
            self.stop()
