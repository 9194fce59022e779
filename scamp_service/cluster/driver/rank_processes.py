"""Looks up and ends the processes behind Ray's actors. The functions that end one also run as tasks on its host."""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from scamp_service.cluster.local.connection import namespace_of
from scamp_service.cluster.sink import NAME as SINK
from scamp_service.cluster.sink import SinkStatus
from scamp_service.host import Process
from workloads.files.untrusted import names_in, open_folder, open_in

STDERR_BYTES = 20_000
KILL_SECONDS = 2.0  # that a task on another host waits for a process to end


def owner_of(identity: str) -> str:
    """Whose the database with this name is, as its own sink says; empty if none answers in time."""
    try:
        sink: Any = ray.get_actor(SINK, namespace_of(identity))
        status: SinkStatus = ray.get(sink.ping.remote(), timeout=2.0)
    except (ValueError, ray.exceptions.RayError):
        return ""
    return status.owner


def nodes() -> list[dict[str, Any]]:
    """All nodes that Ray knows of, also dead ones."""
    node_rows: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return node_rows


def leaving_nodes() -> Mapping[str, str]:
    """Node id → why the node leaves, of each that Ray drains."""
    from ray._private.state import state

    deadlines: dict[str, int] = state.get_draining_nodes()  # in milliseconds since the epoch; 0: none
    until = {
        node_id: f" until {datetime.fromtimestamp(deadline / 1000, UTC):%H:%M:%S} UTC" if deadline else ""
        for node_id, deadline in deadlines.items()
    }
    return {node_id: f"Ray drains node {node_id[:8]}{when}" for node_id, when in until.items()}


def nodes_of_host(node_id: str) -> set[str]:
    """Ids of all nodes on the host of this node."""
    listed = nodes()
    here = next(node["NodeManagerAddress"] for node in listed if node["NodeID"] == node_id)
    return {node["NodeID"] for node in listed if node["NodeManagerAddress"] == here}


def process_of(actor: Any) -> tuple[str, int]:
    """(node id, process id) of an actor, from Ray's table; 0 if it has no process."""
    import ray._private.state as state

    actor_state = state.actors(actor._actor_id.hex())
    return actor_state.get("Address", {}).get("NodeID", ""), int(actor_state.get("Pid") or 0)


def kill_rank(pid: int) -> None:
    """Kill a process on this node if it is one of Ray's: its id may have been given to another."""
    if is_of_ray(pid):
        Process.of(pid).kill()


def is_of_ray(pid: int) -> bool:
    """Whether the process is a worker of Ray."""
    try:
        return b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def stderr_end(pid: int) -> str:
    """The end of what a worker of Ray on this host has written to stderr; empty if that is not known."""
    node: Any = ray._private.worker._global_node
    return _end_of_logs(Path(node.get_logs_dir_path()), f"worker-*-{pid}.err") if node is not None else ""


def _end_of_logs(logs: Path, pattern: str) -> str:
    """The end of each file in the logs of a session, in which users' code may write as another user than we."""
    root, ends = logs.parents[2], []
    below = PurePosixPath(logs.relative_to(root))  # Ray's folder, that of the session, and the logs in it
    try:
        with open_folder(root, below) as folder:
            for name in sorted(fnmatch.filter(names_in(folder), pattern)):  # the stack of a crash is the last
                with open_in(folder, name, logs / name) as file:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - STDERR_BYTES))
                    ends.append(file.read(STDERR_BYTES).decode(errors="replace"))
    except OSError:
        return ""
    return "".join(ends)


def kill_process(process: Process, node_id: str) -> None:
    """Send SIGKILL to a process, by a task on ``node_id`` if it is on another host; no wait for its end."""
    if process.is_here:
        process.kill()
    elif node_id:
        ray.remote(Process.kill).options(**on_node(node_id)).remote(process)


def on_node(node_id: str) -> dict[str, Any]:
    """Ray options of a task that runs on this node and takes nothing of it."""
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False)}


def end_process(process: Process) -> bool:
    """Kill a process of this host, and return whether it is gone."""
    process.kill()
    deadline = time.monotonic() + KILL_SECONDS
    while not process.is_gone and time.monotonic() < deadline:
        time.sleep(0.05)
    return process.is_gone
