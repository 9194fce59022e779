"""Finds the running service for a command: its address, a token, and a client."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Annotated

import typer

from scamp.addresses import LocalService, answers, is_own, local_service, remembered_port, running_server
from scamp.cli.terminal import err, whole_number
from scamp.errors import Unavailable
from scamp.installed import has_server, installed_module
from scamp.lean_imports import without

if TYPE_CHECKING:
    from scamp.client import Client

StudyId = Annotated[int, typer.Argument(help="the study's number", parser=whole_number, metavar="STUDY")]
SomeTrials = Annotated[
    list[int] | None,
    typer.Argument(help="only trials with these numbers", metavar="[TRIAL]…", parser=whole_number, show_default=False),
]
Address = Annotated[
    str, typer.Option(help="URL of the service; default: the one on this machine", envvar="SCAMP_ADDRESS")
]
Token = Annotated[str, typer.Option(help="API token", envvar="SCAMP_API_TOKEN", show_envvar=True)]


def client_of(address: str, token: str, *, to_change: bool = False) -> Client:
    """A client, which is closed when the process ends; ``to_change`` is for requests that change something.

    Where scamp-server is installed, other requests are answered without a service, too, from the data directory of this
    machine. Raises ``Unavailable`` if a change would reach a service of another data directory than the one that
    somebody chose.
    """
    with without("httpx._main"):  # its command line, which imports click, rich and pygments
        from scamp.client import Client  # imported here: httpx takes a tenth of a second

    if not address:
        local = local_service()
        address = local.url_to_change() if to_change else local.url
        if local.port and not running_server(local.data_dir):
            if not to_change and not answers(address):
                address, token = _without_service(local, address, token)
        elif not running_server(local.data_dir):
            is_other = bool(os.environ.get("SCAMP_DATA_DIR")) and remembered_port(local.data_dir) is None
            if not to_change and (is_other or not is_own(address)):
                address, token = _without_service(local, address, token)
            elif is_other and is_own(address):
                raise Unavailable(
                    f"no service uses {local.data_dir}, and the one at {address} has another data directory, so "
                    f"nothing was changed; start yours with `scamp serve`, or use that one with --address {address}"
                )
    client = Client(address, token=token or None)
    atexit.register(client.close)
    return client


def _without_service(local: LocalService, address: str, token: str) -> tuple[str, str]:
    """(address, token) of an API for this command alone, if scamp-server is here and has a database to read."""
    if not has_server():
        return address, token
    brief_api = installed_module("scamp_service.processes.brief_api", "reading studies without a service")
    settings = installed_module("scamp_service.settings", "reading studies without a service").Settings()
    if not brief_api.has_database(settings):
        return address, token
    where = "the database" if settings.database_url else str(local.data_dir)
    err.print(f"scamp: no service of yours runs; reading {where}", markup=False, soft_wrap=True, style="dim")
    url, secret = brief_api.start_api(settings)
    return url, secret
