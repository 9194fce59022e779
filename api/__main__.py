"""``python -m api``: serves the API and the dashboard, and starts nothing else. ``SCAMP_*`` variables configure it."""

from __future__ import annotations

import argparse
import gc
import logging
import socket
import sys

import uvicorn

from api import sse
from api.app import create_app
from scamp_service.errors import ScampError, Unavailable
from scamp_service.files import close_new_files
from scamp_service.host import allow_many_files
from scamp_service.settings import Settings, settings_of_process

SHUTDOWN_SECONDS = 3


def main() -> int:
    """Serve until a signal; returns the exit code: 0, or 2 for a mistake in the settings."""
    parser = argparse.ArgumentParser(prog="python -m api", description="Serve the ScaMP API and dashboard.")
    parser.add_argument("--host", help="address to listen on; default: SCAMP_HOST or 127.0.0.1")
    parser.add_argument("--port", type=int, help="port to listen on; default: SCAMP_PORT or 8100")
    options = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    close_new_files()
    try:
        allow_many_files()
        server = server_for(
            settings_of_process().model_copy(update=Settings(**options).model_dump(include=set(options)))
        )
    except ScampError as error:
        print("scamp:", " ".join(str(error).split()), file=sys.stderr)  # on one line: the supervisor repeats the last
        return 2
    gc.collect()
    gc.freeze()  # what lives as long as this process is not looked at again: a third of what many rows take to read
    server.run()
    return 0


def server_for(settings: Settings) -> uvicorn.Server:
    """Server that already listens on its port, and answers once ``run`` is called.

    Raises what ``create_app`` raises, and ``Unavailable`` when it cannot listen on the port.
    """
    if not settings.database_url:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    listener = _bind(settings.host, settings.port)
    try:
        app = create_app(settings)
    except BaseException:
        listener.close()
        raise
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return _Server(config, app.state.hub, listener)


def _bind(host: str, port: int) -> socket.socket:
    listener = None
    try:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit this. asyncio sets it only for sockets that name their protocol: without it an answer of
        # two packets takes 40 ms longer, until the client confirms the first (Nagle's algorithm and delayed ACKs).
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # drops a peer that acknowledges nothing; connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * sse.STALLED_SECONDS))
        listener.bind((host, port))
        listener.listen()  # two processes can bind the same port, but only one can listen
    except OSError as error:
        if listener is not None:
            listener.close()
        raise Unavailable(
            f"cannot listen on {host} port {port} ({error.strerror}); choose another with --host or --port"
        ) from None
    return listener


class _Server(uvicorn.Server):
    """Ends the event streams at shutdown. Otherwise uvicorn would wait for them as for any other answer."""

    def __init__(self, config: uvicorn.Config, hub: sse.EventHub, listener: socket.socket) -> None:
        super().__init__(config)
        self._hub, self._listener = hub, listener

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        super().run(sockets or [self._listener])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.close()
        await super().shutdown(sockets)


if __name__ == "__main__":
    sys.exit(main())
