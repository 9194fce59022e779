"""A gang's process group, whose collectives take only the memory that a trace predicts."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from estimators.model import Plan
from workloads.parallel.exchanging.gloo import released_collectives

COLLECTIVE_TIMEOUT = timedelta(days=20)
"""For ever; torch's store counts milliseconds in 32 bits. It is the controller that gives up a gang without progress,
and says which rank waits where; a collective that gave up before would only look like a lost peer. That a peer has died
is seen at once."""


@contextmanager
def process_group(plan: Plan, rank: int, rendezvous: Store | None, device: torch.device) -> Iterator[DeviceMesh | None]:
    """Joins the gang's process group while the context lasts; yields the mesh of the plan, None for a single rank."""
    sizes = plan.mesh
    if not sizes:
        yield None
        return
    if rendezvous is None:
        raise ValueError(f"{plan.world_size} ranks need a rendezvous store")
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if device.type == "cpu":
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")  # torch's records of collectives grow by 0.1 MiB per step
    with _gloo_interface(rendezvous):
        dist.init_process_group(
            backend, store=rendezvous, rank=rank, world_size=plan.world_size, timeout=COLLECTIVE_TIMEOUT
        )
    try:
        with _gloo_interface(rendezvous):
            mesh = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        with released_collectives() if device.type == "cpu" else nullcontext():
            yield mesh
    finally:
        # Otherwise a later mesh that equals this one would get the process groups that are destroyed here. It is
        # imported late, because that takes half a second, for which every rank that starts would wait.
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache

        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
        dist.destroy_process_group()


@contextmanager
def _gloo_interface(store: Store) -> Iterator[None]:
    """Make gloo use the loopback interface if the store is on this machine, else the one that leads to the store.

    By itself gloo takes the address of the host's name, which is 127.0.1.1 on Debian: others cannot reach that. A
    GLOO_SOCKET_IFNAME of the user's wins over ours.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    remote = store if isinstance(store, TCPStore) and store.host not in ("127.0.0.1", "localhost", "::1") else None
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    if remote is None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    elif before is None and (interface := _interface_towards(remote.host, remote.port)):
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("GLOO_SOCKET_IFNAME", None)
        else:
            os.environ["GLOO_SOCKET_IFNAME"] = before


def _interface_towards(host: str, port: int) -> str:
    """Name of the network interface from which this host reaches another by IPv4; empty if it cannot be told."""
    siocgifaddr = 0x8915  # Linux: the address of an interface
    if not sys.platform.startswith("linux"):
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))  # sends nothing
        except OSError:
            return ""
        own_address = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                request = struct.pack("256s", name.encode())
                if fcntl.ioctl(probe, siocgifaddr, request)[20:24] == own_address:
                    return name
    return ""
