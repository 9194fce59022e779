"""The command that says what more devices would change for the queue of a service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from scamp.cli.service import Address, Token, client_of
from scamp.cli.terminal import AsJson, out, plain
from scamp.shown import duration

app = typer.Typer()


@app.command(name="what-if")
def what_if(
    add: Annotated[
        str, typer.Argument(help="devices to add: [NODESx]DEVICESxKIND, joined with commas", metavar="8xA100-40")
    ],
    address: Address = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Say when a service's queue would be done with more devices, and what it would take.

    The queue is simulated as it is now, with the trials that its studies have
    yet to propose. Every trial counts as trained to its end.
    """
    answer = client_of(address, token).what_if(add)
    if as_json:
        print(json.dumps(answer))
        return
    out.print(what_if_table(answer))
    for count, words in (
        (answer["num_unknown"], "are left out: nobody knows yet how long they take"),
        (answer["num_more"], "are left out: there are too many"),
    ):
        if count:
            out.print(f"{count} trials {words}", style="dim", soft_wrap=True)


def what_if_table(answer: Mapping[str, Any]) -> Table:
    """The answer of ``GET /v1/cluster/what-if``: a row for each figure, now and with the added devices."""
    added = " + ".join(f"{count} × {kind}" for kind, count in answer["added"].items())
    table = Table("", "now", plain(f"with {added}"), box=None, pad_edge=False)
    both = answer["now"], answer["then"]
    table.add_row("all done in", *(duration(forecast["makespan_seconds"]) for forecast in both))
    table.add_row("device-hours", *(f"{forecast['device_hours']:.3g}" for forecast in both))
    for kind in sorted({kind for forecast in both for kind in forecast["device_hours_by_kind"]}):
        hours = (forecast["device_hours_by_kind"].get(kind, 0.0) for forecast in both)
        table.add_row(plain(f"  on {kind}"), *(f"{hour:.3g}" for hour in hours))
    table.add_row("trials", *(str(forecast["num_trials"]) for forecast in both))
    table.add_row("that fit nowhere", *(str(forecast["num_never"]) for forecast in both))
    return table
