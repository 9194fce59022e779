"""The command line: start a service, run one study locally, and use a running service.

A user's mistake prints one line on stderr and exits with code 2; a study that fails exits with code 1.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live

from scamp_service.cli import interrupts
from scamp_service.cli.estimating import app as estimating
from scamp_service.cli.exchanging import app as exchanging
from scamp_service.cli.planning import app as planning
from scamp_service.cli.progress import (
    EXPLAINED,
    closing_line,
    leaderboard,
    listed_line,
    live_view,
    next_line,
    reasons,
    without_devices,
)
from scamp_service.cli.service import Address, StudyId, Token, client_of
from scamp_service.cli.simulating import app as simulating
from scamp_service.cli.terminal import (
    AsJson,
    Changes,
    DataDir,
    StudyFile,
    WorkingDir,
    err,
    escape_what_cannot_be_shown,
    measure_once,
    out,
    settings_of,
    utf8_file,
    whole_number,
)
from scamp_service.cli.trial_files import app as trial_files
from scamp_service.client import Client
from scamp_service.errors import ScampError
from scamp_service.files import close_new_files
from scamp_service.processes.addresses import remembered_port
from scamp_service.settings import ROOT, Settings, settings_of_process, withhold_secrets
from scamp_service.study.objective import shown_metric

if TYPE_CHECKING:
    from scamp_service.processes.supervise import Service
    from scamp_service.study.spec import StudySpec

CHECKING = "checking the study and its files …"

app = typer.Typer(help="ScaMP tunes models that may not fit on one GPU.", no_args_is_help=True, add_completion=False,
                  pretty_exceptions_enable=False)  # fmt: skip
app.add_typer(estimating)
app.add_typer(planning)
app.add_typer(simulating)
app.add_typer(exchanging)
app.add_typer(trial_files)


def main() -> None:
    """Run the command line and exit: 0 success, 1 a failed study, 2 a user's mistake, 130 interrupted."""
    escape_what_cannot_be_shown()
    try:
        interrupts.raise_on_interrupt()
        # It returns the code of a command's typer.Exit, also of an interrupt; None means success.
        if (code := app(prog_name="scamp", standalone_mode=False)) == interrupts.EXIT_CODE:
            raise KeyboardInterrupt
        sys.exit(code)
    except (typer.Abort, KeyboardInterrupt) as reason:
        interrupts.end_silently()
        err.print("scamp: aborted" if isinstance(reason, typer.Abort) else "scamp: interrupted")
        sys.exit(interrupts.EXIT_CODE)
    except ScampError as error:
        err.print(f"scamp: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
    except Exception as error:
        if hasattr(error, "format_message"):  # a mistake in the arguments
            err.print(f"scamp: {error.format_message()}", markup=False, soft_wrap=True)
            sys.exit(2)
        raise


# --- the service --------------------------------------------------------------------------------------------------


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="address to listen on")] = None,
    port: Annotated[int | None, typer.Option(help="port to listen on; default: 8100, or the next free one")] = None,
    data_dir: DataDir = None,
    ray_address: Annotated[str | None, typer.Option(help="an existing Ray cluster; default: start a local one")] = None,
) -> None:
    """Start the API, the dashboard, the controller and a local Ray cluster, and run until Ctrl-C."""
    with _service(settings_of(host=host, port=port, data_dir=data_dir, ray_address=ray_address)) as service:
        _keep(service)


@app.command()
def demo(study: Annotated[Path, typer.Argument(help="a study in YAML")] = ROOT / "examples" / "digits.yaml") -> None:
    """Start a service, run the demo study, print its leaderboard and keep serving, as `make run` does.

    In a terminal it first measures the speed of this machine, unless that is known or there are GPUs.
    """
    from scamp_service.cluster.devices.gpus import inventory
    from scamp_service.study.parse import read_study

    spec, settings = read_study(study), settings_of()
    if not settings.ray_address and not inventory():
        measure_once(settings)
    with _service(settings, next_port=True) as service:
        client = Client(service.url, token=service.settings.api_token or None)
        created = client.submit(spec.as_given())
        out.print(f"study {created['id']} ({spec.name}): {service.url}/studies/{created['id']}", markup=False)
        _tail(client, created["id"], spec, between=service.watch)
        out.print(f"\nstill serving at {service.url}  (Ctrl-C to stop)")
        _keep(service)


