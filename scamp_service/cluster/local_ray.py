"""A private Ray cluster on this host, and the connection to any Ray cluster. Token authentication is always on.

The cluster runs under a guardian, ``python -m scamp_service.cluster.local_ray``: a child that adopts every process
of its cluster and ends them all when it is told to or when its standard input closes, however its parent died. It
knows no ranks and no gangs; ``ray_executor`` does.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from scamp_service.cluster.gpus import inventory, visible
from scamp_service.errors import Refused, Unavailable
from scamp_service.settings import ROOT, Settings

log = logging.getLogger("scamp.ray")

NAMESPACE = "scamp"
VIRTUAL_DEVICE = "virtual_device"  # Ray's resource: one for each on a node
START_SECONDS = 60.0
STOP_SECONDS = 15.0
TERM_SECONDS = 1.0
OBJECT_STORE_BYTES = 100 * 10**6  # metrics and orders travel in messages; nothing large is ever shared
NOT_SENT = [".venv", ".git", "tests", "docs", "data", "*.db", "node_modules", "__pycache__"]
"""What of the repository is not copied to the workers of another cluster."""


class LocalRay:
    """``start`` returns when the cluster can be connected to; ``stop`` when no process of it is left."""

    def __init__(self, settings: Settings, data_dir: Path) -> None:
        self._settings, self._data_dir = settings, data_dir
        self._guardian: subprocess.Popen[bytes] | None = None
        self._address = ""

    @property
    def address(self) -> str:
        """``127.0.0.1:port``; empty before ``start``."""
        return self._address

    @property
    def token_path(self) -> Path:
        return self._data_dir / "ray-token"

    def start(self) -> None:
        """Raises ``Unavailable`` when Ray does not come up; its log is then ``logs/ray.log`` of the data directory."""
        assert not self.alive(), "already started"
        self.stop()
        logs = self._data_dir / "logs"
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_token(self.token_path)
        with (logs / "ray.log").open("ab") as output:
            self._guardian = subprocess.Popen(
                [sys.executable, "-m", "scamp_service.cluster.local_ray", json.dumps(_nodes(self._settings))],
                cwd=ROOT,
                env=_environment(self.token_path),
                stdin=subprocess.PIPE,  # it closes with this process, and so the guardian learns of its end
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        self._address = self._read_address()
        if not self._address:
            self.stop()
            raise Unavailable(f"the local Ray did not start; see {logs / 'ray.log'}")
        written = self._data_dir / "ray-address.new"
        written.write_text(self._address)
        written.replace(self._data_dir / "ray-address")  # at once: the controller waits for it to appear

    def alive(self) -> bool:
        return self._guardian is not None and self._guardian.poll() is None

    def stop(self) -> None:
        """End exactly the processes of this cluster; no effect when there are none."""
        guardian, self._guardian, self._address = self._guardian, None, ""
        if guardian is None:
            return
        assert guardian.stdin is not None and guardian.stdout is not None
        guardian.stdin.close()
        try:
            guardian.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            guardian.kill()  # the kernel ends Ray's processes with it (PR_SET_PDEATHSIG, set by Ray)
            guardian.wait()
        guardian.stdout.close()

    def _read_address(self) -> str:
        assert self._guardian is not None and self._guardian.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._guardian.stdout, selectors.EVENT_READ)
            if not selector.select(START_SECONDS):
                return ""
        return self._guardian.stdout.readline().decode().strip()


def connect(address: str, data_dir: Path) -> None:
    """Attach this process to a cluster as a driver; raises ``Unavailable`` or ``Refused``.

    The cluster of ``LocalRay(…, data_dir)`` is recognised by its address. Any other must be given with Ray's own
    variables for its token. There, the repository travels to the workers as ``working_dir``; in a Ray job it has
    travelled already.
    """
    ours = _is_ours(address, data_dir)
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    if mode.lower() != "token":
        raise Refused(f"RAY_AUTH_MODE is {mode!r}: ScaMP uses Ray with tokens only; unset it, or set it to token")
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if ours:
        os.environ.update(_loopback(data_dir / "ray-token"))
        os.environ.pop("RAY_AUTH_TOKEN", None)  # it would win over the path
    import ray  # reads the environment on import, so not earlier
    from ray.exceptions import RaySystemError

    _refresh(ray, ours)
    _to_our_log()
    in_job = "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
    code = {} if ours or in_job else {"working_dir": str(ROOT), "excludes": NOT_SENT}
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env=code or None,
        )
    except ray.exceptions.AuthenticationError as error:
        raise Refused(f"the Ray cluster at {address} refused the token: set RAY_AUTH_TOKEN_PATH ({error})") from error
    except (ConnectionError, RuntimeError, RaySystemError) as error:
        raise Unavailable(f"the Ray cluster at {address} cannot be reached: {error}") from error


def _to_our_log() -> None:
    """Ray prints an alarm into the driver's standard output for each process that ends; ranks are ended on purpose."""
    from ray._private import worker

    worker.print_to_stdstream = lambda data, ignore_prefix: log.info("Ray: %s", "\n".join(data["lines"]))


