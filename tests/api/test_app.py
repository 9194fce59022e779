"""The API as a process and as a document."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.__main__ import _bind
from api.app import create_app
from scamp_service.errors import Unavailable
from tests.conftest import ROOT
from tests.services.serving import InProcess, fill, free_port, settings_in
from tests.waiting import PATIENCE_SECONDS, until

HEAVY = ("torch", "ray", "optuna", "sklearn", "workloads.protocol")


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    variables = {**os.environ, "SCAMP_DATA_DIR": str(folder), **environment}
    command = [sys.executable, "-m", "api", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def is_alive(process: subprocess.Popen[str], port: int) -> bool:
    assert process.poll() is None, process.communicate()[0]
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz").is_success
    except httpx.TransportError:
        return False


@pytest.mark.full
def test_the_process_answers_and_ends_when_asked(tmp_path: Path) -> None:
    port = free_port()
    process = start(tmp_path / "new", "--port", str(port))
    try:
        until(lambda: is_alive(process, port), "an answer")
        with httpx.stream("GET", f"http://127.0.0.1:{port}/v1/events") as events:
            assert next(events.iter_bytes())
            process.send_signal(signal.SIGTERM)  # an open stream must not hold it up
            output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.communicate()
    assert "Traceback" not in output and "Cancel" not in output


@pytest.mark.full
def test_an_unsafe_address_is_refused_at_once_in_one_line(tmp_path: Path) -> None:
    process = start(tmp_path, "--host", "0.0.0.0", "--port", str(free_port()), SCAMP_API_TOKEN="")
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 2
    assert output.startswith("scamp: 0.0.0.0 can be reached from other machines: set SCAMP_API_TOKEN")
    assert len(output.splitlines()) == 1


@pytest.mark.full
def test_a_port_that_is_taken_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start(tmp_path, "--port", str(taken.getsockname()[1]))
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 2
    assert output.startswith("scamp: cannot listen on 127.0.0.1 port") and len(output.splitlines()) == 1
    assert not (tmp_path / "scamp.db").exists()


def test_only_one_of_two_that_start_at_once_has_the_port() -> None:
    port = free_port()
    with _bind("127.0.0.1", port), pytest.raises(Unavailable, match="Address already in use"):
        _bind("127.0.0.1", port)


def test_the_second_packet_of_an_answer_does_not_wait_until_the_first_is_confirmed() -> None:
    with _bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.full
def test_the_api_loads_nothing_heavy_and_importances_load_only_optuna() -> None:
    code = f"""