@app.command(hidden=True)
def controller() -> None:
    """Run the controller process of a service; `serve` starts it."""
    import logging

    from scamp_service.processes.controller_process import serve_controller

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    serve_controller(settings_of_process())


@contextmanager
def _service(settings: Settings, *, next_port: bool = False) -> Iterator[Service]:
    import signal

    from scamp_service.processes.supervise import Service  # with SQL, which most commands do not need

    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: a shell's background jobs start with it ignored
        signal.signal(number, _interrupt)
    began = time.monotonic()
    close_new_files()
    withhold_secrets()
    chosen = "port" in settings.model_fields_set
    port = settings.port if chosen else remembered_port(settings.data_dir) or settings.port
    with Service(settings, next_port=next_port) as service:
        if service.settings.port != port:
            out.print(f"port {port} is taken; using {service.settings.port}")
        out.print(f"ScaMP is at [bold]{service.url}[/]  ({time.monotonic() - began:.1f} s)", markup=True)
        try:
            yield service
        except KeyboardInterrupt:
            out.print("\nstopping …")


_signals: list[int] = []


def _interrupt(number: int, frame: Any) -> None:
    _signals.append(number)
    raise KeyboardInterrupt


def _keep(service: Service) -> None:
    """Keep the service running until a signal asks it to stop."""
    while not _signals:  # Python discards a KeyboardInterrupt that is raised in some callbacks, such as of imports
        service.watch()
        time.sleep(0.5)
    raise KeyboardInterrupt


# --- one study, here ----------------------------------------------------------------------------------------------


@app.command()
def run(
    study: StudyFile,
    changes: Changes = None,
    as_json: AsJson = False,
    working_dir: WorkingDir = None,
    data_dir: DataDir = None,
    ray_address: Annotated[str | None, typer.Option(help="an existing Ray cluster; default: start a local one")] = None,
) -> None:
    """Run one study to its end, without a server. Exits with 0 when it succeeds, 1 when it fails.

    A study that completes without a completed trial counts as failed.
    """
    from scamp_service.processes.controller_process import ray_address_of_environment, run_study
    from scamp_service.sizing.candidates import code_of
    from scamp_service.sizing.submission_check import check_workload
    from scamp_service.sizing.user_workload import with_space
    from scamp_service.store.fields import trial_fields
    from scamp_service.store.summary import all_trials, device_fill, study_summary
    from scamp_service.study.parse import changed_study, read_study

    spec = changed_study(read_study(study), changes or ())
    code = code_of(study, spec, working_dir)
    settings = settings_of(data_dir=data_dir, ray_address=ray_address or ray_address_of_environment())
    close_new_files()
    withhold_secrets()  # before any code of the study is imported
    with err.status(CHECKING):
        spec = with_space(spec, code)
        warnings = check_workload(spec, code)
    _warn(warnings)
    spec_json = spec.to_json()
    with _live(quiet=as_json or not out.is_terminal) as update:

        def watch(store: Any, study_id: int) -> None:
            summary = study_summary(store, study_id, now=time.time())
            update(summary.to_json(), spec_json, device_fill(store))

        store, study_id = run_study(settings, spec, code, watch, warnings=warnings)
    summary = study_summary(store, study_id, now=time.time()).to_json()
    rows = [trial_fields(trial, spec.every_objective) for trial in all_trials(store, study_id)]
    reason = store.study(study_id).reason
    store.close()
    if not _conclude(summary, rows, spec, as_json, reason, _command(settings)):
        raise typer.Exit(1)


def _command(settings: Settings) -> str:
    """The command ``scamp`` with the data directory of ``settings``."""
    is_usual = settings.data_dir == settings_of().data_dir
    return "scamp" if is_usual else f"SCAMP_DATA_DIR={shlex.quote(str(settings.data_dir))} scamp"


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        err.print(f"scamp: warning: {warning}", markup=False, soft_wrap=True)


