"""Hosts for tests: each is a set of Linux namespaces with its own address, disk, process ids, host name and boot clock.

A bridge joins them. All run on one kernel, so a host's processes can be killed, frozen and counted from here, and its
network cable pulled. The wall clock is common to all; it cannot be virtualised.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from tests.waiting import PATIENCE_SECONDS, until

TOOLS = ("ip", "unshare", "nsenter", "mount")
INIT = """
import os, time
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.1)
"""
"""Process 1 of a host: collects the processes that others leave behind."""

SET_UP = """
set -e
hostname "$1"
mount --bind "$2" "$3"
exec "$4" -S -c "$5"
"""


@cache
def why_not() -> str:
    """Why hosts cannot be made here; empty if they can."""
    if sys.platform != "linux":
        return "network namespaces are a feature of Linux"
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        return f"hosts are network namespaces, for which {', '.join(missing)} is missing (iproute2, util-linux)"
    name = f"scamp-{secrets.token_hex(3)}"
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if probe.returncode == 0:
        unshared = ["ip", "netns", "exec", name, "unshare", *_NEW, "true"]
        probe = subprocess.run(unshared, capture_output=True, text=True)
        _run("ip", "netns", "del", name)
    return f"network namespaces are not allowed here: {probe.stderr.strip()}" if probe.returncode else ""


class Host:
    """One host. ``disk`` is its own folder: the same path on every host, with other files; ``outside`` is where it is.

    ``shared`` is a folder that every host sees, as a network file system is.
    """

    def __init__(self, name: str, namespace: str, address: str, cable: str, folder: Path) -> None:
        self.name, self.address, self.disk, self.shared = name, address, folder / "disk", folder / "shared"
        self.outside = folder / name
        self._namespace, self._cable = namespace, cable
        self._started: list[subprocess.Popen[bytes]] = []
        self.outside.mkdir()
        self._boot()

    def _boot(self) -> None:
        uptime, folders = str(random.randint(10**4, 10**6)), (str(self.outside), str(self.disk))
        new = ["ip", "netns", "exec", self._namespace, "unshare", *_NEW, "--monotonic", uptime, "--boottime", uptime]
        self._unshare = subprocess.Popen(
            [*new, "--", "sh", "-c", SET_UP, "sh", self.name, *folders, sys.executable, INIT],
            stdin=subprocess.DEVNULL,
        )
        self._init = until(self._find_init, f"the first process of host {self.name}")

    def _find_init(self) -> int:
        assert self._unshare.poll() is None, f"host {self.name} did not start"
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text().split()
        for pid in map(int, children):
            with contextlib.suppress(OSError):
                if INIT.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return 0

    def start(
        self, command: Sequence[str | Path], output: Path, cwd: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a process on the host; its output goes to a file that we see. Its home is the host's disk."""
        with output.open("ab") as file:
            process = subprocess.Popen(
                [*self.entered(cwd), *map(str, command)],
                env={**environment, "HOME": str(self.disk), "RAY_TMPDIR": str(self.disk)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._started.append(process)
        return process

    def entered(self, cwd: Path) -> list[str]:
        """Words before a command that make it run on the host, in this folder."""
        namespaces = ("--net", "--pid", "--mount", "--uts", "--time")
        return ["nsenter", "--target", str(self._init), *namespaces, f"--wdns={cwd}", "--"]

    def pids(self, words: str = "") -> list[int]:
        """Our ids of the host's processes, but for its first one, whose command lines have ``words``."""
        return [pid for pid in self._all() if pid != self._init and words in command_of(pid)]

    def kill(self) -> None:
        """Pull the plug: every process of the host ends at once."""
        os.kill(self._init, signal.SIGKILL)
        self._unshare.wait(PATIENCE_SECONDS)

    def freeze(self) -> None:
        """Stop every process of the host."""
        for pid in self._all():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let every process of the host continue."""
        entered = [process.pid for process in self._started if process.poll() is None]  # stopped like their children
        for pid in [*self._all(), *entered]:
            os.kill(pid, signal.SIGCONT)

    def disconnect(self) -> None:
        """Pull the network cable."""
        _run("ip", "link", "set", self._cable, "down")

    def reconnect(self) -> None:
        """Put the network cable back."""
        _run("ip", "link", "set", self._cable, "up")

    def _all(self) -> list[int]:
        ours = _namespace_of(self._init)
        pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
        return sorted(pid for pid in pids if ours and _namespace_of(pid) == ours)

    def end(self) -> None:
        """Kill what is left."""
        if self._unshare.poll() is None:
            self.kill()
        for process in self._started:
            process.wait(PATIENCE_SECONDS)


@contextmanager
def network(*names: str) -> Iterator[list[Host]]:
    """Hosts with these names on one bridge. Everything is removed at the end, with their disks."""
    tag = secrets.token_hex(3)
    subnet = f"10.{random.randint(64, 250)}.{random.randint(0, 255)}"
    folder = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))  # short: a socket's path has at most 107 characters
    for common in ("disk", "shared"):
        (folder / common).mkdir()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        bridge = f"scb{tag}"
        _run("ip", "link", "add", bridge, "type", "bridge")
        stack.callback(_run, "ip", "link", "del", bridge)
        _run("ip", "link", "set", bridge, "up")
        hosts = []
        for number, name in enumerate(names, 1):
            namespace, cable = f"scamp-{tag}-{name}", f"sc{tag}{number}"
            address = f"{subnet}.{number}"
            stack.enter_context(_namespace(namespace, name))
            _connect(namespace, cable, bridge, address)
            hosts.append(Host(name, namespace, address, cable, folder))
            stack.callback(hosts[-1].end)
        yield hosts


_NEW = ("--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--uts", "--time")


@contextmanager
def _namespace(namespace: str, name: str) -> Iterator[None]:
    """A network namespace. As on Debian, the host's own name stands for an address that other hosts cannot reach."""
    etc = Path("/etc/netns") / namespace  # ``ip netns exec`` mounts its files over those in /etc
    etc.mkdir(parents=True)
    try:
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
        _run("ip", "netns", "add", namespace)
        try:
            yield
        finally:
            _run("ip", "netns", "del", namespace)
    finally:
        shutil.rmtree(etc)


def _connect(namespace: str, cable: str, bridge: str, address: str) -> None:
    _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
    _run("ip", "link", "set", cable, "master", bridge, "up")
    inside = ("ip", "-n", namespace)
    _run(*inside, "address", "add", f"{address}/24", "dev", "eth0")
    _run(*inside, "link", "set", "eth0", "up")
    _run(*inside, "link", "set", "lo", "up")


def _namespace_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def command_of(pid: int) -> str:
    """Command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
