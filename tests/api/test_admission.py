"""A submission holds up no other: imports wait in a bounded queue, and a repeated request joins the first."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
import time
import zipfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from api import admission
from scamp_service.store.recorded_cluster import RecordedCluster
from tests.services.serving import DEVICE, SPEC, WORKLOAD, InProcess
from tests.waiting import PATIENCE_SECONDS

JSON = {"Content-Type": "application/json"}


class Imports:
    """In place of the import of a user's files: each waits until ``finish`` is set."""

    def __init__(self) -> None:
        self.finish, self.begun = threading.Event(), 0

    def __call__(self, spec: Any, code: bytes | None, *_: Any) -> list[str]:
        if code is None:
            return []
        self.begun += 1
        assert self.finish.wait(PATIENCE_SECONDS)
        return ["momentum may not be read"]


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[Imports]:
    fake = Imports()
    monkeypatch.setattr(admission, "check_workload", fake)
    yield fake
    fake.finish.set()


def body(name: str = "mine") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("net.py", WORKLOAD)
    code = base64.b64encode(buffer.getvalue()).decode()
    return json.dumps({"spec": {**SPEC, "name": name, "workload": "net.py:Mine"}, "code_zip": code}).encode()


class Crowd:
    """Requests to the app that run at the same time."""

    def __init__(self, api: InProcess) -> None:
        transport = httpx.ASGITransport(api.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8100", timeout=PATIENCE_SECONDS)

    def post(self, content: bytes, **headers: str) -> asyncio.Task[httpx.Response]:
        return asyncio.create_task(self.http.post("/v1/studies", content=content, headers={**JSON, **headers}))


async def until_importing(imports: Imports, api: InProcess, number: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while imports.begun < 1 or api.app.state.admission.num_under_way["imports"] < number:
            await asyncio.sleep(0.01)


def test_beyond_the_queue_of_imports_the_answer_is_503_and_all_else_is_answered(
    api: InProcess, imports: Imports
) -> None:
    async def crowd() -> None:
        requests = Crowd(api)
        waiting = [requests.post(body(f"study {number}")) for number in range(admission.MOST_IMPORTS)]
        await until_importing(imports, api, admission.MOST_IMPORTS)
        refused = await requests.post(body("one more"))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert "send the same request again" in refused.json()["detail"]
        assert (await requests.post(json.dumps({"spec": SPEC}).encode())).status_code == 201  # needs no import
        for path in ("/healthz", "/", "/v1/studies", "/metrics"):
            assert (await requests.http.get(path)).status_code == 200
        assert imports.begun == 1, "one import at a time"
        imports.finish.set()
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [201] * admission.MOST_IMPORTS
        assert (await requests.post(body("one more"))).status_code == 201

    asyncio.run(crowd())


def test_a_request_that_is_repeated_while_it_is_under_way_is_imported_and_stored_once(
    api: InProcess, imports: Imports
) -> None:
    async def crowd() -> None:
        requests = Crowd(api)
        content = body()
        first = requests.post(content, **{"Idempotency-Key": "k"})
        await until_importing(imports, api, 1)
        again = requests.post(content, **{"Idempotency-Key": "k"})
        other = requests.post(body("another"), **{"Idempotency-Key": "k"})
        await until_importing(imports, api, 2)
        imports.finish.set()
        answers = await asyncio.gather(first, again, other)
        statuses = [answer.status_code for answer in answers]
        assert statuses in ([201, 201, 409], [409, 409, 201]), "whichever body is stored first has the key"
        assert answers[0].json().get("id") == answers[1].json().get("id")

    asyncio.run(crowd())
    assert imports.begun == 2
    assert len(api.store.studies.page()) == 1


def test_a_known_key_is_answered_without_another_import(api: InProcess, imports: Imports) -> None:
    imports.finish.set()
    headers, content = {**JSON, "Idempotency-Key": "k"}, body()  # a zip has the time in it
    first, again = (api.post("/v1/studies", content=content, headers=headers) for _ in range(2))
    assert first.json()["warnings"] == again.json()["warnings"] == ["momentum may not be read"]
    assert first.json()["id"] == again.json()["id"]
    assert imports.begun == 1
    assert api.post("/v1/studies", content=body("another"), headers=headers).status_code == 409
    assert imports.begun == 1


def test_a_study_that_is_bound_to_kinds_that_are_not_there_is_warned(api: InProcess) -> None:
    def warnings(kinds: list[str]) -> list[str]:
        return list(api.submit({**SPEC, "kinds": kinds}).json()["warnings"])

    assert not warnings(["A100-80"]), "no devices are known yet"
    api.store.cluster.record(RecordedCluster("ready", "", (DEVICE,)), now=time.time())
    assert not warnings(["A100-80", "virtual"])
    (warning,) = warnings(["A100-80"])
    assert warning == (
        "the study may use A100-80 alone (kinds), and the cluster has virtual: its candidates are INFEASIBLE"
    )


def test_only_so_many_large_bodies_are_read_at_once(api: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_UPLOADS", 0)
    large = {**JSON, "Content-Length": str(2**20 + 1)}
    assert api.post("/v1/studies", content=b"{}", headers=large).status_code == 503
    assert api.post("/v1/studies", content=b"{}", headers=JSON).status_code == 422


def test_a_body_that_does_not_arrive_is_given_up(api: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.problems.BODY_SECONDS", 0.05)

    async def never() -> Any:
        yield b"{"
        await asyncio.sleep(30)

    assert api.post("/v1/studies", content=never(), headers=JSON).status_code == 408


def test_the_service_ends_while_a_study_is_imported(
    api: InProcess, imports: Imports, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[bool] = []

    def kill() -> None:
        killed.append(True)
        imports.finish.set()

    monkeypatch.setattr(admission, "TraceProcess", lambda: SimpleNamespace(kill=kill))

    async def close() -> None:
        request = Crowd(api).post(body())
        await until_importing(imports, api, 1)
        api.app.state.admission.close()
        assert (await request).status_code == 500  # what follows the import is no longer done

    asyncio.run(close())
    assert killed == [True]
    assert api.store.studies.page() == []
