"""The command line: serve, run one study locally, and everything that one does with a running service.

Every mistake ends as one line on stderr and exit code 2; a study that fails, as exit code 1.
"""

from __future__ import annotations

import atexit
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from estimators.model import MIB, Plan
from scamp_service.client import Client
from scamp_service.errors import InvalidInput, ScampError
from scamp_service.progress import closing_line, leaderboard, live_view
from scamp_service.settings import Settings
from scamp_service.spec import StudySpec, parse_study
from scamp_service.subject import STUDY_SUFFIXES, code_of, read_study, subject
from scamp_service.supervise import ROOT, Service, running_server

if TYPE_CHECKING:
    from estimators.device_kind import DeviceKind
    from scamp_service.estimate import Estimator

app = typer.Typer(help="ScaMP tunes models that may not fit on one GPU.", no_args_is_help=True, add_completion=False,
                  pretty_exceptions_enable=False)  # fmt: skip
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

StudyFile = Annotated[Path, typer.Argument(help="a study in YAML", metavar="STUDY.yaml")]
StudyId = Annotated[int, typer.Argument(help="the study's number")]
Address = Annotated[
    str, typer.Option(help="URL of the service; default: the one that runs here", envvar="SCAMP_ADDRESS")
]
Token = Annotated[str, typer.Option(help="API token", envvar="SCAMP_API_TOKEN", show_envvar=True)]
AsJson = Annotated[bool, typer.Option("--json", help="machine-readable output")]
WorkingDir = Annotated[Path | None, typer.Option(help="send this folder along with the study's own workload file")]
DataDir = Annotated[Path | None, typer.Option(help="database, checkpoints and logs", envvar="SCAMP_DATA_DIR")]


def main() -> None:
    try:
        sys.exit(app(standalone_mode=False))  # what a command has ended with by typer.Exit; None: success
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
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
    port: Annotated[int | None, typer.Option(help="first port to try")] = None,
    data_dir: DataDir = None,
    ray_address: Annotated[str | None, typer.Option(help="an existing Ray cluster; default: start a local one")] = None,
) -> None:
    """Start the API, the dashboard, the controller and a local Ray; runs until Ctrl-C."""
    with _service(_settings(host=host, port=port, data_dir=data_dir, ray_address=ray_address)) as service:
        while True:
            time.sleep(0.5)
            service.watch()


@app.command()
def demo(study: Annotated[Path, typer.Argument()] = ROOT / "examples" / "digits.yaml") -> None:
    """What `make run` does: serve, run the demo study, show its leaderboard, keep serving."""
    spec = parse_study(read_study(study))
    with _service(_settings()) as service:
        client = Client(service.url, token=service.settings.api_token or None)
        created = client.submit(spec.to_json())
        out.print(f"study {created['id']} ({spec.name}): {service.url}/studies/{created['id']}")
        _tail(client, created["id"], spec, between=service.watch)
        out.print(f"\nstill serving {service.url}  (Ctrl-C ends it)")
        while True:
            time.sleep(0.5)
            service.watch()


@app.command(hidden=True)
def controller() -> None:
    """The controller process of a service; `serve` starts it."""
    import logging

    from scamp_service.local import serve_controller

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    serve_controller(Settings())


@contextmanager
def _service(settings: Settings) -> Iterator[Service]:
    import signal

    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: a shell's background jobs begin with it ignored
        signal.signal(number, signal.default_int_handler)
    began = time.monotonic()
    with Service(settings) as service:
        if service.settings.port != settings.port:
            out.print(f"port {settings.port} is taken; using {service.settings.port}")
        out.print(f"ScaMP is at [bold]{service.url}[/]  ({time.monotonic() - began:.1f} s)")
        try:
            yield service
        except KeyboardInterrupt:
            out.print("\nstopping …")


# --- one study, here ----------------------------------------------------------------------------------------------


