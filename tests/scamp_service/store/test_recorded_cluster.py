"""The state of the cluster passes through JSON, and that of earlier versions is read."""

from __future__ import annotations

import json
from dataclasses import asdict

from placement.model import Device
from scamp_service.store.recorded_cluster import ContainedError, RecordedCluster, RecordedController, RecordedDevice

DEVICE = Device("n/0", "n", 0, "virtual", 96)


def test_a_recorded_cluster_is_the_same_after_it_was_json() -> None:
    errors = (ContainedError("propose 4 candidates", "ValueError: no", 3, first_at=1.5, last_at=2.0, times=2),)
    controller = RecordedController("head", 17, since=0.1, errors=errors)
    recorded = RecordedCluster("ready", "", (RecordedDevice(DEVICE, "a rank does not answer"),), "known", controller)
    assert RecordedCluster.from_json(json.loads(json.dumps(recorded.to_json()))) == recorded


def test_a_version_that_recorded_less_is_read() -> None:
    earlier = {"status": "ready", "detail": "", "devices": [asdict(DEVICE)]}
    assert RecordedCluster.from_json(earlier) == RecordedCluster("ready", "", (RecordedDevice(DEVICE),))
    assert RecordedCluster.from_json({**earlier, "controller": {}}).controller is None
