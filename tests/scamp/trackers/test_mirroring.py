"""Every tracker has a study once, as the tracker's own reader sees it, also when a process that wrote it was killed."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from packaging.requirements import Requirement

from scamp.client import Client
from scamp.errors import InvalidInput, Unavailable
from scamp.installed import NotInstalled
from scamp.trackers import mirroring
from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.model import Study
from scamp_service.store.store import Store
from tests.services.processes import ROOT, environment
from tests.services.serving import end, fill, free_port, report, served, settings_in
from tests.waiting import PATIENCE_SECONDS, until

Points = list[tuple[int, float]]
Facts = dict[str, Any]
FIRST: Points = [(10, 0.51), (20, 0.52), (30, 0.53)]


class TensorBoard:
    """Reads by the accumulator of TensorBoard, and asks the plugin of its tab HParams."""

    def __init__(self, folder: Path) -> None:
        self.shows_what_runs = True
        self.target, self.folder = f"tensorboard={folder / 'runs'}", folder / "runs"

    def points(self, number: int) -> Points:
        return [
            (event.step, round(event.tensor_proto.float_val[0], 6))
            for accumulator in self._accumulators(number)
            for event in accumulator.Tensors("accuracy")
        ]

    def facts(self, number: int) -> Facts:
        (accumulator,) = self._accumulators(number)
        texts = {
            name: accumulator.Tensors(f"scamp/{name}")[-1].tensor_proto.string_val[0].decode()
            for name in ("state", "plan", "page")
        }
        return {**texts, **self._shown_in_hparams()[number]}

    def _accumulators(self, number: int) -> list[Any]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        loaded = [EventAccumulator(str(folder)).Reload() for folder in self.folder.glob(f"*/trial-{number:04}")]
        return [accumulator for accumulator in loaded if "accuracy" in accumulator.Tags()["tensors"]]

    def _shown_in_hparams(self) -> dict[int, Facts]:
        from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
        from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
        from tensorboard.context import RequestContext
        from tensorboard.plugins.base_plugin import TBContext
        from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

        multiplexer = EventMultiplexer().AddRunsFromDirectory(str(self.folder))
        multiplexer.Reload()
        provider = MultiplexerDataProvider(multiplexer, str(self.folder))
        context = backend_context.Context(TBContext(data_provider=provider))
        request = api_pb2.ListSessionGroupsRequest(
            start_index=0, slice_size=100, allowed_statuses=list(range(len(api_pb2.Status.keys())))
        )
        groups = list_session_groups.Handler(RequestContext(), context, "", request).run().session_groups
        shown = {}
        for group in groups:
            (session,) = group.sessions
            values = {value.name.tag: value.value for value in session.metric_values}
            shown[int(session.name.rpartition("-")[2])] = {
                "lr": group.hparams["lr"].number_value,
                "value": round(values["scamp/value"], 6) if "scamp/value" in values else None,
                "has_succeeded": session.status == api_pb2.STATUS_SUCCESS,
            }
        return shown


class Mlflow:
    """Reads by MLflow's client of a store in a file."""

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("mlflow", exc_type=ImportError)
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        self.shows_what_runs = True
        self.target, self.uri = f"mlflow={uri}", uri

    def points(self, number: int) -> Points:
        return [
            (metric.step, metric.value)
            for run in self._runs(number)
            for metric in self._client.get_metric_history(run.info.run_id, "accuracy")
        ]

    def facts(self, number: int) -> Facts:
        (run,) = self._runs(number)
        tags = {name: run.data.tags[f"scamp.{name}"] for name in ("state", "plan", "page")}
        return {
            **tags,
            "lr": float(run.data.params["lr"]),
            "value": run.data.metrics.get("scamp.value"),
            "has_succeeded": run.info.status == "FINISHED",
        }

    def _runs(self, number: int) -> list[Any]:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(self.uri)
        experiments = [each.experiment_id for each in self._client.search_experiments() if each.name != "Default"]
        assert len(experiments) <= 1
        return list(self._client.search_runs(experiments, f"tags.`scamp.trial` = '{number}'")) if experiments else []


