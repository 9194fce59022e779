"""Prometheus reads what the database says now, and how requests went."""

from __future__ import annotations

import json
import math
import re
import time

from prometheus_client.parser import text_string_to_metric_families

from placement.packing.device_time import Watch
from scamp_service.lifecycle import CONTROLLER_LEASE
from scamp_service.model import Report
from scamp_service.store.recorded_cluster import RecordedCluster
from tests.conftest import ROOT
from tests.services.serving import DEVICE, InProcess, fill
from tests.waiting import PATIENCE_SECONDS


def samples(api: InProcess) -> dict[tuple[str, ...], float]:
    answer = api.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def use_devices(api: InProcess, share: float) -> None:
    (attempt,) = api.store.attempts.open()
    load = (Watch(time.time(), 60.0, share, 80.0),)
    assert api.store.reports.add(Report(attempt.trial_id, attempt.attempt, attempt.token, load=load), now=time.time())


def test_the_database_is_counted_by_state(api: InProcess) -> None:
    fill(api.store)
    assert math.isnan(samples(api)["scamp_controller_silent_seconds",])
    api.store.cluster.record(RecordedCluster("ready", "", (DEVICE,)), now=time.time() - 2 * PATIENCE_SECONDS)
    values = samples(api)
    assert values["scamp_trials", "state=COMPLETED"] == 1
    assert values["scamp_trials", "state=INFEASIBLE"] == 0
    assert values["scamp_studies", "state=RUNNING"] == 1
    assert not {("scamp_studies", "state=DELETED"), ("scamp_trials", "state=DELETED")} & values.keys()
    assert values["scamp_open_attempts",] == 1
    assert values["scamp_device_capacity_bytes", "device=n/0", "kind=virtual"] == 96 * 2**20
    assert values["scamp_device_reserved_bytes", "device=n/0", "kind=virtual"] == 4 * 2**20
    assert values["scamp_controller_silent_seconds",] > PATIENCE_SECONDS
    assert not any(name == "scamp_gang_busy_ratio" for name, *_ in values)
    use_devices(api, 0.25)
    values = samples(api)
    assert values["scamp_gang_busy_ratio", "study=1", "trial=1"] == 0.25
    holder = "owner=", "project=default"
    held, busy = (values[f"scamp_month_{name}device_seconds", *holder] for name in ("watched_", "busy_"))
    assert held == 4 * busy > 0
    assert api.store.leases.take(CONTROLLER_LEASE, "a controller", None, now=time.time())
    assert 0 <= samples(api)["scamp_controller_silent_seconds",] < PATIENCE_SECONDS


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
    assert values["scamp_api_request_duration_seconds_count", "route=/v1/studies/{study_id}"] == 4


def test_names_have_the_prefix_and_base_units_and_only_counters_end_in_total(api: InProcess) -> None:
    api.get("/v1/studies")
    for family in text_string_to_metric_families(api.get("/metrics").text):
        assert re.fullmatch(r"scamp_[a-z_]+", family.name) and family.documentation
        assert not re.search(r"_(mib|gib|kb|mb|ms|milliseconds|minutes|hours|percent)(_|$)", family.name)
        assert (family.type == "counter") == any(sample.name.endswith("_total") for sample in family.samples)


def test_the_dashboard_for_grafana_asks_for_metrics_and_labels_that_are_served(api: InProcess) -> None:
    fill(api.store)
    use_devices(api, 0.5)
    api.store.cluster.record(RecordedCluster("ready", "", (DEVICE,)), now=time.time())
    api.get("/v1/studies")
    labels: dict[str, set[str]] = {}
    for name, *pairs in samples(api):
        labels.setdefault(name, set()).update(pair.partition("=")[0] for pair in pairs)
    dashboard = json.loads((ROOT / "deploy/grafana.json").read_text())
    (variable,) = dashboard["templating"]["list"]
    assert (variable["name"], variable["type"], variable["query"]) == ("datasource", "datasource", "prometheus")
    queried = set()
    for panel in dashboard["panels"]:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            names = re.findall(r"scamp_\w+", target["expr"])
            assert names and set(names) <= labels.keys()
            grouped = {word for words in re.findall(r"by \(([^)]*)\)", target["expr"]) for word in words.split(", ")}
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            selected = set(re.findall(r"(\w+)=~?\"", target["expr"]))
            assert grouped | shown | selected <= set.intersection(*(labels[name] for name in names))
            queried |= set(names)
    assert {name for name in labels if not name.endswith(("_created", "_count", "_sum"))} == queried
