"""Commands that take the trials of a study out, and change what a study is to try."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from scamp.cli.service import Address, SomeTrials, StudyId, Token, client_of
from scamp.cli.terminal import Changes, out, params_of, utf8_file, whole_number
from scamp.errors import InvalidInput

app = typer.Typer()


@app.command()
def export(
    study: StudyId,
    file_format: Annotated[
        Literal["csv", "jsonl", "parquet"] | None,
        typer.Option("--format", help="file format; default: what the name of the file ends with; printed: csv"),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="file to write; default: print")] = None,
    address: Address = "",
    token: Token = "",
) -> None:
    """Write the trials of a study as CSV, JSON lines or Parquet: a row for each, a column for each parameter."""
    client = client_of(address, token)
    if output is not None:
        client.download_trials(study, output, file_format)
        out.print(f"wrote {output}", markup=False, soft_wrap=True)
        return
    if file_format == "parquet":
        raise InvalidInput("Parquet is not text: name a file with --output")
    with utf8_file(None) as stream:
        stream.writelines(client.trials_text(study, file_format or "csv"))


@app.command()
def enqueue(
    study: StudyId,
    params: Annotated[list[str], typer.Argument(help="parameters of the candidate", metavar="NAME=VALUE…")],
    value: Annotated[
        list[float] | None,
        typer.Option(help="its result, measured elsewhere: it is not trained; repeatable, for several objectives"),
    ] = None,
    address: Address = "",
    token: Token = "",
) -> None:
    """Try a candidate in addition to a study's budget; a completed study runs again. Parameters that are left out are
    random."""
    client = client_of(address, token, to_change=True)
    numbers = client.enqueue(study, params_of(params, "each parameter"), values=[value] if value else None)
    out.print(f"trial {numbers[0]} of study {study} {'is completed' if value else 'waits for its plan'}")


@app.command()
def clone(
    study: StudyId,
    changes: Changes = None,
    name: Annotated[str | None, typer.Option(help="name of the new study; default: the same")] = None,
    changed: Annotated[
        Path | None,
        typer.Option("--file", metavar="STUDY.yaml", help="the changed study, begun with `scamp status STUDY --yaml`"),
    ] = None,
    address: Address = "",
    token: Token = "",
) -> None:
    """Submit a study again, with the same files, with changes, or as another study file says."""
    from scamp.study_file import changed as with_changes
    from scamp.study_file import load, read_study

    client = client_of(address, token, to_change=True)
    spec = None
    if changed is not None or changes:
        former = load(client.study_file(study)) if changed is None else read_study(changed)
        spec = with_changes(former, changes or ())
    created = client.clone(study, name=name, spec=spec)
    out.print(f"study {created['id']}: {client.address}/studies/{created['id']}")


@app.command()
def extend(
    study: StudyId,
    trials: Annotated[int | None, typer.Option(help="number of trials in all", min=1)] = None,
    seconds: Annotated[float | None, typer.Option(help="seconds that it may run, in all")] = None,
    device_hours: Annotated[float | None, typer.Option(help="hours × devices in all")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="value at which it ends; METRIC=VALUE, repeated, with several objectives")
    ] = None,
    max_concurrent: Annotated[int | None, typer.Option(help="trials that may run at once", min=1)] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="a limit that it loses: seconds, device_hours, target, terminator or max_concurrent"),
    ] = None,
    address: Address = "",
    token: Token = "",
) -> None:
    """Change limits of a study's budget. A completed study runs again, with the trials that its limit has cancelled."""
    changes = {
        "trials": trials,
        "seconds": seconds,
        "device_hours": device_hours,
        "target": _target_of(target or []),
        "max_concurrent": max_concurrent,
    }
    limits = {name: limit for name, limit in changes.items() if limit is not None}
    if not limits and not drop:
        raise InvalidInput("name a limit, such as --trials, --seconds, --device-hours, --target or --drop target")
    view = client_of(address, token, to_change=True).extend(study, drop=drop or [], **limits)
    out.print(f"study {study} is {view['state'].lower()}")


@app.command(context_settings={"ignore_unknown_options": True})  # otherwise -5 would be taken for an option
def prioritize(
    study: StudyId,
    priority: Annotated[int, typer.Argument(help="from -100 to 100, or to the largest of its project")],
    trial: Annotated[list[int] | None, typer.Option(help="only the trial with this number; repeatable", min=0)] = None,
    address: Address = "",
    token: Token = "",
) -> None:
    """Give a study, or some of its trials, another priority. Trials of a higher one start first."""
    client = client_of(address, token, to_change=True)
    for number in trial or ():
        client.change_trial(study, number, priority=priority)
        out.print(f"trial {number} of study {study} has priority {priority} among those of its study")
    if not trial:
        view = client.prioritize(study, priority)
        out.print(f"study {study} has priority {view['spec']['priority']}")


@app.command()
def pause(study: StudyId, trials: SomeTrials = None, address: Address = "", token: Token = "") -> None:
    """Pause a study, or some of its trials: they stop, keep their last checkpoints, and wait until they are resumed."""
    client = client_of(address, token, to_change=True)
    for number in trials or ():
        client.change_trial(study, number, paused=True)
        out.print(f"trial {number} of study {study} is paused; `scamp resume {study} {number}` lets it continue")
    if not trials:
        client.pause(study)
        out.print(f"study {study} is paused; `scamp resume {study}` lets it continue")


@app.command()
def resume(study: StudyId, trials: SomeTrials = None, address: Address = "", token: Token = "") -> None:
    """Resume a paused study, or paused trials: they continue from their last checkpoints, as devices are free."""
    client = client_of(address, token, to_change=True)
    for number in trials or ():
        client.change_trial(study, number, paused=False)
        out.print(f"trial {number} of study {study} continues")
    if not trials:
        client.resume(study)
        out.print(f"study {study} continues")


@app.command()
def retry(
    study: StudyId,
    trials: Annotated[
        list[int] | None,
        typer.Argument(help="numbers of failed trials; default: all", metavar="[TRIAL]…", parser=whole_number),
    ] = None,
    address: Address = "",
    token: Token = "",
) -> None:
    """Plan and run failed trials again, from their last checkpoints. A study that has ended runs again."""
    numbers = client_of(address, token, to_change=True).retry(study, *(trials or ()))
    names = ", ".join(map(str, numbers))
    out.print(f"trials that run again: {names}" if numbers else f"no trial of study {study} has failed")


def _target_of(values: list[str]) -> Any:
    """A number, or a mapping from metrics to numbers; None without values. Raises ``InvalidInput``."""
    if any("=" in value for value in values):
        return params_of(values, "--target")
    try:
        return float(values[-1]) if values else None
    except ValueError:
        words = "--target wants a number, or METRIC=VALUE with several objectives"
        raise InvalidInput(f"{words}; got {values[-1]!r}") from None