def _word_of(summary: Mapping[str, Any]) -> str:
    """The word before the reason for which a study ended, stops or failed."""
    return "ended" if summary["state"] == "COMPLETED" else "scamp"


def _conclude(
    summary: dict[str, Any],
    rows: list[dict[str, Any]],
    spec: StudySpec,
    as_json: bool,
    reason: str,
    scamp: str = "scamp",
) -> bool:
    """Print the result of a study, and what to do next by the command ``scamp``; returns whether it succeeded."""
    if not as_json:
        out.print(leaderboard(rows, spec.to_json()))
        out.print(closing_line(summary), markup=False, soft_wrap=True)
        out.print(next_line(summary, scamp), markup=False, soft_wrap=True)
    elif summary["no_success"]:
        for line in reasons(rows):
            err.print(line, soft_wrap=True)
    if reason:
        err.print(f"{_word_of(summary)}: {reason}", markup=False, soft_wrap=True)
    if as_json:
        print(json.dumps(summary))
    return summary["state"] == "COMPLETED" and not summary["no_success"]


# --- a running service --------------------------------------------------------------------------------------------


@app.command()
def submit(
    study: StudyFile,
    changes: Changes = None,
    address: Address = "",
    token: Token = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="follow the study to its end")] = True,
    working_dir: WorkingDir = None,
    as_json: AsJson = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="any unique text; a submission that is repeated with it creates only one study")
    ] = None,
) -> None:
    """Submit a study to a service, and follow it to its end."""
    from scamp_service.sizing.candidates import code_of
    from scamp_service.study.parse import changed_study, read_study

    spec = changed_study(read_study(study), changes or ())
    client = client_of(address, token, to_change=True)
    code = code_of(study, spec, working_dir)
    with err.status(CHECKING):
        created = client.submit(spec.as_given(), code=code, idempotency_key=idempotency_key)
    _warn(created["warnings"])
    if not as_json:
        out.print(f"study {created['id']}: {client.address}/studies/{created['id']}")
    if wait and not _tail(client, created["id"], spec, as_json=as_json):
        raise typer.Exit(1)
    if as_json and not wait:
        print(json.dumps(created))


@app.command(name="list")
def list_studies(address: Address = "", token: Token = "", as_json: AsJson = False) -> None:
    """List the studies of a service."""
    studies = list(client_of(address, token).studies())
    if as_json:
        print(json.dumps(studies))
        return
    width = max((len(study["state_text"]) for study in studies), default=0)
    for study in studies:
        out.print(listed_line(study, width), markup=False, soft_wrap=True)
    if not studies:
        out.print("there are no studies yet; `scamp submit STUDY.yaml` makes one")


@app.command()
def status(
    study: StudyId,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="print the study's file instead, to change and submit again")
    ] = False,
    address: Address = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Show the progress of one study in a few lines."""
    client = client_of(address, token)
    if as_yaml:
        with utf8_file(None) as stream:
            stream.write(client.study_file(study))
        return
    view = client.study(study)
    if as_json:
        print(json.dumps(view))
        return
    _warn(view["warnings"])
    out.print(live_view(view["summary"], view["spec"], client.cluster()))
    out.print(closing_line(view["summary"]), markup=False, soft_wrap=True)
    if view["summary"]["no_success"]:
        for line in reasons(client.trials(study)):
            out.print(line, soft_wrap=True)
    if view["reason"]:
        out.print(f"{_word_of(view['summary'])}: {view['reason']}", markup=False, soft_wrap=True)


@app.command()
def trials(study: StudyId, address: Address = "", token: Token = "", as_json: AsJson = False) -> None:
    """List the trials of a study, the best first."""
    client = client_of(address, token)
    spec = client.study(study)["spec"]
    rows = list(client.trials(study))
    if as_json:
        print(json.dumps(rows))
        return
    out.print(leaderboard(rows, spec, rows=len(rows)))


@app.command()
def importances(study: StudyId, address: Address = "", token: Token = "", as_json: AsJson = False) -> None:
    """Show how much each parameter matters to be among the best tenth of a study's trials."""
    answer = client_of(address, token).importances(study)
    if as_json:
        print(json.dumps(answer))
        return
    for item in answer["items"]:
        out.print(f"{item['share']:>5.0%}  {item['name']}", markup=False, soft_wrap=True)
    if not answer["items"]:
        words = "importances are known once 8 trials have a value and differ in at least one parameter"
        out.print(f"{words}; {answer['num_trials']} have one", soft_wrap=True)
    elif answer["is_rough"]:
        out.print(f"from {answer['num_trials']} trials: rough", soft_wrap=True)


