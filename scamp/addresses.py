"""Finds the service on this machine: the URL that a data directory remembers, and whose service answers at a URL."""

from __future__ import annotations

import json
import os
import pwd
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from scamp.errors import InvalidInput, Unavailable

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8100
DEFAULT_ADDRESS = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_LISTENS = "0A"  # the state of a listening socket in /proc/net/tcp
_SOCKETS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


@dataclass(frozen=True, slots=True)
class LocalService:
    """The service on this machine that uses ``data_dir``; ``port`` is None unless somebody has chosen one."""

    data_dir: Path
    host: str = DEFAULT_HOST
    port: int | None = None

    @property
    def url(self) -> str:
        """URL of the service that uses the data directory.

        While none does, that of the port which somebody chose, or which the service of this directory had the last
        time, or of the usual one.
        """
        port = self.port or remembered_port(self.data_dir) or DEFAULT_PORT
        return running_server(self.data_dir) or url_of(self.host, port)

    def url_to_change(self) -> str:
        """``url``, for requests that change something. Raises ``Unavailable`` if another Unix user listens there."""
        if running_server(self.data_dir) is None:
            expect_own(self.url)
        return self.url


def local_service() -> LocalService:
    """The service that SCAMP_DATA_DIR, SCAMP_HOST and SCAMP_PORT mean. Raises ``InvalidInput`` for a wrong port."""
    folder, port = os.environ.get("SCAMP_DATA_DIR") or "~/.scamp", os.environ.get("SCAMP_PORT") or None
    if port is not None and not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        raise InvalidInput(f"SCAMP_PORT is {port!r}, but must be a whole number from 1 to 65535")
    host = (os.environ.get("SCAMP_HOST") or DEFAULT_HOST).removeprefix("[").removesuffix("]")
    return LocalService(Path(folder).expanduser().absolute(), host, port if port is None else int(port))


def url_of(host: str, port: int) -> str:
    """URL at which this machine reaches a service that listens on ``host``."""
    host = _EVERYWHERE.get(host, host).replace("%", "%25")  # of a link-local address with its interface
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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


def is_own(url: str) -> bool:
    """Whether a process of this Unix user listens at a URL of this machine; any process, where the system hides whose
    it is."""
    if uids := _listeners(urlsplit(url).port or 80):
        return os.geteuid() in uids
    return answers(url)


def answers(url: str) -> bool:
    """Whether anything listens at a URL."""
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=1.0):
            return True
    except OSError:
        return False


def expect_own(url: str) -> None:
    """Raise ``Unavailable`` if a process of another Unix user listens at a URL of this machine."""
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


def server_file(data_dir: Path) -> Path:
    """The file in a data directory with the URL of its service."""
    return data_dir / "server.json"


def _server(data_dir: Path) -> tuple[str | None, int | None]:
    """(URL, process id while it runs) of the service of this data directory."""
    try:
        server = json.loads(server_file(data_dir).read_text())
        url, pid = str(server["url"]), server["pid"]
        urlsplit(url).port  # noqa: B018 (raises ValueError)
    except (OSError, ValueError, KeyError, TypeError):
        return None, None
    return url, pid