class Wandb:
    """Reads the records that Weights & Biases keeps of runs offline, to be uploaded by `wandb sync`."""

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("wandb")
        self.shows_what_runs = False  # offline, it keeps some 32 KiB of a run in memory
        self.target, self.folder = "wandb=ada/digits", folder

    def points(self, number: int) -> Points:
        rows = [row for records in self._runs(number) for row in _rows(records, "history")]
        return [(row["_step"], row["accuracy"]) for row in rows]

    def facts(self, number: int) -> Facts:
        (records,) = self._runs(number)
        (run,) = (record.run for record in records if record.HasField("run"))
        assert run.run_group.startswith("study 1-")
        summary = {name: value for row in _rows(records, "summary") for name, value in row.items()}
        config = {update.key: json.loads(update.value_json) for update in run.config.update}
        (exit_code,) = [record.exit.exit_code for record in records if record.HasField("exit")]
        return {
            **{name: summary[f"scamp/{name}"] for name in ("state", "plan", "page", "value")},
            "lr": config["lr"],
            "has_succeeded": exit_code == 0,
        }

    def _runs(self, number: int) -> list[list[Any]]:
        from wandb.proto.wandb_internal_pb2 import Record

        runs = []
        for file in self.folder.glob("wandb/offline-run-*/run-*.wandb"):
            records = [Record.FromString(record) for record in _log_records(file.read_bytes()[7:])]
            if any(record.run.display_name == f"a study trial {number}" for record in records):
                runs.append(records)
        return runs


def _rows(records: list[Any], kind: str) -> Iterator[Facts]:
    for record in records:
        if record.HasField(kind):
            items = getattr(record, kind)
            items = items.item if kind == "history" else items.update
            yield {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}


def _log_records(data: bytes) -> Iterator[bytes]:
    """Records of a log of LevelDB: blocks of 32 KiB, whose first one begins 7 bytes earlier, with the file's head."""
    place, record = 0, b""
    while place + 7 <= len(data):
        left = 32768 - (place + 7) % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        if not kind:
            return
        record += data[place + 7 : place + 7 + length]
        if kind in (1, 4):  # the whole of it, or its last part
            yield record
            record = b""
        place += 7 + length


class Otlp:
    """Receives traces over HTTP."""

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
        self.shows_what_runs = False
        self.spans: list[Any] = []
        spans = self.spans

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

                assert self.path == "/v1/traces"
                request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
                for resource in request.resource_spans:
                    spans.extend(resource.scope_spans[0].spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *words: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        Thread(target=self.server.serve_forever, daemon=True).start()
        self.target = f"otlp=http://127.0.0.1:{self.server.server_port}"

    def points(self, number: int) -> Points:
        """Those of the fixture once there is the trace of the trial: traces have no metrics."""
        return [point for span in self.spans if span.name == f"trial {number}" for point in FIRST]

    def facts(self, number: int) -> Facts:
        (root,) = (span for span in self.spans if span.name == f"trial {number}")
        (attempt,) = (span for span in self.spans if span.parent_span_id == root.span_id)
        assert (attempt.name, attempt.trace_id) == ("attempt 1", root.trace_id)
        values = {item.key: item.value for item in root.attributes}
        return {
            **{name: values[f"scamp.trial.{name}"].string_value for name in ("state", "plan", "page")},
            "value": values["scamp.trial.value"].double_value,
            "lr": values["scamp.params.lr"].double_value,
            "has_succeeded": root.status.code == 1,
        }


@pytest.fixture(params=[TensorBoard, Mlflow, Wandb, Otlp])
def tracker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    reader: Any = request.param(tmp_path)
    yield reader
    if isinstance(reader, Otlp):
        reader.server.shutdown()
        reader.server.server_close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[str, Store, Study]]:
    """A service with a study of two trials: the first has completed, the second runs and has reported once."""
    with served(settings_in(tmp_path / "data", port=free_port())) as (address, store):
        study = fill(store, num_trials=2)
        report(store, _running(store, study), steps=[10])
        yield address, store, study


def _running(store: Store, study: Study) -> int:
    return store.trials.page(study.id)[1].id