@app.command()
def logs(
    study: StudyId,
    trial: Annotated[int, typer.Argument(help="the trial's number", parser=whole_number, metavar="TRIAL")],
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="keep printing new lines until the trial ends")
    ] = False,
    address: Address = "",
    token: Token = "",
) -> None:
    """Print the log of a trial and, on stderr, why it has failed or waits."""
    client = client_of(address, token)
    after = 0
    while True:
        page = client.logs(study, trial, after=after)
        for line in page:
            after = line["id"]
            out.print(f"{line['attempt']}.{line['rank']}  {line['text']}", markup=False, soft_wrap=True)
        if page:
            continue
        view = client.trial(study, trial)
        if not follow or view["finished_at"]:
            break
        time.sleep(0.5)
    if not after:
        err.print(f"trial {trial} of study {study} has printed nothing")
    if view["reason"] and view["state"] in EXPLAINED:
        err.print(f"{view['state'].lower()}: {view['reason']}", markup=False, soft_wrap=True)


@app.command()
def stop(study: StudyId, address: Address = "", token: Token = "") -> None:
    """Stop a study: trials that have not ended are cancelled, but what they reported is kept."""
    view = client_of(address, token, to_change=True).stop(study)
    out.print(f"study {study} is {view['state'].lower()}")


@app.command()
def delete(
    study: StudyId,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    address: Address = "",
    token: Token = "",
) -> None:
    """Delete a study that has ended, with its metrics, logs, events and checkpoints."""
    client = client_of(address, token, to_change=True)
    if not yes:
        view = client.study(study)
        num = sum(view["trials"].values())
        typer.confirm(
            f"Delete study {study} ({view['name']}) with its {num} trials? This cannot be undone.", abort=True
        )
    client.delete(study)
    out.print(f"study {study} is deleted")


# --- shared -------------------------------------------------------------------------------------------------------


def _tail(
    client: Client, study_id: int, spec: StudySpec, *, as_json: bool = False, between: Callable[[], None] = lambda: None
) -> bool:
    """Follow a study to its end and print its leaderboard; returns whether the study succeeded."""
    with _live(quiet=as_json or not out.is_terminal) as update:
        while True:
            view = client.study(study_id)
            update(view["summary"], view["spec"], client.cluster())
            if view["finished_at"]:
                break
            between()
            time.sleep(0.3)
    return _conclude(view["summary"], list(client.trials(study_id)), spec, as_json, view["reason"])


@contextmanager
def _live(quiet: bool) -> Iterator[Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], None]]:
    """Show progress: a block redrawn in place on a terminal, otherwise a line each time a trial's state changes, or why
    nothing can run."""
    if not quiet:
        with Live(console=out, auto_refresh=False, transient=True) as live:
            yield lambda summary, spec, cluster: live.update(live_view(summary, spec, cluster), refresh=True)
        return
    shown: tuple[dict[str, int], str] = {}, ""

    def line(summary: dict[str, Any], spec: dict[str, Any], cluster: dict[str, Any]) -> None:
        nonlocal shown
        metric = spec["objective"]["metric"]
        news = summary["trials"], without_devices(cluster)
        if news != shown:
            shown = news
            counts, why = news
            best = summary["best"]
            states = ", ".join(f"{count} {state.lower()}" for state, count in counts.items())
            words = [states or "starting", f"best {metric} {shown_metric(metric, best['value'])}" if best else "", why]
            err.print("; ".join(filter(None, words)), markup=False, soft_wrap=True)

    yield line
