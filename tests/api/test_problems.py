"""Errors tell what to do and nothing of our insides."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from api import problems
from tests.services.serving import InProcess


def test_an_error_of_ours_shows_nothing_of_our_insides(
    api: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a secret at /home/somebody")

    monkeypatch.setattr(type(api.store.studies), "page", broken)
    answer = api.get("/v1/studies", headers={"Authorization": "Bearer hidden-from-logs"})
    assert answer.status_code == 500
    assert answer.json() == {
        "type": "about:blank",
        "title": "Internal Server Error",
        "status": 500,
        "detail": "ScaMP failed on this request; see the log of the API for the reason",
    }
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "a secret at /home/somebody" in caplog.text and "hidden-from-logs" not in caplog.text


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/studies/99", "there is no study 99"),
        ("/studies/99/trials/0", "99"),
        ("/studies/99999999999999999999", "nothing at this address"),
        ("/studies/<script>", "nothing at this address"),
        ("/no/such/page", "nothing at this address"),
    ],
)
def test_a_page_that_does_not_exist_is_a_404_for_browsers_and_for_programs(
    api: InProcess, path: str, words: str
) -> None:
    page = api.get(path, headers={"Accept": "text/html,*/*"})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert words in page.text and "<script" not in page.text
    answer = api.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


def test_the_api_answers_browsers_with_problems_too(api: InProcess) -> None:
    answer = api.get("/v1/studies/99", headers={"Accept": "text/html"})
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


def test_a_client_that_leaves_before_its_body_is_whole_is_no_failure_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await problems.read_body(Request(scope, receive), 1000)

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/studies", "headers": [], "query_string": b""}
    asyncio.run(problems.Unexpected(app)(scope, receive, send))
    assert sent == []
    assert caplog.text == ""


def test_a_request_that_is_cancelled_as_the_service_ends_is_to_be_sent_again() -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message)

    async def cancelled() -> None:
        scope = {"type": "http", "method": "POST", "path": "/v1/studies", "headers": [], "query_string": b""}
        request = asyncio.create_task(problems.Unexpected(app)(scope, send, send))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        request.cancel()
        await request

    asyncio.run(cancelled())
    assert sent[0]["status"] == 503 and (b"retry-after", b"1") in sent[0]["headers"]
    assert b"send the same request again" in sent[1]["body"]
