"""An API for a single command, where no service runs: it answers for the studies that ``scamp run`` has trained."""

from __future__ import annotations

import atexit
import secrets
import socket
import subprocess
import tempfile
from contextlib import closing
from typing import IO

from scamp.addresses import url_of
from scamp_service.errors import Unavailable
from scamp_service.processes.heartbeat import Pulse
from scamp_service.processes.supervise import CANNOT_LISTEN, MODULES, MOST_LOST_PORTS, answers, spawn
from scamp_service.settings import LOOPBACK, Settings


def has_database(settings: Settings) -> bool:
    """Whether there is a database with studies to read."""
    return bool(settings.database_url) or (settings.data_dir / "scamp.db").exists()


def start_api(settings: Settings) -> tuple[str, str]:
    """(URL, token) of an API with these settings, which ends with this process.

    Raises ``Unavailable``, with its last words, if it does not start.
    """
    host, token, words = LOOPBACK[0], secrets.token_hex(16), CANNOT_LISTEN
    tries_left = MOST_LOST_PORTS
    while CANNOT_LISTEN in words and tries_left:  # another process has taken the port meanwhile
        with socket.create_server((host, 0)) as probe:
            port = probe.getsockname()[1]
        brief = settings.model_copy(update={"host": host, "port": port, "api_token": token, "trusted_proxies": ""})
        url = url_of(host, port)
        with tempfile.TemporaryFile() as said:
            if _starts(brief, url, said):
                return url, token
            words = _last_line(said)
        tries_left -= 1
    raise Unavailable(f"the studies cannot be read; {words}")


def _starts(settings: Settings, url: str, said: IO[bytes]) -> bool:
    """Whether an API with these settings answers; ``said`` gets what it prints."""
    with closing(Pulse()) as pulse:
        try:
            api = spawn(MODULES["api"], settings, pulse.child_end, said)
        finally:
            pulse.started()
        atexit.register(_end, api)
        return answers(url, api, pulse)


def _end(api: subprocess.Popen[bytes]) -> None:
    api.terminate()
    api.wait()


def _last_line(said: IO[bytes]) -> str:
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("scamp: ") if lines else "the API did not start"
