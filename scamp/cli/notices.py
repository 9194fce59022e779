"""The command that shows who was told what, and tests it."""

from __future__ import annotations

import json
import time
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scamp.cli.service import Address, Token, client_of
from scamp.cli.terminal import AsJson, err, out, whole_number

if TYPE_CHECKING:
    from scamp.client import Client

SHOWN = 50
TEST_SECONDS = 30.0
"""How long a test may take: an attempt takes 10 s at most, and a controller may just be starting."""
app = typer.Typer()


@app.command()
def deliveries(
    study: Annotated[
        int | None,
        typer.Argument(help="only those about this study", parser=whole_number, metavar="[STUDY]", show_default=False),
    ] = None,
    test: Annotated[
        bool, typer.Option("--test", help="send a test to each receiver of the study, or of SCAMP_NOTIFY, and wait")
    ] = False,
    address: Address = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Show who was told what by webhook or e-mail, and what came of it, the newest last; a failed test exits with 1."""
    client = client_of(address, token, to_change=test)
    rows = _tested(client, study) if test else list(islice(client.deliveries(study), SHOWN))[::-1]
    if as_json:
        print(json.dumps(rows))
    for row in () if as_json else rows:
        out.print(delivery_line(row), markup=False, soft_wrap=True)
    if not rows and not as_json:
        out.print("nobody was told anything yet; `notify` of a study or SCAMP_NOTIFY names receivers", soft_wrap=True)
    if test and any(row["state"] != "DELIVERED" for row in rows):
        if any(row["state"] == "WAITING" for row in rows):
            err.print("a test was not sent: the controller does not run, so run `scamp serve`", soft_wrap=True)
        raise typer.Exit(1)


def delivery_line(row: dict[str, Any]) -> str:
    """A delivery in one line: when it was due, to whom, what came of it, and what it says."""
    due = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["created_at"]))
    came = row["state"].lower().replace("_", " ")
    if row["answer"]:
        came += f" ({row['answer']}{'' if row['num_attempts'] == 1 else ', ' + str(row['num_attempts']) + ' attempts'})"
    if row["next_at"] and row["num_attempts"]:
        came += f", again at {time.strftime('%H:%M:%S', time.localtime(row['next_at']))}"
    return f"{due}  {row['kind']}  {row['to']}  {came}  {row['text']}"


def _tested(client: Client, study: int | None) -> list[dict[str, Any]]:
    """The tests, once they have ended or taken too long."""
    rows, deadline = client.test_receivers(study), time.monotonic() + TEST_SECONDS
    ids = {row["id"] for row in rows}
    while any(row["state"] == "WAITING" for row in rows) and time.monotonic() < deadline:
        time.sleep(0.5)
        rows = [row for row in islice(client.deliveries(study), 1000) if row["id"] in ids][::-1]
    return rows
