"""``python -m api``: serves the API and the dashboard. Its settings are ``SCAMP_*``; it starts nothing else."""

from __future__ import annotations

import argparse
import logging
import sys
from socket import socket

import uvicorn

from api.app import create_app
from api.sse import EventHub
from scamp_service.errors import ScampError
from scamp_service.settings import Settings

SHUTDOWN_SECONDS = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m api", description="Serve the ScaMP API and dashboard.")
    parser.add_argument("--host", help="address to listen on (SCAMP_HOST, 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (SCAMP_PORT, 8100)")
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        server = server_for(Settings(**given))
    except ScampError as error:
        print(f"scamp: {error}", file=sys.stderr)
        return 2
    server.run()
    return 0


def server_for(settings: Settings) -> uvicorn.Server:
    """Raises what ``create_app`` raises; nothing listens before ``run``."""
    if not settings.database_url:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return _Server(config, app.state.hub)


class _Server(uvicorn.Server):
    """Ends the event streams when it is told to stop: uvicorn would wait for them as for any other answer."""

    def __init__(self, config: uvicorn.Config, hub: EventHub) -> None:
        super().__init__(config)
        self._hub = hub

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._hub.close()
        await super().shutdown(sockets)


if __name__ == "__main__":
    sys.exit(main())
