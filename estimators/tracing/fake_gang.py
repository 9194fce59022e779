"""A gang for traces: only one of its ranks exists, and its process group does not communicate.

Meshes hold ranks as real tensors, so code that makes a mesh leaves fake mode. This module knows layouts, but no models.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed import _meta_registrations, distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import _sharding_prop
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore

from estimators.model import Layout
from estimators.tracing.fake_shares import fake_shares


@contextlib.contextmanager
def fake_mesh(layout: Layout) -> Iterator[DeviceMesh | None]:
    """The mesh of ``layout`` as its first rank sees it; None for a single rank. The process group ends with it."""
    sizes = layout.mesh
    if not sizes:
        yield None
        return
    dist.init_process_group("fake", store=FakeStore(), rank=layout.first_rank, world_size=layout.world_size)
    try:
        plain = contextlib.nullcontext() if "tp" in sizes else _nothing_strided()
        with _real_meshes(), _sends_that_hold(), _counted_messages(), fake_shares(layout.shares), plain:
            yield init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    finally:
        # Otherwise a later mesh that equals this one would get the process groups that end here.
        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
        dist.destroy_process_group()


def groups_of(mesh: DeviceMesh) -> dict[str, tuple[str, int]]:
    """Name of the process group along each dimension of ``mesh`` → name and size of the dimension."""
    names = mesh.mesh_dim_names or ()
    return {mesh.get_group(name).group_name: (name, mesh[name].size()) for name in names}


@contextlib.contextmanager
def _real_meshes() -> Iterator[None]:
    """Make meshes outside of fake mode. FSDP2 joins the mesh of a tensor-parallel parameter to its own while it shards,
    which may be in fake mode."""
    with contextlib.ExitStack() as patches:
        for name in ("__init__", "_concatenate"):
            real = _out_of_fake_mode(getattr(DeviceMesh, name))
            method = staticmethod(real) if isinstance(vars(DeviceMesh)[name], staticmethod) else real
            patches.enter_context(mock.patch.object(DeviceMesh, name, method))
        yield


@contextlib.contextmanager
def _nothing_strided() -> Iterator[None]:
    """Skip the search for strided shards, which only exist where FSDP2 shards tensor-parallel parameters again.

    For each parameter of an update, DTensor looks for them in all the others. This takes a third of the trace of a deep
    model.
    """

    def find_none(strategy: object, schema: object) -> None:
        pass

    with mock.patch.object(_sharding_prop, "_propagate_use_strided_shard_flag", find_none):
        yield


@contextlib.contextmanager
def _counted_messages() -> Iterator[None]:
    """Number the handles of fake messages one by one. torch draws these numbers from Python's generator, and a model
    that draws from it is traced several times."""
    with mock.patch.object(_meta_registrations, "generate_unique_id", itertools.count(1).__next__):
        yield


@contextlib.contextmanager
def _sends_that_hold() -> Iterator[None]:
    """Make the handle of a message keep its tensor even after sending, as gloo's does and the fake group's does not."""
    real = distributed_c10d.isend

    def isend(tensor: Tensor, *args: Any, **kwargs: Any) -> _Sent | None:
        work = real(tensor, *args, **kwargs)
        return _Sent(work, tensor) if work is not None else None

    with mock.patch.object(dist, "isend", isend), mock.patch.object(distributed_c10d, "isend", isend):
        yield


@dataclass(frozen=True, slots=True)
class _Sent:
    """The handle of a sent message that keeps its tensor."""

    work: dist.Work
    tensor: Tensor

    def wait(self) -> None:
        self.work.wait()


def _out_of_fake_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    def outside(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return outside