import sys, api.__main__
print([name for name in {HEAVY} if name in sys.modules])
from scamp_service.exchange.importances import ped_anova
ped_anova()
print([name for name in ("sklearn", "scipy", "pandas", "torch") if name in sys.modules])
"""
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split() == ["[]", "[]"]


def test_every_address_that_the_client_asks_exists(api: InProcess) -> None:
    sources = [file.read_text() for file in (ROOT / "scamp").glob("*.py")]
    addresses = {path.partition("?")[0] for text in sources for path in re.findall(r'f?"(/v1/[^"]*)"', text)}
    client, service = ({re.sub(r"{[^{}]*}", "x", path) for path in paths} for paths in (addresses, _paths(api)))
    assert len(client) > 30 and client - service == set()


def _paths(api: InProcess) -> list[str]:
    return list(api.get("/openapi.json").json()["paths"])


def test_the_document_names_every_operation_and_all_that_it_refers_to(api: InProcess) -> None:
    document = api.get("/openapi.json").json()
    operations = {
        operation["operationId"]: operation for path in document["paths"].values() for operation in path.values()
    }
    assert set(operations) == {
        "create_study", "list_studies", "get_study", "stop_study", "list_trials", "get_trial", "list_metrics",
        "get_timeline", "list_logs", "list_peaks", "list_learned", "get_cluster", "follow_events", "is_alive",
        "is_ready", "delete_study", "get_history", "list_curves", "get_order", "clone_study", "extend_study",
            "retry_trials", "get_usage", "stop_trial", "change_trial", "delete_trial", "check_study", "screen_study",
            "describe_study",
            "enqueue_trials", "get_candidates", "download_trials", "list_files", "get_file", "get_checkpoint",
            "get_importances", "get_lineage", "get_front", "what_if", "prioritize_study", "pause_study", "resume_study",
            "get_study_file", "get_study_code", "get_me", "list_users", "create_user", "change_user", "list_members",
            "grant_role", "list_tokens", "create_token", "revoke_token", "list_changes", "list_audit", "download_audit",
            "list_deliveries", "get_provenance", "test_receivers", "list_study_deliveries", "test_study_receivers",
    }  # fmt: skip
    assert all(operation["description"] for operation in operations.values())
    assert set(references(document)) <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    created = operations["create_study"]
    assert created["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/NewStudy"}
    for operation in operations.values():
        for status, answer in operation["responses"].items():
            if status.startswith("4"):
                assert list(answer["content"]) == ["application/problem+json"], (operation["operationId"], status)


def test_the_document_says_how_to_show_the_token_and_what_refuses_a_request(api: InProcess, tmp_path: Path) -> None:
    open_to_all = api.get("/openapi.json").json()
    with_token = create_app(settings_in(tmp_path, api_token="0123456789abcdef")).openapi()
    assert set(with_token["components"]["securitySchemes"]) == {"token", "session"}
    assert (open_to_all["security"], with_token["security"]) == ([], [{"token": []}, {"session": []}])
    get, post, delete, health = (
        with_token["paths"][path][method]
        for path, method in [
            ("/v1/studies", "get"),
            ("/v1/studies", "post"),
            ("/v1/studies/{study_id}", "delete"),
            ("/healthz", "get"),
        ]
    )
    assert {"400", "401", "403", "421"} <= set(get["responses"]) & set(post["responses"]) & set(delete["responses"])
    assert "403" not in open_to_all["paths"]["/v1/studies"]["get"]["responses"]
    assert health["security"] == []
    assert "401" not in health["responses"]
    assert "421" in health["responses"]


def test_the_document_names_the_answer_to_each_kind_of_parameter_that_is_not_valid(api: InProcess) -> None:
    for path, operations in api.get("/openapi.json").json()["paths"].items():
        for method, operation in operations.items():
            places = {parameter["in"] for parameter in operation.get("parameters", ())}
            is_read = "query" in places or "requestBody" in operation
            due = {"404": "path" in places, "422": is_read, "403": method != "get"}
            missing = {status for status, is_due in due.items() if is_due} - operation["responses"].keys()
            assert not missing, (method, path)


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("body", [{}, [], None, "", 0])
def test_no_operation_fails_on_a_body_that_says_nothing(api: InProcess, body: Any) -> None:
    fill(api.store)
    for path, operations in api.get("/openapi.json").json()["paths"].items():
        address = path.format(study_id=1, number=0, name="nobody", project="default", token_id=1, file_format="csv")
        for method in operations.keys() - {"get"}:
            answer = api.request(method, address, json=body)
            assert answer.status_code < 500, (method, path)
            assert str(answer.status_code) in operations[method]["responses"], (method, path)


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own_references = [value["$ref"]] if "$ref" in value else []
        return own_references + [reference for item in value.values() for reference in references(item)]
    return [reference for item in value for reference in references(item)] if isinstance(value, list) else []


def test_answers_have_the_documented_fields(api: InProcess) -> None:
    schemas = api.get("/openapi.json").json()["components"]["schemas"]
    study = api.submit().json()
    assert set(study) == set(schemas["StudyDetail"]["properties"])
    assert set(api.get("/v1/cluster").json()) == set(schemas["ClusterView"]["properties"])
    assert json.dumps(schemas["NewStudy"])
