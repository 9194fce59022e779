"""The guardian of a private Ray cluster (``-m scamp_service.cluster.local.guardian``): the process that starts it.

It adopts every process of its cluster, and ends those that outlive a rank. It ends them all on SIGTERM, or when its
standard input closes, which also happens when its parent is killed. It also ends them when the cluster does not answer
any more: what is left of a Ray whose GCS or head raylet has died or hangs is of no use, and whoever started the
guardian starts a new one.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import re
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from scamp_service.temporary import make_folder, remove_folder, remove_forgotten

TERM_SECONDS = 1.0
CHECK_SECONDS = 1.0
ANSWER_SECONDS = 2.0
FAILURES = 4
"""Checks in a row without an answer after which the cluster is given up."""
START_CHECK_SECONDS = 0.2
STALLED_START_SECONDS = 60.0
"""A start in which nothing new appears for so long, neither a process nor a file, is given up. On a busy machine the
whole start may take longer."""
LAST_BYTES, LAST_LINES = 100_000, 5  # of a server's log
_COMPLAINT = re.compile(r"\[[^]]* [WECF] ")  # warnings, errors and fatal errors have their letter behind the time
ADOPTED_SECONDS = 20.0
"""How long a process may outlive the rank that has started it."""
AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port")
NOT_EPHEMERAL = range(10_000, 32_768)
"""Ports that the system gives to no connection by itself."""
SERVERS = ("gcs_server", "raylet")
SHORT = Path("/tmp")  # the path of a Unix socket has at most 107 bytes


def guard(nodes: list[dict[str, Any]]) -> None:
    """Start the cluster and print its address. End all descendants on SIGTERM or when standard input closes."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops the guardian later
    _adopt_orphans()
    remove_forgotten(SHORT)
    folder = make_folder(SHORT)
    os.environ["RAY_TMPDIR"] = str(folder)
    try:
        from ray.cluster_utils import Cluster

        _hasten_start()
        with _watched_start(folder):
            nodes = [node | ports for node, ports in zip(nodes, _ports_of_agents(len(nodes)), strict=True)]
            cluster = Cluster(initialize_head=True, head_node_args=nodes[0])
            for node in nodes[1:]:
                cluster.add_node(**node)
        sys.stdout.write(f"{cluster.address}\n")
        sys.stdout.flush()
        _watch(cluster, folder)
    except Exception:
        traceback.print_exc()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end(folder)


def _hasten_start() -> None:
    """Make Ray start in less than half of the time, and leave it to ``_watched_start`` when a start is given up.

    Its head starts a dashboard process even without a dashboard, and asks only once a second whether a node is there.
    Its raylet waits until its agents have told their ports, and dies after 15 s without: they import for seconds.
    """
    from ray._private import node as its_node
    from ray._private import services as its_services
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    node: Any = its_node
    services: Any = its_services
    get_node, start_process, port_now = services.get_node, services.start_ray_process, node.wait_for_persisted_port

    def get_node_soon(gcs_address: str, node_id: str) -> Any:
        with contextlib.suppress(Exception):  # whatever is wrong, Ray's own question shows it
            client = GcsClient(address=gcs_address)
            while not any(info.hex() == node_id for info in client.get_all_node_info(timeout=ANSWER_SECONDS)):
                time.sleep(0.05)
        return get_node(gcs_address, node_id)

    def wait_for_port(session: str, node_id: str, name: str, **_: Any) -> int:
        while True:  # Ray's own waiting lets no other thread run
            with contextlib.suppress(RuntimeError):
                port: int = port_now(session, node_id, name, timeout_ms=0)
                return port
            time.sleep(0.02)

    def start_without_waiting(command: list[str], process_type: str, *args: Any, **options: Any) -> Any:
        ports = ["--dashboard_agent_listen_port=1"] if process_type == "raylet" else []  # nobody asks that agent
        return start_process([*command, *ports], process_type, *args, **options)

    node.wait_for_persisted_port = wait_for_port
    services.get_node = get_node_soon
    services.start_ray_process = start_without_waiting
    node.Node.start_api_server = lambda self, **_: None


def _ports_of_agents(num_nodes: int) -> list[dict[str, int]]:
    """Free ports for the agents of each node."""
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for port in random.sample(NOT_EPHEMERAL, len(NOT_EPHEMERAL)):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
            if len(ports) == num_nodes * len(AGENT_PORTS):
                break
        return [dict(zip(AGENT_PORTS, ports[number::num_nodes], strict=True)) for number in range(num_nodes)]


def _end(folder: Path) -> NoReturn:
    _end_descendants()
    remove_folder(folder)
    sys.stderr.flush()
    os._exit(0)  # Ray's exit hooks would wait for processes that are gone


