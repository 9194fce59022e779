"""Addresses of services: the port that a service takes, the URL that its data directory remembers, and whose service
answers at an address on this machine."""

from __future__ import annotations

import errno
import json
import os
import pwd
import socket
from pathlib import Path
from urllib.parse import urlsplit

from scamp_service.errors import Unavailable
from scamp_service.files import write_atomically
from scamp_service.settings import Settings

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PORTS_TRIED = 50
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_LISTENS = "0A"  # the state of a listening socket in /proc/net/tcp
_SOCKETS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def url_of(host: str, port: int) -> str:
    """URL at which this machine reaches a service that listens on ``host``."""
    host = _EVERYWHERE.get(host, host).replace("%", "%25")  # of a link-local address with its interface
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
    write_atomically(_server_file(data_dir), json.dumps(server).encode())


def running_server(data_dir: Path) -> str | None:
    """The URL of the service that uses this data directory; None if none is running."""
    url, pid = _server(data_dir)
    if pid is None:
        return None
    try:
        os.kill(pid, 0)
    except OSError:
        return None
    return url


def remembered_port(data_dir: Path) -> int | None:
    """The port that the service of this data directory has or had the last time; None if there was none."""
    return urlsplit(_server(data_dir)[0] or "").port


def _server_file(data_dir: Path) -> Path:
    return data_dir / "server.json"


def _server(data_dir: Path) -> tuple[str | None, int | None]:
    """(URL, process id while it runs) of the service of this data directory."""
    try:
        server = json.loads(_server_file(data_dir).read_text())
        url, pid = str(server["url"]), server["pid"]
        urlsplit(url).port  # noqa: B018 (raises ValueError)
    except (OSError, ValueError, KeyError, TypeError):
        return None, None
    return url, pid


def own_url(settings: Settings, *, to_change: bool) -> str:
    """The URL of the own service on this machine: that of the service that uses the data directory.

    While none does, the port that somebody chose, or that the service of this directory had the last time, or the usual
    one. With ``to_change`` that raises ``Unavailable`` if a process of another Unix user listens there.
    """
    running = running_server(settings.data_dir)
    if running is not None:
        return running
    chosen = settings.port if "port" in settings.model_fields_set else remembered_port(settings.data_dir)
    url = url_of(settings.host, chosen or settings.port)
    if to_change:
        _expect_own(url)
    return url


def is_own(url: str) -> bool:
    """Whether a process of this Unix user listens at a URL of this machine; any process, where the system hides whose
    it is."""
    parts = urlsplit(url)
    if uids := _listeners(parts.port or 80):
        return os.geteuid() in uids
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=1.0):
            return True
    except OSError:
        return False


def _expect_own(url: str) -> None:
    uids = _listeners(urlsplit(url).port or 80)
    if uids and os.geteuid() not in uids:
        names = ", ".join(sorted(map(_name, uids)))
        raise Unavailable(
            f"no service of yours runs, and the one at {url} belongs to {names}, so nothing was changed; start yours "
            f"with `scamp serve`, or use that one with --address {url}"
        )


def _listeners(port: int) -> set[int]:
    """Ids of the users whose sockets listen on a port of this machine; empty where the system does not say."""
    listeners = set()
    for table in _SOCKETS:
        try:
            rows = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            _, local, _, state, _, _, _, uid, *_ = row.split()
            if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
                listeners.add(int(uid))
    return listeners


def _name(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user with id {uid}"
