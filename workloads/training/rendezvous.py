"""The store through which the ranks of a gang find each other; rank 0 serves it on its own socket."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore

TIMEOUT = timedelta(seconds=120)


def listen(host: str, world_size: int) -> tuple[TCPStore, tuple[str, int]]:
    """The gang's store, for rank 0, and its address. It already listens, so no other process can take the port."""
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port = listener.getsockname()[1]
    store = TCPStore(
        host, port, world_size, True, timeout=TIMEOUT, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, (host, port)


def connect_to_store(address: tuple[str, int], world_size: int) -> TCPStore:
    """The gang's store, for the other ranks. Raises ``torch.distributed.DistError`` if no store listens there."""
    return TCPStore(*address, world_size, False, timeout=TIMEOUT)
