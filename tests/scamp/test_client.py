"""The SDK against a real service."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scamp.client import Client
from scamp_service.errors import Conflict, InvalidInput, NotFound, Refused, Unavailable
from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.model import LogLine, Report
from scamp_service.settings import Settings
from scamp_service.store.recorded_cluster import RecordedCluster
from scamp_service.store.store import Store
from tests.services.serving import DEVICE, SECRET, SPEC, WORKLOAD, end, fill, free_port, served, settings_in
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.usefixtures("warm_traces")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[Client, Store]]:
    settings = settings_in(tmp_path / "data", port=free_port())
    with served(settings) as (url, store), Client(url) as client:
        yield client, store


def test_a_study_is_submitted_and_read_back(service: tuple[Client, Store]) -> None:
    client, store = service
    created = client.submit(SPEC)
    assert client.study(created["id"])["spec"] == created["spec"]
    assert [study["id"] for study in client.studies()] == [created["id"]]
    assert client.stop(created["id"])["state"] == "STOPPING"
    assert store.studies.get(created["id"]).state is StudyState.STOPPING


def test_a_study_may_be_or_contain_a_configuration_of_omegaconf(service: tuple[Client, Store]) -> None:
    omegaconf = pytest.importorskip("omegaconf")
    client, _ = service
    cfg = omegaconf.OmegaConf.create(
        {
            "most": 0.1,
            "study": {**SPEC, "space": {"lr": {"low": 0.001, "high": "${most}"}, "depth": {"choice": [2, 4]}}},
        }
    )
    created, part = client.submit(cfg.study), client.submit({**SPEC, "space": cfg.study.space})
    again = client.clone(created["id"], name="again", spec=cfg.study)
    for study in (created, part, again):
        assert study["spec"]["space"]["lr"]["high"] == 0.1
        assert study["spec"]["space"]["depth"]["choice"] == [2, 4]
    cfg.study.name = "???"
    with pytest.raises(InvalidInput, match="written as JSON: Missing mandatory value: name"):
        client.submit(cfg.study)
    with pytest.raises(InvalidInput, match="PosixPath has no form in JSON"):
        client.submit({**SPEC, "name": Path()})


def test_candidates_are_enqueued_one_by_one_or_as_a_list(service: tuple[Client, Store]) -> None:
    client, _ = service
    study = client.submit(SPEC)["id"]
    assert client.enqueue(study, {"lr": 0.01}, {"lr": 0.02}) == [0, 1]
    assert client.enqueue(study, [{"lr": 0.01}, {"lr": 0.02}]) == [2, 3]


def test_a_service_on_ipv6_is_reached(tmp_path: Path) -> None:
    with served(settings_in(tmp_path, host="::1", port=free_port())) as (url, _), Client(url) as client:
        assert url.startswith("http://[::1]:")
        assert list(client.studies()) == []


@pytest.mark.parametrize("address", ["http://[::1", "http://h:99999", "http://h:x", "::1", "[::1]:8100", "http://"])
def test_a_malformed_address_is_refused_in_words(address: str) -> None:
    with pytest.raises(InvalidInput, match=r"not the address of a service; write it like http://127\.0\.0\.1:8100"):
        Client(address)


def test_a_study_file_is_submitted_with_its_own_workload(service: tuple[Client, Store], tmp_path: Path) -> None:
    client, store = service
    study = tmp_path / "study.yaml"
    study.write_text("name: mine\nworkload: net.py:Mine\nobjective: {metric: loss}\nspace: {lr: {low: 0, high: 1}}\n")
    (tmp_path / "net.py").write_text(WORKLOAD)
    code = store.studies.get(client.submit(study)["id"]).code
    assert code is not None and store.blobs.get(code).startswith(b"PK")


def test_each_call_is_a_study_of_its_own_and_a_key_makes_one_of_many(service: tuple[Client, Store]) -> None:
    client, _ = service
    assert client.submit(SPEC)["id"] != client.submit(SPEC)["id"]
    assert client.submit(SPEC, idempotency_key="k")["id"] == client.submit(SPEC, idempotency_key="k")["id"]
    with pytest.raises(Conflict, match="take a new key"):
        client.submit({**SPEC, "name": "another"}, idempotency_key="k")


def test_a_study_is_cloned_with_changes(service: tuple[Client, Store]) -> None:
    client, _ = service
    study = client.submit({**SPEC, "project": "vision"})
    changes = {"budget.trials": 7, "space.lr": {"low": 1e-5, "high": 0.5}, "project": None}
    clone = client.clone(study["id"], name="again", changes=changes)["spec"]
    assert (clone["name"], clone["budget"]["trials"], clone["project"]) == ("again", 7, "default")
    assert (clone["space"]["lr"]["low"], clone["space"]["lr"]["high"]) == (1e-5, 0.5)
    assert client.clone(study["id"], changes={"budget.trials": 9}, spec=SPEC)["spec"]["budget"]["trials"] == 9
    first, last = (client.provenance(number) for number in (study["id"], study["id"] + 2))
    assert first == last and first["command"], "where its files come from, and what has submitted it"
    with pytest.raises(InvalidInput, match=r"'name\.first' does not fit the study"):
        client.clone(study["id"], changes={"name.first": "x"})


def test_refusals_are_our_errors(service: tuple[Client, Store], tmp_path: Path) -> None:
    client, _ = service
    with pytest.raises(InvalidInput, match="space is empty"):
        client.submit({**SPEC, "space": {}})
    with pytest.raises(InvalidInput, match="not JSON"):
        client.submit({**SPEC, "name": float("nan")})
    with pytest.raises(InvalidInput, match="cannot read the study"):
        client.submit(tmp_path / "none.yaml")
    with pytest.raises(InvalidInput, match=r"upload it.* with the `Path` of the study's file, `code=` or `workload=`"):
        client.submit({**SPEC, "workload": "net.py:Mine"})
    for call in (client.study, client.stop, lambda study: list(client.trials(study)), lambda s: client.trial(s, 0)):
        with pytest.raises(NotFound, match=r"there is no study 7|study 7 has no trial"):
            call(7)
    assert list(client.studies()) == []


def test_lists_come_whole_whatever_the_page(service: tuple[Client, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    client, store = service
    monkeypatch.setattr("scamp.connection.PAGE", 2)
    study = fill(store, num_trials=5)
    assert [trial["number"] for trial in client.trials(study.id)] == [0, 1, 2, 3, 4]
    assert [trial["number"] for trial in client.trials(study.id, states=("WAITING",))] == [2, 3, 4]
    assert [row["step"] for row in client.metrics(study.id, 0)] == [10, 20, 30]
    assert client.trial(study.id, 0)["attempts"][0]["outcome"] == "DONE"
    assert client.timeline(study.id, 0) is None, "its plan has no pipeline"
    assert [peaks["attempts"][0]["measured_bytes"] for peaks in client.peaks(study.id)] == [2 * 2**20]
    assert client.learned(study.id) == []
    running = store.trials.page(study.id)[1].id
    lines = [LogLine(running, 1, 0, seq, 1.0, f"line {seq}") for seq in range(3)]
    assert store.reports.add(Report(running, 1, SECRET, logs=lines), now=1.0)
    first = client.logs(study.id, 1, limit=2)
    assert [line["text"] for line in first + client.logs(study.id, 1, after=first[-1]["id"])] == [
        "line 0",
        "line 1",
        "line 2",
    ]


def test_the_cluster_is_read(service: tuple[Client, Store]) -> None:
    client, store = service
    store.cluster.record(RecordedCluster("ready", "", (DEVICE,)), now=time.time())
    assert client.cluster()["devices"][0]["id"] == "n/0"


def test_waiting_ends_with_the_study_or_with_patience(service: tuple[Client, Store]) -> None:
    client, store = service
    study = client.submit(SPEC)["id"]
    with pytest.raises(Unavailable, match="still RUNNING"):
        client.wait(study, timeout=0.1, poll_seconds=0.05)
    ends = threading.Timer(
        0.3, lambda: store.studies.move(study, [StudyState.RUNNING], StudyState.COMPLETED, now=time.time())
    )
    ends.start()
    assert client.wait(study, timeout=PATIENCE_SECONDS, poll_seconds=0.05)["state"] == "COMPLETED"
    ends.join()


def test_a_service_that_is_not_there_is_told_with_what_to_do() -> None:
    with Client(f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(Unavailable, match="start it with `scamp serve`"):
            client.study(1)
        with pytest.raises(Unavailable, match="start it with `scamp serve`"):
            next(client.events())


@pytest.mark.parametrize("address", ["127.0.0.1:8100", "ftp://host", "", "http://"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match=r"write it like http://127\.0\.0\.1:8100"):
        Client(address)


PAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
CUT = b""
BUSY = b'HTTP/1.1 503 No\r\nRetry-After: 0\r\nContent-Length: 16\r\nConnection: close\r\n\r\n{"detail": "no"}'
CREATED = b'HTTP/1.1 201 Created\r\nContent-Length: 9\r\nConnection: close\r\n\r\n{"id": 7}'


@contextmanager
def server_of(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Its address, and the requests that have come to it; it answers one after the other with ``answers``."""
    requests: list[bytes] = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def answer_all() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    requests.append(connection.recv(65536))
                    connection.sendall(answer)

        thread = threading.Thread(target=answer_all, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
        thread.join(PATIENCE_SECONDS)


def test_a_submission_that_is_cut_by_a_restart_is_sent_again_with_its_key() -> None:
    with server_of(CUT, BUSY, CREATED) as (address, requests), Client(address) as client:
        assert client.submit(SPEC)["id"] == 7
    keys = [line for request in requests for line in request.split(b"\r\n") if line.startswith(b"Idempotency-Key")]
    assert len(keys) == 3 and len(set(keys)) == 1


def test_only_a_submission_without_an_answer_may_have_created_a_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scamp.connection.PATIENCE_SECONDS", 0.0)
    with server_of(CUT) as (address, _), Client(address) as client:
        with pytest.raises(Unavailable, match="may have been created: repeat with the idempotency key k"):
            client.submit(SPEC, idempotency_key="k")
    with server_of(BUSY) as (address, _), Client(address) as client:
        with pytest.raises(Unavailable, match=r"^no$"):
            client.submit(SPEC)


@pytest.mark.full
def test_a_submission_that_takes_longer_than_the_timeout_is_waited_for_while_the_service_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scamp.connection.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("scamp.connection.ALIVE_SECONDS", PATIENCE_SECONDS)
    num_checks = 0

    def slowly(*args: object) -> list[str]:
        nonlocal num_checks
        num_checks += 1
        time.sleep(1.5)
        return []

    monkeypatch.setattr("api.admission.check_workload", slowly)
    settings = settings_in(tmp_path, port=free_port())
    study = tmp_path / "study.yaml"
    study.write_text("name: mine\nworkload: net.py:Mine\nobjective: {metric: loss}\nspace: {lr: {low: 0, high: 1}}\n")
    (tmp_path / "net.py").write_text(WORKLOAD)
    with served(settings) as (url, store), Client(url, timeout=0.4) as client:
        created = client.submit(study)
        assert [row.id for row in store.studies.page()] == [created["id"]]
        assert num_checks == 1, "the repeated request waits for the first"
        monkeypatch.setattr("scamp.connection.SLOW_SECONDS", 0.0)
        with pytest.raises(Unavailable) as refused:
            client.submit(study, idempotency_key="k")
    assert str(refused.value).startswith(f"ScaMP at {url} is slow: it has not answered in time; ")
    assert str(refused.value).endswith("repeat with the idempotency key k, so that there is only one")
    assert "scamp serve" not in str(refused.value)


def test_a_service_that_hangs_is_not_waited_for_like_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scamp.connection.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("scamp.connection.ALIVE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with Client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2) as client:
            with pytest.raises(Unavailable, match="is slow: it has not answered in time"):
                client.stop(1)
        silent.setblocking(False)
        for _ in range(2):  # the request, and whether the service is alive
            silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_another_server_is_not_taken_for_ours() -> None:
    with server_of(PAGE) as (address, _), Client(address) as client:
        with pytest.raises(Unavailable, match="does not answer like ScaMP"):
            client.study(1)


def test_another_server_has_no_events_of_ours() -> None:
    """Its page was read as a stream without events once, and asked for again without end."""
    with server_of(PAGE) as (address, _), Client(address) as client:
        with pytest.raises(Unavailable, match="text/event-stream"):
            next(client.events())


def test_a_token_is_sent_and_its_absence_is_refused(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, port=free_port(), api_token="0123456789abcdef")
    with served(settings) as (url, _):
        with Client(url, token="0123456789abcdef") as client:
            assert list(client.studies()) == []
            assert client.address == url
        for wrong in (None, "another-token-of-16"):
            with Client(url, token=wrong) as client:
                with pytest.raises(Refused, match="token"):
                    list(client.studies())
                with pytest.raises(Refused, match="token"):
                    next(client.events())


def test_events_and_calls_go_on_over_a_restart_and_none_is_lost_or_told_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scamp.connection.PATIENCE_SECONDS", PATIENCE_SECONDS)
    settings = settings_in(tmp_path, port=free_port())
    writer = Store(settings.url)
    ids: list[int] = []
    with Client(f"http://127.0.0.1:{settings.port}") as client:
        with served(settings):
            study = fill(writer)
            listener = threading.Thread(target=collect, args=(settings, ids, writer.events.last_id() + 2))
            listener.start()
            assert client.study(study.id)["id"] == study.id
            until(lambda: len(ids) == writer.events.last_id(), "every event")
        end(writer, writer.trials.page(study.id)[1].id)  # three events that nobody serves
        restart = threading.Thread(target=hold, args=(settings, listener))
        restart.start()
        assert client.trial(study.id, 1)["state"] == TrialState.COMPLETED  # waits for the service to be back
        restart.join(PATIENCE_SECONDS)
    assert ids == list(range(1, len(ids) + 1))
    assert len(ids) >= writer.events.last_id() - 1
    writer.close()


def collect(settings: Settings, numbers: list[int], last: int) -> None:
    with Client(f"http://127.0.0.1:{settings.port}") as client:
        for event in client.events(after=0):
            numbers.append(event["id"])
            if event["id"] >= last:
                return


def hold(settings: Settings, listener: threading.Thread) -> None:
    time.sleep(0.5)
    with served(settings):
        listener.join(PATIENCE_SECONDS)
        assert not listener.is_alive()
