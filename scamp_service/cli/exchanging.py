"""Commands that bring studies in from other tools and take their trials out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from scamp_service.cli.service import Address, StudyId, Token, client_of
from scamp_service.cli.terminal import DataDir, out, settings_of
from scamp_service.errors import InvalidInput

app = typer.Typer()


@app.command()
def export(
    study: StudyId,
    format: Annotated[Literal["csv", "jsonl", "parquet"], typer.Option(help="file format")] = "csv",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="file to write; default: print")] = None,
    address: Address = "",
    token: Token = "",
) -> None:
    """Write the trials of a study as CSV, JSON lines or Parquet: a row for each, a column for each parameter."""
    from scamp_service.exchange.export import Format, write_parquet, write_text

    client = client_of(address, token)
    client.study(study)  # an unknown study has no trials either
    trials = client.trials(study)
    if format == "parquet":
        if output is None:
            raise InvalidInput("Parquet is not text: name a file with --output")
        write_parquet(trials, output)
    elif output is None:
        write_text(trials, Format(format), sys.stdout)
    else:
        with output.open("w", encoding="utf-8", newline="") as stream:
            write_text(trials, Format(format), stream)


@app.command(name="import")
def import_study(
    source: Annotated[
        str, typer.Argument(help="URL of an Optuna database, or a results folder of Ray Tune", metavar="SOURCE")
    ],
    study_name: Annotated[str | None, typer.Option(help="only this study of an Optuna database")] = None,
    metric: Annotated[str | None, typer.Option(help="metric of a Ray Tune experiment")] = None,
    mode: Annotated[Literal["min", "max"], typer.Option(help="whether its metric is minimized or maximized")] = "min",
    data_dir: DataDir = None,
) -> None:
    """Store a finished study of Optuna or Ray Tune in the study database of this machine. No code is run."""
    from scamp_service.exchange.from_optuna import read_optuna
    from scamp_service.exchange.from_tune import read_tune
    from scamp_service.exchange.imported import store_study
    from scamp_service.store.store import Store

    if "://" in source:
        found = list(read_optuna(source, study_name))
    elif metric is None:
        raise InvalidInput("name the metric of the experiment with --metric, and with --mode whether more is better")
    else:
        found = [read_tune(Path(source).absolute(), metric, mode)]
    store = Store(settings_of(data_dir=data_dir).url)
    try:
        for imported in found:
            study_id = store_study(store, imported)
            out.print(f"study {study_id}: {imported.name}, {len(imported.trials)} trials", markup=False)
    finally:
        store.close()
