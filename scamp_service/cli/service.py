"""Finds the running service for a command: its address, a token, and a client."""

from __future__ import annotations

import atexit
from typing import Annotated

import typer

from scamp_service.cli.terminal import err, settings_of, whole_number
from scamp_service.client import Client
from scamp_service.errors import Unavailable
from scamp_service.processes.addresses import is_own, own_url, remembered_port, running_server
from scamp_service.settings import Settings

StudyId = Annotated[int, typer.Argument(help="the study's number", parser=whole_number, metavar="STUDY")]
Address = Annotated[
    str, typer.Option(help="URL of the service; default: the one on this machine", envvar="SCAMP_ADDRESS")
]
Token = Annotated[str, typer.Option(help="API token", envvar="SCAMP_API_TOKEN", show_envvar=True)]


def client_of(address: str, token: str, *, to_change: bool = False) -> Client:
    """A client, which is closed when the process ends; ``to_change`` is for requests that change something.

    Other requests are answered without a service, too, from the data directory of this machine. Raises ``Unavailable``
    if a change would reach a service of another data directory than the one that somebody chose.
    """
    if not address:
        settings = settings_of()
        address = own_url(settings, to_change=to_change)
        if not ("port" in settings.model_fields_set or running_server(settings.data_dir)):
            is_other = "data_dir" in settings.model_fields_set and remembered_port(settings.data_dir) is None
            if not to_change and (is_other or not is_own(address)):
                address, token = _without_service(settings, address, token)
            elif is_other and is_own(address):
                raise Unavailable(
                    f"no service uses {settings.data_dir}, and the one at {address} has another data directory, so "
                    f"nothing was changed; start yours with `scamp serve`, or use that one with --address {address}"
                )
    client = Client(address, token=token or None)
    atexit.register(client.close)
    return client


def _without_service(settings: Settings, address: str, token: str) -> tuple[str, str]:
    """(address, token) of an API for this command alone, if there is a database that it can read."""
    from scamp_service.processes.brief_api import has_database, start_api  # with SQL, which most commands do not need

    if not has_database(settings):
        return address, token
    where = "the database" if settings.database_url else str(settings.data_dir)
    err.print(f"scamp: no service of yours runs; reading {where}", markup=False, soft_wrap=True, style="dim")
    return start_api(settings)
