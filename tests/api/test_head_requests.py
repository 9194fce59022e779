"""HEAD at every address, and the methods that an address names."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.services.serving import InProcess, fill, free_port, served, settings_in
from tests.waiting import PATIENCE_SECONDS


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/login", "/v1/studies", "/v1/nothing", "/openapi.json"])
def test_head_has_the_status_and_headers_of_get_and_no_body(api: InProcess, path: str) -> None:
    got, head = api.get(path), api.request("HEAD", path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert dict(head.headers) == dict(got.headers)


def test_head_of_a_stream_and_of_a_file_ends_at_once(tmp_path: Path) -> None:
    with served(settings_in(tmp_path, port=free_port())) as (url, store):
        fill(store)
        for path in ("/v1/events?after=0", "/static/x/vendor/uplot/uPlot.esm.js", "/v1/studies"):
            answer = httpx.head(url + path, timeout=PATIENCE_SECONDS)
            assert (answer.status_code, answer.content) == (200, b"")
        assert "scamp_api_event_clients 0.0" in httpx.get(f"{url}/metrics").text


def test_a_failure_before_the_answer_is_a_problem_for_head_too(api: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(api.store.studies), "page", lambda *_, **__: 1 / 0)
    assert api.request("HEAD", "/v1/studies").status_code == 500


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/studies", "GET, HEAD, POST"),
        ("POST", "/v1/studies/1", "DELETE, GET, HEAD, PATCH"),
        ("PUT", "/login", "GET, HEAD, POST"),
        ("POST", "/metrics", "GET, HEAD"),
    ],
)
def test_a_method_that_is_not_supported_is_answered_with_those_that_are(
    api: InProcess, method: str, path: str, allowed: str
) -> None:
    answer = api.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
