"""Processor seconds and memory of a process and of all below it, by what they do."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

KINDS = {
    "ray::Rank": "ranks",
    "ray::SinkActor": "sink",
    "scamp_service controller": "controller",
    "-m api": "API",
    "raylet": "Ray",
    "gcs_server": "Ray",
    "ray": "Ray",
}
"""Words in a command line, and what the process is; the first that is found counts."""
KEPT = ("ranks", "controller")
"""Processes that run many trials, and must not grow."""
TICKS = os.sysconf("SC_CLK_TCK")
LOOK_SECONDS = 0.5


class Processor:
    """Looks at the processes below ``root`` twice a second, as a context manager: one that ends is still counted.

    The last half second of a process may be missing.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root = os.getpid() if root is None else root
        self._seconds: dict[tuple[int, str], tuple[str, float]] = {}  # (process id, its start) → what it is, seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def seconds(self) -> Mapping[str, float]:
        """Processor seconds so far, by what the processes are; tracing and sampling count as ``others``."""
        self._look()
        seconds_by_kind: dict[str, float] = {}
        for kind, seconds in list(self._seconds.values()):
            seconds_by_kind[kind] = seconds_by_kind.get(kind, 0.0) + seconds
        return seconds_by_kind

    def resident(self) -> Mapping[int, int]:
        """Resident bytes of the controller and of each rank by process id."""
        fields_by_pid = {
            pid: _read(pid, "statm").split() for (pid, _), (kind, _) in list(self._seconds.items()) if kind in KEPT
        }
        return {pid: int(fields[1]) * resource.getpagesize() for pid, fields in fields_by_pid.items() if fields}

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        fields = {pid: stat for pid in _pids() if len(stat := _stat(pid)) > 19}
        below = new = {self._root}
        while new:
            new = {pid for pid, field in fields.items() if int(field[1]) in below} - below
            below |= new
        for pid in below - {os.getpid()}:
            if pid in fields:
                stat = fields[pid]
                was, _ = self._seconds.get((pid, stat[19]), ("others", 0.0))
                kind = _kind(pid)  # one that has ended has no command line any more
                self._seconds[pid, stat[19]] = (
                    was if kind == "others" else kind,
                    (int(stat[11]) + int(stat[12])) / TICKS,
                )


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _stat(pid: int) -> list[str]:
    """The fields after the name, the state first."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _kind(pid: int) -> str:
    command = _read(pid, "cmdline").replace("\0", " ")
    return next((kind for words, kind in KINDS.items() if words in command), "others")


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:  # it has ended
        return ""
