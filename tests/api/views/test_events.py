"""Events: what the store writes is what the API documents, as JSON, in OpenAPI and on the page."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import get_args

import pytest

from api.views.events import EventView
from scamp_service.store.events import Change
from scamp_service.store.recorded_cluster import RecordedCluster, RecordedController
from tests.services.serving import DEVICE, InProcess, fill

PAGE = Path(__file__).parents[3] / "docs" / "api.md"
KINDS = {change.kind: {field.name for field in fields(change)} for change in get_args(Change)}


def test_the_page_has_each_kind_of_event_with_its_fields() -> None:
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| (.*) \|$", PAGE.read_text().split("## Events")[1], re.MULTILINE)
    assert {kind: set(re.findall(r"`(\w+)`", cell)) for kind, cell in rows} == KINDS


def test_every_kind_of_event_arrives_as_it_is_documented(api: InProcess) -> None:
    fill(api.store)
    leader = RecordedController("head", 17, since=5.0)
    api.store.cluster.record(RecordedCluster("ready", "", (DEVICE,), controller=leader), now=time.time())
    events = [json.loads(json.dumps(asdict(event))) for event in api.store.events.page()]
    assert {event["kind"] for event in events} == set(KINDS)
    for event in events:
        assert EventView.model_validate(event).model_dump(mode="json") == event


@pytest.mark.parametrize("kind", KINDS)
def test_the_description_of_the_api_has_a_model_for_each_kind(api: InProcess, kind: str) -> None:
    schemas = api.get("/openapi.json").json()["components"]["schemas"]
    of_kind = schemas["EventView"]["discriminator"]["mapping"][kind].rsplit("/", 1)[-1]
    data = schemas[of_kind]["properties"]["data"]["$ref"].rsplit("/", 1)[-1]
    assert set(schemas[data]["properties"]) == KINDS[kind]
