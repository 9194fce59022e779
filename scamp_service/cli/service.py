"""Finds the running service for a command: its address, a token, and a client."""

from __future__ import annotations

import atexit
from typing import Annotated

import typer

from scamp_service.cli.terminal import settings_of
from scamp_service.client import Client
from scamp_service.processes.addresses import own_url

StudyId = Annotated[int, typer.Argument(help="the study's number")]
Address = Annotated[
    str, typer.Option(help="URL of the service; default: the one on this machine", envvar="SCAMP_ADDRESS")
]
Token = Annotated[str, typer.Option(help="API token", envvar="SCAMP_API_TOKEN", show_envvar=True)]


def client_of(address: str, token: str, *, to_change: bool = False) -> Client:
    """A client, which is closed when the process ends; ``to_change`` is for requests that change something."""
    client = Client(address or own_url(settings_of(), to_change=to_change), token=token or None)
    atexit.register(client.close)
    return client
