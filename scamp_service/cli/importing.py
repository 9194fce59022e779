"""The command that brings studies in from other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from scamp.cli.terminal import out
from scamp_service.cli.terminal import DataDir, settings_of
from scamp_service.errors import InvalidInput

app = typer.Typer()


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
        studies = list(read_optuna(source, study_name))
    elif not Path(source).is_dir():
        raise InvalidInput(f"{source} is neither a folder nor a database's URL, such as sqlite:////home/me/optuna.db")
    elif metric is None:
        raise InvalidInput("name the metric of the experiment with --metric, and with --mode whether more is better")
    else:
        studies = [read_tune(Path(source).absolute(), metric, mode)]
    store = Store(settings_of(data_dir=data_dir).url)
    try:
        for imported in studies:
            study_id = store_study(store, imported)
            out.print(f"study {study_id}: {imported.name}, {len(imported.trials)} trials", markup=False)
    finally:
        store.close()
