"""Commands that look at what a service does now: all studies with the devices, and one trial with all that is known."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
import typer.completion
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scamp.cli.progress import COLOURS, device_bars, without_devices
from scamp.cli.service import Address, StudyId, Token, client_of
from scamp.cli.terminal import AsJson, out, plain, whole_number
from scamp.shown import duration, shown_metric, shown_mib, shown_value

app = typer.Typer()

MOST_STUDIES = 20
MOST_WAITING = 5
Json = Mapping[str, Any]


@app.command()
def top(
    once: Annotated[bool, typer.Option("--once", help="show it once; without a terminal this is the default")] = False,
    address: Address = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Show the studies that run, the gangs on each device, and what the first trials wait for, until Ctrl-C."""
    client = client_of(address, token)

    def seen() -> tuple[Sequence[Json], Json]:
        return list(client.studies(live=True)), client.cluster()

    if as_json:
        studies, cluster = seen()
        print(json.dumps({"studies": studies, "cluster": cluster}))
        return
    if once or not out.is_terminal:
        out.print(overview(*seen()))
        return
    from rich.live import Live

    with Live(console=out, auto_refresh=False, screen=True) as block:
        while True:
            block.update(overview(*seen()), refresh=True)
            time.sleep(1.0)


def overview(studies: Sequence[Json], cluster: Json) -> RenderableType:
    """The live studies in a table, a bar of reserved MiB for each device, and what the first trials wait for."""
    table = Table("study", "", "state", "trials", "best", "device-hours", box=None, header_style="dim", pad_edge=False)
    for study in studies[-MOST_STUDIES:]:
        table.add_row(
            str(study["id"]),
            plain(study["name"]),
            study["state_text"].lower(),
            _states(study["trials"]),
            _best(study),
            f"{study['device_seconds'] / 3600:.3g}",
        )
    first = Text("no study runs", "dim") if not studies else table
    if why := without_devices(cluster):
        return Group(first, Text(why, "dim"))
    parts: list[RenderableType] = [first, Text(), device_bars(cluster["devices"], None)]
    waiting = cluster["waiting"]
    blocked = Counter(trial["blocked"] or "about to start" for trial in waiting)
    if waiting:
        kinds = ", ".join(f"{count} {kind}" for kind, count in blocked.most_common())
        parts += [Text(), Text(f"{len(waiting)} trials wait: {kinds}")]
    for trial in waiting[:MOST_WAITING]:
        parts.append(Text(f"  study {trial['study_id']} #{trial['number']}: {plain(trial['reason'])}", "dim"))
    return Group(*parts)


