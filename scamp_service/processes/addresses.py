"""The port that a service takes, and the URL that its data directory then remembers (read by ``scamp.addresses``)."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path

from scamp.addresses import remembered_port, server_file
from scamp_service.errors import Unavailable
from scamp_service.files import write_atomically
from scamp_service.settings import Settings

PORTS_TRIED = 50


def take_port(settings: Settings, *, next_port: bool) -> int:
    """The port for a service with these settings. Raises ``Unavailable`` when none is free.

    A port that somebody chose is the only one, or with ``next_port`` the first of several. Otherwise it is the port
    that this data directory had the last time, or else the next free one from the usual port on.
    """
    if "port" in settings.model_fields_set:
        return free_port(settings.host, settings.port, PORTS_TRIED if next_port else 1)
    remembered = remembered_port(settings.data_dir)
    if remembered is not None:
        try:
            return free_port(settings.host, remembered, 1)
        except Unavailable:  # another process has it by now
            pass
    return free_port(settings.host, settings.port, PORTS_TRIED)


def free_port(host: str, first: int, num_ports: int = PORTS_TRIED) -> int:
    """The first free one of ``num_ports`` ports from ``first`` on. Raises ``Unavailable`` when there is none."""
    last = min(first + num_ports - 1, 65535)
    for port in range(first, last + 1):
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        except PermissionError:
            raise Unavailable(f"port {port} needs privileges; choose one above 1023 with --port") from None
        except OSError as error:
            if error.errno != errno.EADDRINUSE:  # another port would not help
                raise Unavailable(f"cannot listen on {host} ({error.strerror}); choose another --host") from None
            continue
        return port
    if first == last:
        raise Unavailable(
            f"port {first} on {host} is in use; stop the process that uses it, choose another port with --port or "
            "SCAMP_PORT, or set neither to take the next free port"
        )
    raise Unavailable(f"ports {first} to {last} are all taken; choose another with --port")


def write_server_file(data_dir: Path, url: str, *, runs: bool = True) -> None:
    """Record the URL of the service of this data directory, and whether this process runs it now."""
    server = {"url": url, "pid": os.getpid() if runs else None}
    write_atomically(server_file(data_dir), json.dumps(server).encode())