@app.command()
def run(
    study: StudyFile,
    as_json: AsJson = False,
    working_dir: WorkingDir = None,
    data_dir: DataDir = None,
    ray_address: Annotated[str | None, typer.Option(help="an existing Ray cluster; default: start a local one")] = None,
) -> None:
    """Run one study to its end, without a server. Exit code 0 when it completes, 1 when it fails."""
    from scamp_service.admission import admit
    from scamp_service.local import ray_address_of_environment, run_study
    from scamp_service.summary import all_trials, device_fill, study_summary

    spec = parse_study(read_study(study))
    code = code_of(study, spec, working_dir)
    admit(spec, code)
    settings = _settings(data_dir=data_dir, ray_address=ray_address or ray_address_of_environment())
    with _live(quiet=as_json or not out.is_terminal) as update:

        def watch(store: Any, study_id: int) -> None:
            summary = study_summary(store, study_id, now=time.time())
            update(summary.to_json(), spec.objective.metric, device_fill(store))

        store, study_id = run_study(settings, spec, code, watch)
    summary = study_summary(store, study_id, now=time.time()).to_json()
    trials = [_as_row(trial) for trial in all_trials(store, study_id)]
    reason = store.study(study_id).reason
    store.close()
    if not _conclude(summary, trials, spec, as_json, reason):
        raise typer.Exit(1)


def _as_row(trial: Any) -> dict[str, Any]:
    from dataclasses import asdict

    from estimators.model import Plan

    return {**asdict(trial), "plan_text": str(Plan.from_json(trial.plan)) if trial.plan else ""}


def _conclude(
    summary: dict[str, Any], trials: list[dict[str, Any]], spec: StudySpec, as_json: bool, reason: str
) -> bool:
    if not as_json:
        out.print(leaderboard(trials, spec.to_json()))
        out.print(closing_line(summary), soft_wrap=True)
    if reason:
        err.print(f"scamp: {reason}", markup=False, soft_wrap=True)
    if as_json:
        print(json.dumps(summary))
    return summary["state"] == "COMPLETED" and bool(summary["trials"].get("COMPLETED"))


