"""The guardian of a private Ray cluster, ``python -m scamp_service.cluster.guardian``: the process that starts it.

It adopts every process of its cluster. It ends them all on SIGTERM, or when its standard input closes, which also
happens when its parent is killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

TERM_SECONDS = 1.0


def guard(nodes: list[dict[str, Any]]) -> None:
    """Start the cluster and print its address. End all descendants on SIGTERM or when standard input closes."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops the guardian later
    if sys.platform == "linux":
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)
    folder = tempfile.mkdtemp(prefix="scamp-", dir="/tmp")  # short: the path of a Unix socket has at most 107 bytes
    os.environ["RAY_TMPDIR"] = folder
    try:
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args=nodes[0])
        for node in nodes[1:]:
            cluster.add_node(**node)
        sys.stdout.write(f"{cluster.address}\n")
        sys.stdout.flush()
        while os.read(sys.stdin.fileno(), 4096):
            pass
    except Exception:
        traceback.print_exc()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_descendants()
        shutil.rmtree(folder, ignore_errors=True)
        sys.stderr.flush()
        os._exit(0)  # Ray's exit hooks would wait for processes that are gone


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(0)


def _end_descendants() -> None:
    """Send TERM, then KILL, until this process has no child. As the subreaper it inherits every orphan."""
    started = time.monotonic()
    while children := _descendants(os.getpid()):
        overdue = time.monotonic() - started > TERM_SECONDS
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL if overdue else signal.SIGTERM)
            except ProcessLookupError:
                continue
        while _reap():
            pass
        time.sleep(0.05)


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _descendants(root: int) -> list[int]:
    """Process ids of all descendants of ``root``, from one pass over /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue  # it has just ended
    found: list[int] = []
    level = {root}
    while level := {pid for pid, parent in parents.items() if parent in level}:
        found += level
    return found


if __name__ == "__main__":
    guard(json.loads(sys.argv[1]))
