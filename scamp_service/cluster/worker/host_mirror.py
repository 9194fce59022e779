"""Keeps a mirror of checkpoints on each host of a Ray cluster, as an actor; the controller's host has a process."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from scamp_service.cluster.sink import LeaseWatch, SinkClient
from scamp_service.cluster.worker.folders import Folders
from scamp_service.model import Lease
from scamp_service.remote.process import serve_mirror
from workloads.training.checkpoints.outbox import PUSH, named, open_outbox

log = logging.getLogger("scamp.mirror")

KEEP_SECONDS = 20.0


class HostMirror:
    """The actor. Its process ends once nobody leads any more and nothing waits to be stored.

    Credentials are those of the environment of ``ray start``.
    """

    def __init__(self, url: str, root: Path, namespace: str, lease_seconds: float) -> None:
        self._root, self._namespace, self._lease_seconds = root, namespace, lease_seconds
        stop = threading.Event()
        threading.Thread(target=serve_mirror, args=(url, root, stop), kwargs={"is_swept": True}, daemon=True).start()
        threading.Thread(target=self._watch_lease, daemon=True).start()

    def _watch_lease(self) -> None:
        watch = LeaseWatch(self._lease_seconds)
        while not watch.has_lapsed(self._last_lease) or named(self._root / PUSH):
            time.sleep(self._lease_seconds / 10)
        os._exit(0)

    def _last_lease(self) -> Lease | None:
        try:
            lease: Lease | None = SinkClient(self._namespace).try_once("last_lease")
        except Exception:  # whoever needs this mirror starts it again
            return None
        return lease


def keep_mirror(folders: Folders, namespace: str, lease_seconds: float, *, is_controllers: bool) -> None:
    """Let this host have a mirror for as long as this process lives, if checkpoints are in object storage.

    On the host that is the controller's there is one.
    """
    if not folders.url:
        return
    open_outbox(folders.checkpoints)
    if not is_controllers:
        node_id = ray.get_runtime_context().get_node_id()
        threading.Thread(target=_keep, args=(folders, namespace, lease_seconds, node_id), daemon=True).start()


def _keep(folders: Folders, namespace: str, lease_seconds: float, node_id: str) -> None:
    # Without Ray, asking it for anything would start another one.
    while ray.is_initialized() and ray.get_runtime_context().get_node_id() == node_id:
        try:
            _ensure(folders, namespace, lease_seconds, node_id)
        except Exception as error:
            log.warning("the mirror of this host cannot be started now: %s", error)
        time.sleep(KEEP_SECONDS)


def _ensure(folders: Folders, namespace: str, lease_seconds: float, node_id: str) -> Any:
    return (
        ray.remote(HostMirror)
        .options(
            name=f"mirror-{node_id}",
            namespace=namespace,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        .remote(folders.url, folders.checkpoints, namespace, lease_seconds)
    )