@contextmanager
def _watched_start(folder: Path) -> Iterator[None]:
    """End at once if the GCS or a raylet dies, standard input closes, or nothing new appears, while Ray starts.

    Ray would wait for half a minute, in native code, where no signal reaches this process.
    """
    started = threading.Event()

    def watch() -> None:
        seen, since = 0, time.monotonic()
        while not started.wait(START_CHECK_SECONDS):
            descendants = _descendants(os.getpid())
            dead = [name for pid in descendants if (name := _name_of_dead(pid)) in SERVERS]
            now, there = time.monotonic(), len(descendants) + sum(1 for _ in folder.rglob("*"))
            if there > seen:
                seen, since = there, now
            if select.select([sys.stdin], [], [], 0.0)[0]:  # nothing is ever written there
                why = "its parent has ended"
            elif dead:
                why = f"{_names(dead)} died"
            elif now - since > STALLED_START_SECONDS:
                why = f"it has started and written nothing for {STALLED_START_SECONDS:.0f} s"
            else:
                continue
            _say_end(f"ending this Ray while it starts, because {why}", folder)
            _end(folder)

    thread = threading.Thread(target=watch, name="watch-start", daemon=True)
    thread.start()
    try:
        yield
    finally:
        started.set()
        thread.join()


def _say_end(words: str, folder: Path) -> None:
    """Write ``words`` into the log, and the last complaints of the servers: their own logs go with the cluster."""
    complaints: list[str] = []
    for file in sorted(file for name in SERVERS for file in folder.glob(f"ray/session_2*/logs/{name}*")):
        with contextlib.suppress(OSError):
            messages = file.read_bytes()[-LAST_BYTES:].decode(errors="replace").splitlines()
            complaints += list(filter(_COMPLAINT.match, messages))[-LAST_LINES:]
    print("\n".join([words, *dict.fromkeys(complaints)]), file=sys.stderr, flush=True)  # they repeat each other


def _name_of_dead(pid: int) -> str:
    """Name of a process that has ended and was not waited for; empty for any other."""
    try:
        head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return ""
    return head.partition("(")[2] if rest.split()[0] == "Z" else ""


def _watch(cluster: Any, folder: Path) -> None:
    """Return when standard input closes, or when the head of the cluster does not answer any more."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    head, failed = cluster.head_node, 0
    info = GcsClient(address=cluster.address).get_all_node_info(timeout=ANSWER_SECONDS)
    node = next(node for node in info.values() if node.is_head_node)
    addresses = {
        "GCS": cluster.address,
        "the head's raylet": f"{node.node_manager_address}:{node.node_manager_port}",
    }
    adopted = _Adopted(cluster)
    while failed < FAILURES:
        if select.select([sys.stdin], [], [], CHECK_SECONDS)[0] and not os.read(sys.stdin.fileno(), 4096):
            return
        dead = [name for name, _ in head.dead_processes() if name in SERVERS]
        silent = [name for name, address in addresses.items() if not _answers(address)]
        failed = FAILURES if dead else failed + 1 if silent else 0
        adopted.end()
        if dead or silent:
            print(f"Ray's head: dead: {dead}, silent: {silent}", file=sys.stderr, flush=True)
    why = f"{_names(dead)} died" if dead else f"{_names(silent)} does not answer any more"
    _say_end(f"ending this Ray, because {why}", folder)


def _names(names: Sequence[str]) -> str:
    return " and ".join(names)


class _Adopted:
    """Processes whose parents have ended, such as those that users' code has left behind, or a raylet that died."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._since: dict[int, float] = {}

    def end(self) -> None:
        """Reap those that have ended, and kill those that are left after ``ADOPTED_SECONDS``, with their descendants.

        Ray reaps its own processes. Its workers end by themselves when their raylet has died.
        """
        nodes = self._cluster.list_all_nodes()
        pids = {
            listed_process.process.pid
            for node in nodes
            for listed in node.all_processes.values()
            for listed_process in listed
        }
        adopted, now = set(_children(os.getpid())) - pids, time.monotonic()
        self._since = {pid: self._since.get(pid, now) for pid in adopted}
        for pid, since in self._since.items():
            if _name_of_dead(pid):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            elif now - since > ADOPTED_SECONDS:
                for member in (pid, *_descendants(pid)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(member, signal.SIGKILL)


def _answers(address: str) -> bool:
    """Whether a gRPC server of Ray says in time that it is well."""
    import grpc

    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text().strip()
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            check(b"", timeout=ANSWER_SECONDS, metadata=[("authorization", f"Bearer {token}")])
        except grpc.RpcError:
            return False
    return True


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(0)


def _is_gcs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "gcs_server"
    return False


def _adopt_orphans() -> None:
    """Make this process the parent of each descendant whose own parent ends; does nothing on systems but Linux."""
    if sys.platform == "linux":
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)


def _end_descendants() -> None:
    """Send TERM, then KILL, until this process has no child. As the subreaper it inherits every orphan.

    The GCS is killed at once: at TERM it cancels calls under way, at which Ray ends the process that made them.
    """
    started = time.monotonic()
    while children := _descendants(os.getpid()):
        overdue = time.monotonic() - started > TERM_SECONDS
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL if overdue or _is_gcs(pid) else signal.SIGTERM)
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


def _children(parent: int) -> list[int]:
    return [pid for pid, of in _parents().items() if of == parent]


def _descendants(root: int) -> list[int]:
    """Process ids of all descendants of ``root``."""
    parents = _parents()
    descendants: list[int] = []
    level = {root}
    while level := {pid for pid, parent in parents.items() if parent in level}:
        descendants += level
    return descendants


def _parents() -> dict[int, int]:
    """The parent of every process, from one pass over /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue  # it has just ended
    return parents


if __name__ == "__main__":
    guard(json.loads(sys.argv[1]))