def _end_study(store: Store, study: Study) -> None:
    end(store, _running(store, study))
    assert store.studies.move(study.id, [StudyState.RUNNING], StudyState.COMPLETED, now=time.time())


@pytest.fixture
def start(tmp_path: Path, service: tuple[str, Store, Study]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts ``scamp mirror`` of the study in a process of its own."""
    begun: list[subprocess.Popen[str]] = []

    def process(*targets: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "scamp", "mirror", "1", *(f"--to={target}" for target in targets)]
        variables = environment(tmp_path / "data", SCAMP_ADDRESS=service[0], WANDB_MODE="offline", WANDB_SILENT="true")
        variables |= {"PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
        begun.append(
            subprocess.Popen(
                command, cwd=tmp_path, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
        return begun[-1]

    yield process
    for each in begun:
        each.kill()
        each.communicate()


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # MLflow with the newest SQLAlchemy
def test_a_study_is_followed_to_its_end_and_written_once_however_often_the_mirror_is_killed(
    tracker: Any, service: tuple[str, Store, Study], start: Callable[..., subprocess.Popen[str]]
) -> None:
    address, store, study = service
    first = start(tracker.target)
    until(lambda: tracker.points(0) == FIRST, "the trial that has completed")
    if tracker.shows_what_runs:
        until(lambda: tracker.points(1) == FIRST[:1], "the trial that runs")
    first.send_signal(signal.SIGKILL)
    first.wait()
    report(store, _running(store, study), steps=[20])

    second = start(tracker.target)
    if tracker.shows_what_runs:
        until(lambda: tracker.points(1) == FIRST[:2], "the trial that runs, continued")
    report(store, _running(store, study), steps=[30])
    _end_study(store, study)
    said, errors = second.communicate(timeout=PATIENCE_SECONDS)
    assert second.returncode == 0 and said == f"study 1 is in {tracker.target}\n", errors

    with Client(address) as client:
        plans = [trial["plan_text"] for trial in client.trials(study.id)]
    for _ in range(2):
        for number in (0, 1):
            assert tracker.points(number) == FIRST
            assert tracker.facts(number) == {
                "state": "COMPLETED",
                "plan": plans[number],
                "page": f"{address}/studies/1/trials/{number}",
                "lr": 0.01 * (number + 1),
                "value": 0.53,
                "has_succeeded": True,
            }
        third = start(tracker.target)
        assert third.communicate(timeout=PATIENCE_SECONDS) and third.returncode == 0


@pytest.mark.parametrize("target", ["tensorboard", "tensorboard=", "comet=x", "=x"])
def test_a_tracker_that_does_not_exist_is_refused_with_the_names_of_those_that_do(
    target: str, service: tuple[str, Store, Study]
) -> None:
    with Client(service[0]) as client, pytest.raises(InvalidInput, match=r"tensorboard, mlflow, wandb, otlp; got"):
        mirroring.mirror(client, 1, target)


def test_a_missing_package_is_named(service: tuple[str, Store, Study], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scamp.trackers.mlflow", None)  # as if what it imports were missing
    with (
        Client(service[0]) as client,
        pytest.raises(NotInstalled, match=r"mlflow needs .*: pip install mlflow-skinny$"),
    ):
        mirroring.mirror(client, 1, "mlflow=http://127.0.0.1:9")


def test_every_state_of_a_trial_that_is_shown_has_a_status_of_mlflow() -> None:
    pytest.importorskip("mlflow", exc_type=ImportError)
    from scamp.trackers.mlflow import STATUS

    assert STATUS.keys() == set(TrialState) - {TrialState.DELETED}


def test_the_package_that_a_tracker_needs_is_an_extra_of_its_name() -> None:
    extras = tomllib.loads((ROOT / "scamp/pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, (_, package) in mirroring.TRACKERS.items():
        assert package in {Requirement(line).name for line in extras[name]}


def test_a_tracker_that_cannot_be_written_is_an_error_in_words(
    service: tuple[str, Store, Study], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with Client(service[0]) as client, pytest.raises(Unavailable, match=r"cannot write to tensorboard=.*repeat"):
        mirroring.mirror(client, 1, f"tensorboard={tmp_path / 'file'}")
