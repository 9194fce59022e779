"""Identifies this host, its processes and the version of our sources, so that others can tell them apart.

A process id alone is not enough: another host has the same ones, and this one gives them out again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import resource
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

from scamp_service.errors import Unavailable
from scamp_service.settings import ROOT

LEAST_FILES = 256
MANY_FILES = 65_536
"""Open files of a process, which an API with many clients needs; some programs are slow where more are allowed."""
PACKAGES = ("scamp", "scamp_service", "workloads", "estimators", "placement")


@dataclass(frozen=True, slots=True)
class Process:
    """A process on some host. ``kernel`` names the running kernel and its namespace of process ids, and ``started`` is
    the time of the process's start in the ticks of that kernel."""

    kernel: str
    pid: int
    started: str

    @classmethod
    def current(cls) -> Process:
        """This process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this id here now."""
        return cls(kernel(), pid, _start_time(pid))

    @property
    def is_here(self) -> bool:
        """Whether it belongs to this kernel, so that we can see and signal it."""
        return self.kernel == kernel()

    @property
    def is_gone(self) -> bool:
        """Whether it is known to have ended. A zombie has: it holds no memory, and its parent may collect it late."""
        return self.is_here and _start_time(self.pid) != self.started

    def kill(self) -> None:
        """Send SIGKILL if it runs on this kernel; no effect on a process that has since been given its id."""
        if self.is_here and not self.is_gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


@cache
def kernel() -> str:
    """Name of the running kernel and process namespace; that of the host where the system does not say."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def allow_many_files() -> None:
    """Let this process, and those that it starts, open as many files as they may.

    Raises ``Unavailable`` where that is too few: one of them would end again and again, without a file for its log.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < MANY_FILES and soft < hard:
        soft = min(hard, MANY_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < LEAST_FILES:
        raise Unavailable(
            f"each process of ScaMP needs up to {LEAST_FILES} open files, and only {soft} are allowed here: raise the "
            "limit (`ulimit -Hn 4096`, or LimitNOFILE= of a systemd unit)"
        )


@cache
def source_hash() -> str:
    """Hash of all sources of these packages, so that processes of another version can be told apart."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@cache
def package_versions() -> Mapping[str, str]:
    """Name → version of Python and of every installed package."""
    versions = {each.metadata["Name"]: each.version for each in distributions() if each.metadata["Name"]}
    return {"python": platform.python_version(), **dict(sorted(versions.items(), key=lambda item: item[0].lower()))}


def _start_time(pid: int) -> str:
    """When the process started; empty if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]
