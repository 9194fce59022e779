"""The command line of scamp-server: start a service, run one study locally, and all commands that ask a service."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scamp.cli.following import CHECKING, conclude, live, tail, warn
from scamp.cli.main import CommandLine
from scamp.cli.main import app as asking
from scamp.cli.main import run as run_app
from scamp.cli.terminal import AsJson, Changes, StudyFile, WorkingDir, err, out
from scamp_service.cli.estimating import app as estimating
from scamp_service.cli.importing import app as importing
from scamp_service.cli.planning import app as planning
from scamp_service.cli.simulating import app as simulating
from scamp_service.cli.terminal import DataDir, measure_once, settings_of
from scamp_service.cli.upkeep import app as upkeep

if TYPE_CHECKING:
    from scamp_service.processes.supervise import Service
    from scamp_service.settings import Settings

DEMO = Path(__file__).with_name("demo.yaml")

app = typer.Typer(
    cls=CommandLine,
    help=asking.info.help,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line with all its commands, and exit."""
    run_app(app)


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
def demo(study: Annotated[Path, typer.Argument(help="a study in YAML")] = DEMO) -> None:
    """Start a service, run the demo study, print its leaderboard and keep serving, as `make run` does.

    In a terminal it first measures the speed of this machine, unless that is known or there are GPUs.
    """
    from scamp.client import Client
    from scamp_service.cluster.devices.gpus import inventory
    from scamp_service.study.parse import read_study

    spec, settings = read_study(study), settings_of()
    if not settings.ray_address and not inventory(settings.rehearsal_gpus):
        measure_once(settings)
    with _service(settings, next_port=True) as service:
        client = Client(service.url, token=service.settings.api_token or None)
        created = client.submit(spec.as_given())
        out.print(f"study {created['id']} ({spec.name}): {service.url}/studies/{created['id']}", markup=False)
        tail(client, created["id"], between=service.watch)
        out.print(f"\nstill serving at {service.url}  (Ctrl-C to stop)")
        _keep(service)


@app.command(name="webhook-secret")
def webhook_secret(data_dir: DataDir = None) -> None:
    """Print the secret that signs webhooks, for their receivers to check that they come from here."""
    from scamp_service.store.store import Store

    settings = settings_of(data_dir=data_dir)
    store = Store(settings.url)
    print(store.deliveries.begin()[1])
    store.close()


@app.command(hidden=True)
def controller() -> None:
    """Run the controller process of a service; `serve` starts it."""
    import logging

    from scamp_service.processes.controller_process import serve_controller
    from scamp_service.settings import settings_of_process

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    serve_controller(settings_of_process())


@contextmanager
def _service(settings: Settings, *, next_port: bool = False) -> Iterator[Service]:
    import signal

    from scamp.addresses import remembered_port
    from scamp_service.files import close_new_files
    from scamp_service.processes.supervise import Service  # with SQL, which most commands do not need
    from scamp_service.settings import withhold_secrets

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
    from scamp.user_code.provenance import provenance
    from scamp_service.files import close_new_files
    from scamp_service.processes.controller_process import ray_address_of_environment, run_study
    from scamp_service.settings import withhold_secrets
    from scamp_service.sizing.candidates import code_of
    from scamp_service.sizing.submission_check import check_workload
    from scamp_service.sizing.user_workload import with_space
    from scamp_service.store.fields import trial_fields
    from scamp_service.store.summary import device_fill, study_summary
    from scamp_service.study.parse import changed_study, read_study

    spec = changed_study(read_study(study), changes or ())
    code = code_of(study, spec, working_dir)
    settings = settings_of(data_dir=data_dir, ray_address=ray_address or ray_address_of_environment())
    close_new_files()
    withhold_secrets()  # before any code of the study is imported
    with err.status(CHECKING):
        spec = with_space(spec, code)
        warnings = check_workload(spec, code)
    warn(warnings)
    spec_json = spec.to_json()
    with live(quiet=as_json or not out.is_terminal) as update:

        def watch(store: Any, study_id: int) -> None:
            summary = study_summary(store, study_id, now=time.time())
            update(summary.to_json(), spec_json, device_fill(store))

        store, study_id = run_study(
            settings, spec, code, watch, warnings=warnings, provenance=provenance(working_dir or study.parent)
        )
    summary = study_summary(store, study_id, now=time.time()).to_json()
    rows = [trial_fields(trial, spec.every_objective) for trial in store.trials.every(study_id)]
    reason = store.studies.get(study_id).reason
    store.close()
    if not conclude(summary, rows, spec_json, as_json, reason, _command(settings)):
        raise typer.Exit(1)


def _command(settings: Settings) -> str:
    """The command ``scamp`` with the data directory of ``settings``."""
    is_usual = settings.data_dir == settings_of().data_dir
    return "scamp" if is_usual else f"SCAMP_DATA_DIR={shlex.quote(str(settings.data_dir))} scamp"


for commands in (asking, estimating, planning, simulating, importing, upkeep):
    app.add_typer(commands)