@app.command()
def show(
    study: StudyId,
    trial: Annotated[int, typer.Argument(help="the trial's number", parser=whole_number, metavar="TRIAL")],
    address: Address = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Show one trial: its parameters, plan and reasons, attempts with memory and step times, and metrics."""
    client = client_of(address, token)
    view = client.trial(study, trial)
    metrics = list(client.metrics(study, trial))
    if as_json:
        timeline = client.timeline(study, trial)
        print(json.dumps({**view, "evaluations": metrics, "timeline": timeline}))
        return
    out.print(trial_block(view, metrics))


def trial_block(trial: Json, metrics: Sequence[Json]) -> RenderableType:
    """All that is known about a trial, in lines."""
    heads: list[tuple[str, str]] = [
        ("state", f"{trial['state'].lower()}: {trial['reason']}" if trial["reason"] else trial["state"].lower()),
        ("value", _value(trial)),
        ("parameters", " ".join(f"{name}={shown_value(value)}" for name, value in trial["params"].items())),
        ("proposed", trial["proposal_reason"]),
        ("plan", trial["plan_reason"] or trial["plan_text"]),
    ]
    if trial["parent_number"] is not None:
        heads.insert(1, ("of", f"trial {trial['parent_number']} ({trial['origin'].lower()})"))
    facts = Table.grid(padding=(0, 2))
    for name, words in heads:
        if words:
            facts.add_row(Text(name, "dim"), Text(plain(words), COLOURS.get(trial["state"], "") * (name == "state")))
    attempts = Table(
        "attempt", "plan", "devices", "MiB pred/meas", "ms/step pred/meas", "end", box=None, header_style="dim"
    )
    for attempt in trial["attempts"]:
        attempts.add_row(
            str(attempt["attempt"]),
            attempt["plan_short"],
            ", ".join(attempt["devices"]),
            f"{shown_mib(attempt['expected_bytes'])}/{shown_mib(attempt['measured_bytes'])}",
            "/".join(
                "–" if seconds is None else f"{1000 * seconds:.3g}"
                for seconds in (attempt["predicted_step_seconds"], attempt["measured_step_seconds"])
            ),
            plain(" ".join(filter(None, (attempt["outcome"], attempt["detail"].partition("\n")[0])))),
        )
    parts: list[RenderableType] = [facts]
    if trial["attempts"]:
        parts += [Text(), attempts]
    for attempt in trial["attempts"]:
        if "\n" in attempt["detail"]:  # such as a traceback
            detail = "\n".join(map(plain, attempt["detail"].splitlines()))
            parts += [Text(), Text(f"attempt {attempt['attempt']}", "dim"), Text(detail)]
    if metrics:
        names = list(metrics[-1]["values"])
        curve = Table("step", *map(plain, names), box=None, header_style="dim")
        for row in metrics[-10:]:
            values = (row["values"].get(name) for name in names)
            cells = (
                "–" if value is None else shown_metric(name, value) for name, value in zip(names, values, strict=True)
            )
            curve.add_row(str(row["step"]), *cells)
        parts += [Text(), curve]
    if trial["started_at"] and trial["finished_at"]:
        parts.append(Text(f"ran for {duration(trial['finished_at'] - trial['started_at'])}", "dim"))
    return Group(*parts)


def _value(trial: Json) -> str:
    if trial["value"] is None:
        return ""
    spread = next((f" ± {each:.2g} over {len(trial['repeats'])} seeds" for each in trial["deviations"] if each), "")
    step = trial["best_step"] or trial["step"]
    return f"{shown_metric('', trial['value'])}{spread}{f' at step {step}' if step > 0 else ''}"


def _states(counts: Mapping[str, int]) -> Text:
    line = Text()
    for state, colour in COLOURS.items():
        if counts.get(state):
            line.append(f"{counts[state]} {state.lower()} ", style=colour)
    return line


def _best(study: Json) -> str:
    best, metric = study["best"], study["spec"]["objective"]["metric"]
    return "–" if best is None else f"{plain(metric)} {shown_metric(metric, best['value'])}"


@app.command()
def compare(
    studies: Annotated[list[int], typer.Argument(help="numbers of studies", parser=whole_number, metavar="STUDY…")],
    address: Address = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Compare studies: best values, what they cost, how much parameters matter, and in which options they differ."""
    client = client_of(address, token)
    views, differences = [client.study(study) for study in studies], client.differences(*studies)
    shares = [{item["name"]: item["share"] for item in client.importances(study)["items"]} for study in studies]
    if as_json:
        print(json.dumps({"studies": views, "differences": differences, "importances": shares}))
        return
    table = Table("", *(f"study {study}" for study in studies), box=None, header_style="dim", pad_edge=False)
    table.add_row("name", *(plain(view["name"]) for view in views))
    table.add_row("best", *(_best(view) for view in views))
    table.add_row("trials", *(_states(view["trials"]) for view in views))
    table.add_row("device-hours", *(f"{view['device_seconds'] / 3600:.3g}" for view in views))
    for name in dict.fromkeys(name for each in shares for name in each):
        table.add_row(
            f"importance of {plain(name)}", *(f"{each[name]:.0%}" if name in each else "–" for each in shares)
        )
    for name, values in differences.items():
        table.add_row(plain(name), *(plain(shown_value(value)) for value in values))
    out.print(table)


@app.command()
def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish")],
) -> None:
    """Print the script that completes commands and options; for bash: eval "$(scamp completion bash)"."""
    script = typer.completion.get_completion_script  # type: ignore[attr-defined]
    print(script(prog_name="scamp", complete_var="_SCAMP_COMPLETE", shell=shell))