@app.command()
def estimate(
    what: Annotated[
        str, typer.Argument(help="a study, a built-in workload, FILE.py:Class, or MODULE:FUNC", metavar="WHAT")
    ],
    param: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, instead of the study's own; repeatable")] = None,
    candidates: Annotated[int, typer.Option(help="how many of the study's first candidates", min=1, max=1000)] = 1,
    device: Annotated[
        str | None, typer.Option(help="a kind of GPU, such as H100; default: virtual devices", metavar="KIND")
    ] = None,
    count: Annotated[int | None, typer.Option(help="number of devices", min=1)] = None,
    mib: Annotated[int | None, typer.Option(help="memory of one device, if not all that it has", min=1)] = None,
    expandable: Annotated[
        bool, typer.Option("--expandable-segments", help="as in PYTORCH_CUDA_ALLOC_CONF; with --device")
    ] = False,
    plan: Annotated[str | None, typer.Option(help="price this one alone, such as micro_batch=8,tp=2")] = None,
    units: Annotated[bool, typer.Option("--units", help="also what each block costs, and what is around them")] = False,
    working_dir: WorkingDir = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """What each plan of a candidate would need, by category, without running it: no service, no Ray, no device.

    Memory of one rank at its peak; `rc` is recompute, `gather` are sharded parameters made whole, `reserve` adds the
    margin for what no trace sees, and `max` is the largest micro-batch with which such a plan fits a device. A function
    returns (model, inputs[, loss[, optimizer]]) and needs no data: docs/estimate.md. After `scamp calibrate`, `sec` are
    those of an optimizer step on one virtual device that has a core of this machine for itself. With `--device`, `out`
    is memory outside of PyTorch's allocator, `least` the smallest device that would do, and `comm` the share of a step
    in which ranks wait for each other.
    """
    from scamp_service.estimate import Estimator, target
    from scamp_service.estimate_table import as_table, footnotes, headline, units_table
    from scamp_service.price import plan_of

    settings = _settings(data_dir=data_dir)
    if expandable and device is None:
        raise InvalidInput("--expandable-segments is about the allocator of GPUs: name one with --device")
    cluster, kind = target(settings, device, count, mib)
    given = plan_of(plan) if plan is not None else None
    wanted = subject(what, _params(param or []), candidates, working_dir)
    found = []
    with Estimator(wanted.workload, wanted.code, settings.data_dir / "profiles", kind, expandable) as estimator:
        if given is not None:
            _price(estimator, wanted.candidates, given, kind if device else None, as_json)
            return
        for params in wanted.candidates:
            with err.status("tracing …"):
                found.append(estimator.estimate(params, cluster))
            if not as_json:
                out.print(headline(found[-1]), style="bold", soft_wrap=True)
                if units:
                    out.print(units_table(found[-1]), "")
                out.print(as_table(found[-1]))
                out.print(f"→ {found[-1].choice.reason}\n", soft_wrap=True, markup=False)
    if not as_json:
        for line in footnotes(found[-1]):
            out.print(line, style="dim", soft_wrap=True, markup=False)
    if as_json:
        print(json.dumps([one.to_json() for one in found]))


@app.command()
def screen(
    what: StudyFile,
    candidates: Annotated[int, typer.Option(help="how many to draw from the study's space", min=1, max=10_000)] = 1000,
    device: Annotated[
        str | None, typer.Option(help="a kind of GPU, such as H100; default: virtual devices", metavar="KIND")
    ] = None,
    count: Annotated[int | None, typer.Option(help="number of devices", min=1)] = None,
    mib: Annotated[int | None, typer.Option(help="memory of one device, if not all that it has", min=1)] = None,
    param: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, instead of the study's own; repeatable")] = None,
    working_dir: WorkingDir = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Which part of a study's space fits, and on how many ranks: a thousand candidates drawn from it, in a minute.

    A few candidates are traced, and formulas found from these give the peaks of all others to the byte. Each row counts
    the candidates of which a study would choose so many ranks; `recompute` and `accumulate` say how many of them need
    it, and the last two columns are medians. `--json` has every candidate with its plan at every degree.
    """
    from scamp_service.estimate import target
    from scamp_service.screen import screen as screened
    from scamp_service.screen_table import as_table, footnotes

    settings = _settings(data_dir=data_dir)
    cluster, kind = target(settings, device, count, mib)
    if what.suffix not in STUDY_SUFFIXES:
        raise InvalidInput(f"{what} has no space to screen: name a study in YAML, or ask `scamp estimate {what}`")
    wanted = subject(str(what), _params(param or []), candidates, working_dir, at_random=True)
    cache_dir = settings.data_dir / "profiles"
    with err.status("tracing …"):
        found = screened(wanted.workload, wanted.code, wanted.candidates, cluster, cache_dir, kind, err.print)
    if as_json:
        print(json.dumps([one.to_json() for one in found.candidates]))
        return
    one = cluster.devices[0]
    offered = f"{len(cluster.devices)} × {one.kind}, {one.capacity_mib} MiB"
    out.print(f"{len(found.candidates)} candidates on {offered}", style="bold")
    out.print(as_table(found))
    for line in footnotes(found, kind):
        out.print(line, style="dim", soft_wrap=True, markup=False)


def _price(
    estimator: Estimator,
    candidates: Sequence[Mapping[str, Any]],
    plan: Plan,
    kind: DeviceKind | None,
    as_json: bool,
) -> None:
    from scamp_service.price import caveat, price_json, price_table

    answers = []
    for params in candidates:
        with err.status("tracing …"):
            stages = estimator.price(params, plan)
        answers.append(price_json(dict(params), plan, stages, kind))
        if not as_json:
            out.print(f"{plan}: one rank of each stage", style="bold", soft_wrap=True)
            out.print(price_table(stages))
    if as_json:
        print(json.dumps(answers))
    elif words := caveat(kind):
        out.print(words, style="dim", soft_wrap=True, markup=False)


@app.command()
def calibrate(data_dir: DataDir = None) -> None:
    """Measure how fast this machine's CPU and GPUs train, for the times that `scamp estimate` tells.

    Takes about 30 seconds for the CPU and a minute for each model of GPU, of which one that nobody uses should be left.
    What it finds of a GPU, memory outside of PyTorch's allocator included, replaces what `--device` knew of its kind.
    """
    from scamp_service.calibration import calibrate_cpu, calibrate_gpu, one_of_each
    from scamp_service.gpus import inventory

    settings = _settings(data_dir=data_dir)
    with err.status("measuring the CPU …"):
        _print_kind(calibrate_cpu(settings.data_dir))
    for gpu in one_of_each(inventory()):
        if gpu.strangers_mib:
            err.print(f"others hold {gpu.strangers_mib} MiB of {gpu.name}: what is measured beside them may be off")
        with err.status(f"measuring {gpu.name} …"):
            _print_kind(calibrate_gpu(settings.data_dir, gpu))


def _print_kind(kind: DeviceKind) -> None:
    out.print(f"{kind.name}: {kind.provenance}", highlight=False)
    if per_flop := kind.rates["matmul"].per_flop:  # a fit may leave it at zero
        out.print(f"{1e-9 / per_flop:.3g} GFLOP/s in matrix products", highlight=False)
    if kind.memory is not None:
        outside = kind.memory.outside_bytes(1) / MIB
        out.print(f"{outside:.0f} MiB of a process are outside of PyTorch's tensors", highlight=False)


@app.command()
def devices(as_json: AsJson = False) -> None:
    """This machine's GPUs: their memory, what others hold of it, links, and the name for `scamp estimate --device`.

    `others` are processes that are not ScaMP's, `free` is what they and the driver leave, with what ScaMP's ranks hold.
    """
    from scamp_service.gpus import inventory
    from scamp_service.gpus_table import as_table, without_gpus

    settings, gpus = _settings(), inventory()
    if as_json:
        count = settings.virtual_devices * settings.virtual_nodes
        virtual = None if gpus else {"count": count, "mib": settings.device_mib}
        print(json.dumps({"gpus": [gpu.to_json() for gpu in gpus], "virtual_devices": virtual}))
    elif gpus:
        out.print(as_table(gpus))
    else:
        out.print(without_gpus(settings), soft_wrap=True)


def _params(given: list[str]) -> dict[str, Any]:
    import yaml

    params = {}
    for text in given:
        name, equals, value = text.partition("=")
        try:
            params[name] = yaml.safe_load(value) if name and equals else None
        except yaml.YAMLError:
            params[name] = value
        if not isinstance(params[name], str | int | float | bool):
            raise InvalidInput(f"--param wants NAME=VALUE with a number, a word, true or false; got {text!r}")
    return params


# --- a running service --------------------------------------------------------------------------------------------


@app.command()
def submit(
    study: StudyFile,
    address: Address = "",
    token: Token = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="follow the study to its end")] = True,
    working_dir: WorkingDir = None,
    as_json: AsJson = False,
) -> None:
    """Send a study to a service, and follow it."""
    spec = parse_study(read_study(study))
    client = _client(address, token)
    created = client.submit(spec.to_json(), code=code_of(study, spec, working_dir))
    if not as_json:
        out.print(f"study {created['id']}: {client.address}/studies/{created['id']}")
    if wait and not _tail(client, created["id"], spec, as_json=as_json):
        raise typer.Exit(1)
    if as_json and not wait:
        print(json.dumps(created))


@app.command(name="list")
def list_studies(address: Address = "", token: Token = "", as_json: AsJson = False) -> None:
    """All studies of a service."""
    studies = list(_client(address, token).studies())
    if as_json:
        print(json.dumps(studies))
        return
    for study in studies:
        counts = " ".join(f"{count} {state.lower()}" for state, count in study["trials"].items())
        out.print(f"{study['id']:>5}  {study['state']:<10} {study['name']}  {counts}", markup=False)


@app.command()
def status(study: StudyId, address: Address = "", token: Token = "", as_json: AsJson = False) -> None:
    """One study in a few lines."""
    client = _client(address, token)
    view = client.study(study)
    if as_json:
        print(json.dumps(view))
        return
    out.print(live_view(view["summary"], view["spec"]["objective"]["metric"], client.cluster()))
    out.print(closing_line(view["summary"]), soft_wrap=True)


@app.command()
def trials(study: StudyId, address: Address = "", token: Token = "", as_json: AsJson = False) -> None:
    """The trials of a study, the best first."""
    client = _client(address, token)
    spec = client.study(study)["spec"]
    rows = list(client.trials(study))
    if as_json:
        print(json.dumps(rows))
        return
    out.print(leaderboard(rows, spec, rows=len(rows)))


@app.command()
def logs(
    study: StudyId,
    trial: Annotated[int, typer.Argument(help="the trial's number")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="go on as lines come")] = False,
    address: Address = "",
    token: Token = "",
) -> None:
    """What a trial has printed."""
    client = _client(address, token)
    after = 0
    while True:
        page = client.logs(study, trial, after=after)
        for line in page:
            after = line["id"]
            out.print(f"{line['attempt']}.{line['rank']}  {line['text']}", markup=False, soft_wrap=True)
        if page:
            continue
        if not follow or client.trial(study, trial)["finished_at"]:
            return
        time.sleep(0.5)


@app.command()
def stop(study: StudyId, address: Address = "", token: Token = "") -> None:
    """Stop a study: running trials are cancelled, what they reported stays."""
    view = _client(address, token).stop(study)
    out.print(f"study {study} is {view['state'].lower()}")


# --- shared -------------------------------------------------------------------------------------------------------


def _tail(
    client: Client, study_id: int, spec: StudySpec, *, as_json: bool = False, between: Callable[[], None] = lambda: None
) -> bool:
    """Follow a study to its end and print its leaderboard; whether it went well."""
    with _live(quiet=as_json or not out.is_terminal) as update:
        while True:
            view = client.study(study_id)
            update(view["summary"], spec.objective.metric, client.cluster())
            if view["finished_at"]:
                break
            between()
            time.sleep(0.3)
    return _conclude(view["summary"], list(client.trials(study_id)), spec, as_json, view["reason"])


@contextmanager
def _live(quiet: bool) -> Iterator[Callable[[dict[str, Any], str, dict[str, Any]], None]]:
    """A block that is redrawn in a terminal; elsewhere one line whenever the trials' states have changed."""
    if not quiet:
        with Live(console=out, auto_refresh=False, transient=True) as live:
            yield lambda summary, metric, cluster: live.update(live_view(summary, metric, cluster), refresh=True)
        return
    shown: dict[str, int] = {}

    def line(summary: dict[str, Any], metric: str, cluster: dict[str, Any]) -> None:
        nonlocal shown
        if summary["trials"] != shown:
            shown = summary["trials"]
            best = summary["best"]
            states = ", ".join(f"{count} {state.lower()}" for state, count in shown.items())
            so_far = f"; best {metric} {best['value']:.4f}" if best else ""
            err.print(f"{states or 'starting'}{so_far}", soft_wrap=True)

    yield line


def _settings(**given: Any) -> Settings:
    return Settings(**{name: value for name, value in given.items() if value})


def _client(address: str, token: str) -> Client:
    url = address or running_server(_settings().data_dir) or f"http://127.0.0.1:{_settings().port}"
    client = Client(url, token=token or None)
    atexit.register(client.close)
    return client
