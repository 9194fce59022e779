"""The mirror of a host that is not the controller's: an actor with the credentials of ``ray start``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from scamp_service.cluster.sink import one_on_node
from scamp_service.cluster.worker import host_mirror
from scamp_service.cluster.worker.folders import Folders
from scamp_service.cluster.worker.host_mirror import HostMirror, keep_mirror
from scamp_service.host import kernel
from scamp_service.remote.copies import Copies
from scamp_service.remote.objects import Objects
from tests.scamp_service.remote.test_copies import FIRST, write
from tests.services.s3 import SECRET, ObjectStorage, object_storage
from tests.waiting import until
from workloads.training.checkpoints import outbox

NAMESPACE = "scamp-mirrors"


@pytest.fixture(scope="module")
def storage() -> Iterator[ObjectStorage]:
    with object_storage() as storage:  # before Ray starts, whose processes inherit the environment
        ray.init(address="local", num_cpus=1, namespace=NAMESPACE, include_dashboard=False, log_to_driver=False)
        yield storage
        ray.shutdown()


@pytest.mark.ray
def test_a_host_of_a_cluster_stores_its_checkpoints(storage: ObjectStorage, tmp_path: Path) -> None:
    folders = Folders(kernel(), tmp_path / "code", tmp_path / "checkpoints", storage.url)
    keep_mirror(folders, NAMESPACE, lease_seconds=4.0, is_controllers=False)
    copies = Copies(Objects(storage.url), folders.checkpoints)
    write(copies, FIRST)
    outbox.push(copies.root, FIRST, [], ends=True)
    until(lambda: not outbox.waiting(copies.root), "the upload")
    assert copies.manifest(FIRST) is not None
    assert outbox.fetch(copies.root, FIRST, or_older=False, lives=lambda: None) == ""
    mirror, its_environment = until(lambda: next(_mirrors(), None), "a mirror, which is made again where it has ended")
    assert SECRET.encode() not in its_environment
    until(lambda: not mirror.exists(), "its end, as nobody leads")


@pytest.mark.ray
def test_it_ends_when_no_rank_wants_it_although_somebody_leads(storage: ObjectStorage, tmp_path: Path) -> None:
    options = one_on_node(ray.get_runtime_context().get_node_id(), "unwanted", NAMESPACE)
    mirror: Any = ray.remote(HostMirror).options(**options).remote(storage.url, tmp_path, NAMESPACE, 3600.0, 3.0)
    with pytest.raises(ray.exceptions.ActorDiedError):
        until(lambda: ray.get(mirror.__ray_ready__.remote()) and None, "its end")


def test_a_rank_that_wants_it_puts_off_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(host_mirror, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("threading.Thread.start", lambda thread: None)
    mirror = HostMirror("s3://bucket/a", tmp_path, NAMESPACE, 4.0, 30.0)
    now[0] = 20.0
    mirror.want()
    now[0] = 50.0
    assert mirror.is_wanted
    now[0] = 51.0
    assert not mirror.is_wanted


@pytest.mark.parametrize(("url", "is_controllers"), [("", False), ("s3://bucket/a", True)])
def test_there_is_none_without_object_storage_and_on_the_controllers_host(
    url: str, is_controllers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threading.Thread.start", lambda thread: pytest.fail("it starts one"))
    keep_mirror(Folders(kernel(), tmp_path, tmp_path, url), NAMESPACE, 4.0, is_controllers=is_controllers)
    assert (tmp_path / outbox.PUSH).is_dir() == bool(url)


def _mirrors() -> Iterator[tuple[Path, bytes]]:
    """Yield the processes of mirrors, each with its environment."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if b"ray::HostMirror" in (process / "cmdline").read_bytes():
                yield process, (process / "environ").read_bytes()