def write_token(path: Path) -> None:
    """Create the secret once, readable by its owner alone from the first moment on."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        path.chmod(0o600)
        return
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))


def _nodes(settings: Settings) -> list[dict[str, Any]]:
    """The arguments of each Ray node. GPUs are all on the first: further nodes of one host are for trials of ScaMP."""
    gpus = len(visible(inventory(), os.environ.get("CUDA_VISIBLE_DEVICES")))  # Ray refuses to be told of more
    devices = {} if gpus else {VIRTUAL_DEVICE: settings.virtual_devices}
    common = {"object_store_memory": OBJECT_STORE_BYTES, "include_log_monitor": False, "resources": devices}
    # Ranks ask for no CPU; Ray keeps as many processes ready as there are CPUs, for the first ranks to start in.
    head = {**common, "num_cpus": min(4, os.cpu_count() or 1), "num_gpus": gpus}
    head |= {"include_dashboard": False, "no_monitor": True, "dashboard_agent_listen_port": 0}
    return [head] + [{**common, "num_cpus": 1, "num_gpus": 0} for _ in range(1, settings.virtual_nodes)]


def _environment(token_path: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return (
        environment
        | _loopback(token_path)
        | {
            "RAY_AUTH_MODE": "token",
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray starts a dashboard process also when it is told not to, and waits for it; 0 means not to wait (−3 s).
            "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "0",
            # How our code reaches the workers: they inherit it. As fast as a plain import, unlike a working_dir.
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
        }
    )


def _loopback(token_path: Path) -> dict[str, str]:
    """Ray replaces 127.0.0.1 by the host's address, and listens there, unless it is told that clusters of several
    hosts are not wanted; then all of it listens on the loopback interface only. Clients must agree."""
    return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_TOKEN_PATH": str(token_path)}


def _is_ours(address: str, data_dir: Path) -> bool:
    try:
        return (data_dir / "ray-address").read_text() == address
    except FileNotFoundError:
        return False


def _refresh(ray: Any, ours: bool) -> None:
    """Make a Ray that was imported before see the environment of now."""
    import ray._private.ray_constants as constants
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    constants.ENABLE_RAY_CLUSTER = not ours
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


# --- the guardian --------------------------------------------------------------------------------------------------


def _guard(nodes: list[dict[str, Any]]) -> None:
    """Start the cluster, print its address, and when standard input closes or SIGTERM comes end all descendants."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops the guardian in its time
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
    """TERM, then KILL, until this process has no child; as the subreaper it inherits every orphan."""
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
    """Every process below ``root``, from one pass over /proc."""
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
    _guard(json.loads(sys.argv[1]))
