"""Deliveries are listed without the secrets of their addresses, and a test is one for each receiver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scamp_service.receivers import Receiver
from tests.services.serving import SPEC, InProcess, settings_in

SLACK = {"webhook": "https://hooks.example.org/secret", "format": "slack"}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[InProcess]:
    ours = Receiver(webhook="https://ours.test/secret")
    api = InProcess(settings_in(tmp_path, notify=[ours], smtp_url="smtp://mail.test"))
    yield api
    api.close()


def test_the_receivers_of_a_study_or_of_the_settings_are_tested(api: InProcess) -> None:
    study = api.submit({**SPEC, "notify": [SLACK, {"email": "ada@example.org"}]}).json()["id"]
    tested = api.post(f"/v1/studies/{study}/deliveries:test")
    assert tested.status_code == 201
    assert [(row["kind"], row["to"], row["study_id"], row["state"]) for row in tested.json()] == [
        ("test", "https://hooks.example.org/…", study, "WAITING"),
        ("test", "ada@example.org", study, "WAITING"),
    ]
    (ours,) = api.post("/v1/deliveries:test").json()
    assert (ours["to"], ours["study_id"], ours["num_attempts"]) == ("https://ours.test/…", None, 0)
    listed = api.get("/v1/deliveries").json()["items"]
    assert listed == [*tested.json(), ours]
    assert api.get(f"/v1/studies/{study}/deliveries").json()["items"] == tested.json()
    assert "secret" not in api.get("/v1/deliveries").text


def test_deliveries_come_in_pages(api: InProcess) -> None:
    ids = [api.post("/v1/deliveries:test").json()[0]["id"] for _ in range(3)]
    first = api.get("/v1/deliveries?newest_first=true&limit=2").json()
    assert [row["id"] for row in first["items"]] == ids[:0:-1]
    rest = api.get(f"/v1/deliveries?newest_first=true&limit=2&after={first['next']}").json()
    assert [row["id"] for row in rest["items"]] == ids[:1] and rest["next"] is None


def test_a_test_of_nobody_is_refused(api: InProcess) -> None:
    study = api.submit().json()["id"]
    answer = api.post(f"/v1/studies/{study}/deliveries:test")
    assert answer.status_code == 422 and f"study {study} names no receivers" in answer.json()["detail"]
    assert api.post("/v1/studies/99/deliveries:test").status_code == 404
    assert api.get("/v1/studies/99/deliveries").status_code == 404


def test_a_study_whose_receivers_cannot_be_sent_to_is_refused(tmp_path: Path) -> None:
    api = InProcess(settings_in(tmp_path / "other"))
    for receiver, words in (
        ({"email": "ada@example.org"}, "SCAMP_SMTP_URL"),
        ({"webhook": "http://localhost:9/"}, "SCAMP_NOTIFY_NETWORKS"),
        ({"webhook": "https://example.org/", "on": ["nothing"]}, "notify.0.on.0: must be 'study.ended'"),
        ({"webhook": "https://example.org/", "of": []}, "notify.0.of: unknown key; allowed keys: webhook, email"),
    ):
        answer = api.submit({**SPEC, "notify": [receiver]})
        assert answer.status_code == 422 and words in answer.json()["detail"]
    assert api.get("/v1/studies").json()["items"] == []
    api.close()


def test_a_clone_is_refused_where_its_receivers_cannot_be_sent_to(tmp_path: Path, api: InProcess) -> None:
    study = api.submit({**SPEC, "notify": [{"email": "ada@example.org"}]}).json()["id"]
    assert api.post(f"/v1/studies/{study}:clone", json={}).status_code == 201
    other = InProcess(settings_in(tmp_path))
    assert other.post(f"/v1/studies/{study}:clone", json={}).status_code == 422
    other.close()
