"""Keeps a mirror of checkpoints on each host of a Ray cluster, as an actor; the controller's host has a process."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import ray

from scamp_service.cluster.sink import LeaseWatch, SinkClient, one_on_node
from scamp_service.cluster.worker.folders import Folders
from scamp_service.model import Lease
from scamp_service.remote.process import serve_mirror
from workloads.training.checkpoints.outbox import PUSH, named, open_outbox

log = logging.getLogger("scamp.mirror")

KEEP_SECONDS = 10.0
UNWANTED_SECONDS = 3 * KEEP_SECONDS
"""A mirror ends when for so long no rank has said that it wants it."""


class HostMirror:
    """The actor. Once nobody leads, or no rank wants it, its process ends as soon as nothing waits to be stored.

    So it does not keep a node that Ray drains. Credentials are those of the environment of ``ray start``.
    """

    def __init__(self, url: str, root: Path, namespace: str, lease_seconds: float, unwanted_seconds: float) -> None:
        self._root, self._namespace = root, namespace
        self._lease_seconds, self._unwanted_seconds = lease_seconds, unwanted_seconds
        self._wanted = time.monotonic()
        stop = threading.Event()
        threading.Thread(target=serve_mirror, args=(url, root, stop), kwargs={"is_swept": True}, daemon=True).start()
        threading.Thread(target=self._watch_lease, daemon=True).start()

    def want(self) -> None:
        """Go on: a rank lives on this host."""
        self._wanted = time.monotonic()

    @property
    def is_wanted(self) -> bool:
        """Whether a rank has said so lately."""
        return time.monotonic() - self._wanted <= self._unwanted_seconds

    def _watch_lease(self) -> None:
        watch = LeaseWatch(self._lease_seconds)
        while (self.is_wanted and not watch.has_lapsed(self._last_lease)) or named(self._root / PUSH):
            time.sleep(min(self._lease_seconds, self._unwanted_seconds) / 10)
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
            _ensure(folders, namespace, lease_seconds, node_id).want.remote()
        except Exception as error:
            log.warning("the mirror of this host cannot be started now: %s", error)
        time.sleep(KEEP_SECONDS)


def _ensure(folders: Folders, namespace: str, lease_seconds: float, node_id: str) -> Any:
    options = one_on_node(node_id, f"mirror-{node_id}", namespace)
    actor = ray.remote(HostMirror).options(**options)
    return actor.remote(folders.url, folders.checkpoints, namespace, lease_seconds, UNWANTED_SECONDS)
