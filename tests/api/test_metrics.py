"""Prometheus reads what the database says now, and how requests went."""

from __future__ import annotations

import time

from prometheus_client.parser import text_string_to_metric_families

from scamp_service.store.recorded_cluster import RecordedCluster
from tests.services.serving import DEVICE, InProcess, fill


def samples(api: InProcess) -> dict[tuple[str, ...], float]:
    answer = api.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_the_database_is_counted_by_state(api: InProcess) -> None:
    fill(api.store)
    api.store.cluster.record(RecordedCluster("ready", "", (DEVICE,)), now=time.time())
    values = samples(api)
    assert values["scamp_trials", "state=COMPLETED"] == 1
    assert values["scamp_trials", "state=INFEASIBLE"] == 0
    assert values["scamp_studies", "state=RUNNING"] == 1
    assert values["scamp_open_attempts",] == 1
    assert values["scamp_device_capacity_mib", "device=n/0", "kind=virtual"] == 96
    assert values["scamp_device_reserved_mib", "device=n/0", "kind=virtual"] == 4


def test_requests_are_counted_by_route_so_that_labels_do_not_grow(api: InProcess) -> None:
    for study_id in (1, 2, 3):
        api.get(f"/v1/studies/{study_id}")
    api.get("/no/such/page")
    api.get("/v1/studies", headers={"Host": "evil.example"})
    api.request("BREW", "/v1/studies")
    api.request("DELETE", "/v1/studies/9")
    values = samples(api)
    counted = {key[1:]: value for key, value in values.items() if key[0] == "scamp_api_requests_total"}
    assert counted["method=GET", "route=/v1/studies/{study_id}", "status=404"] == 3
    assert counted["method=DELETE", "route=/v1/studies/{study_id}", "status=404"] == 1
    assert counted["method=GET", "route=none", "status=404"] == 1
    assert counted["method=GET", "route=none", "status=421"] == 1
    assert {method for method, *_ in counted} == {"method=GET", "method=DELETE", "method=other"}
    assert values["scamp_api_request_seconds_count", "route=/v1/studies/{study_id}"] == 4
