"""Starts and stops a private Ray cluster on this host, with token authentication, under a ``guardian`` process.

It knows nothing of ranks and gangs, which are the subject of ``ray_executor``. ``connection`` connects to the cluster.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import subprocess
import sys
from pathlib import Path
from typing import Any

from scamp_service.cluster.devices.gpus import inventory, visible
from scamp_service.cluster.devices.virtual import VIRTUAL_DEVICE
from scamp_service.errors import Refused, Unavailable
from scamp_service.files import umask_of_ranks, with_remedy, write_atomically
from scamp_service.settings import ROOT, Settings
from scamp_service.user_account import USER, Lent, UserAccount, account_of, check_folder, started_as
from scamp_service.user_environment import user_environment

START_SECONDS = 600.0
"""The guardian gives up a start that makes no progress much sooner."""
STOP_SECONDS = 15.0
OBJECT_STORE_BYTES = 100 * 10**6  # metrics and orders travel in messages; nothing large is shared


class LocalRay:
    """A private Ray cluster. ``start`` returns once it accepts connections, ``stop`` once its processes are gone."""

    def __init__(self, settings: Settings, data_dir: Path) -> None:
        """``data_dir`` keeps the cluster's token, address and log. Nothing starts yet."""
        self._settings, self._data_dir = settings, data_dir
        self._guardian: subprocess.Popen[bytes] | None = None
        self._address = ""
        self._lent: Lent | None = None

    @property
    def address(self) -> str:
        """``127.0.0.1:port``; empty before ``start``, and after one that failed. A cluster that has died keeps it."""
        return self._address

    @property
    def token_path(self) -> Path:
        """File of the secret that clients need."""
        return self._data_dir / "ray-token"

    def start(self) -> None:
        """Start the cluster, or leave nothing behind.

        Raises ``Unavailable`` when Ray does not start; see ``logs/ray.log`` in ``data_dir``.
        """
        assert not self.alive(), "already started"
        self.stop()
        logs = self._data_dir / "logs"
        try:
            self._start(logs)
        except OSError as error:  # such as a full disk
            self.stop()
            raise Unavailable(f"the local Ray cluster did not start: {with_remedy(error)}") from error
        except BaseException:
            self.stop()
            raise

    def _start(self, logs: Path) -> None:
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_token(self.token_path)
        account = account_of(self._settings.user_code_user)
        self._lent = None if account is None else Lent.to(account)
        token = self.token_path if self._lent is None else self._lent.copy(self.token_path)
        with (logs / "ray.log").open("ab") as output:
            self._guardian = subprocess.Popen(
                [sys.executable, "-m", "scamp_service.cluster.local.guardian", json.dumps(_nodes(self._settings))],
                cwd=ROOT,
                env=_environment(token, account),
                stdin=subprocess.PIPE,  # closes when this process ends, which the guardian notices
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                umask=umask_of_ranks(self._settings),
                **started_as(account),
            )
        self._address = self._read_address()
        if not self._address:
            raise Unavailable(f"the local Ray cluster did not start; see {logs / 'ray.log'}")
        written = self._data_dir / "ray-address.new"
        written.write_text(self._address)
        written.replace(self._data_dir / "ray-address")  # atomic: the controller waits for the file to appear

    def alive(self) -> bool:
        """Whether the guardian runs."""
        return self._guardian is not None and self._guardian.poll() is None

    def give_up(self) -> None:
        """Let a ``start`` that another thread is in fail soon."""
        if (guardian := self._guardian) is not None and guardian.stdin is not None:
            guardian.stdin.close()

    def stop(self) -> None:
        """End the processes of this cluster and no others. Does nothing if the cluster is not running."""
        guardian, self._guardian, self._address = self._guardian, None, ""
        lent, self._lent = self._lent, None
        if lent is not None:
            lent.remove()
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


def check_account(settings: Settings) -> None:
    """Raise ``Refused`` unless users' code can run as ``settings.user_code_user``, if it names one.

    A Ray that ScaMP starts runs as that user too, with the ranks and with the sink, which writes to the database.
    """
    account = account_of(settings.user_code_user)
    if account is None or settings.ray_address:
        return
    if settings.url.startswith("sqlite"):
        raise Refused(
            f"{USER}: the ranks' reports are stored by a process of {account.name}, who could then write all of an "
            "SQLite file; use PostgreSQL (SCAMP_DATABASE_URL)"
        )
    check_folder(account, settings.checkpoints)


def write_token(path: Path) -> None:
    """Create the secret unless it exists. Only its owner can read it, from the moment of its creation."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_file() and path.read_text().strip():
        path.chmod(0o600)
    else:  # an empty one was left by a full disk
        write_atomically(path, secrets.token_hex(32).encode())


def _nodes(settings: Settings) -> list[dict[str, Any]]:
    """Arguments of each Ray node. The first has all GPUs: more nodes on one host only serve to try ScaMP out."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = len(visible(inventory(settings.rehearsal_gpus), chosen))  # Ray refuses a larger number
    devices = {} if gpus else {VIRTUAL_DEVICE: settings.virtual_devices}
    common = {"object_store_memory": OBJECT_STORE_BYTES, "include_log_monitor": False, "resources": devices}
    common |= {"dashboard_agent_listen_port": 0}
    # Ranks request no CPU. Ray keeps one idle process ready per CPU, in which the first ranks start.
    head = {**common, "num_cpus": min(4, len(os.sched_getaffinity(0))), "num_gpus": gpus}
    head |= {"include_dashboard": False, "no_monitor": True}
    return [head] + [{**common, "num_cpus": 1, "num_gpus": 0} for _ in range(1, settings.virtual_nodes)]


OUTPUT_BYTES = 2**21
"""Largest output file of a process of Ray. Two are kept for each, as the temporary folder may be small."""


def _environment(token_path: Path, account: UserAccount | None) -> dict[str, str]:
    """Variables of Ray's processes. Ranks, in which users' code runs, inherit them from the raylet."""
    return (
        (user_environment(os.environ) if account is None else account.environment())
        | loopback(token_path)
        | {
            "RAY_AUTH_MODE": "token",
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray then takes what a process writes to its file descriptors 1 and 2, and keeps the end of it.
            "RAY_ROTATION_MAX_BYTES": str(OUTPUT_BYTES),
            "RAY_ROTATION_BACKUP_COUNT": "1",
            # Workers inherit this, so they import our code as fast as any other, unlike from a working_dir.
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
        }
    )


def loopback(token_path: Path) -> dict[str, str]:
    """Environment variables that keep a Ray cluster, and its clients, on the loopback interface.

    By default Ray replaces 127.0.0.1 by the host's address and listens there. With clusters of several hosts disabled,
    all of Ray listens on the loopback interface only. Clients need the same setting.
    """
    return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_TOKEN_PATH": str(token_path)}
