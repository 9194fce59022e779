"""A rehearsal: a service whose GPUs are those of a file, from Ray's bundles to its clients; ranks train on the CPU."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from scamp_service.cluster.devices import bundles
from scamp_service.cluster.devices.pools import Pools
from scamp_service.settings import Settings
from tests.services.processes import Served, run_scamp
from tests.waiting import until

pytestmark = pytest.mark.ray

HOST = """
[gpu 0-1]
name = NVIDIA A100-SXM4-80GB
mib = 81920
nvlinks = switch:12

[gpu 2]
name = Tesla T4
mib = 15360

[gpu 3]
name = Tesla T4
mib = 15360
processes = {process}
"""
OFFERED = {"A100-80": {79872}, "T4": {13312, 13312 - 4096}}
"""Kind → MiB of its GPUs for four gangs, while another process holds 4096 MiB of one."""

MINE = """
import json, os
from workloads.models.vit_digits import VitDigits

class Mine(VitDigits):
    def build_model(self):
        with open({file!r}, "a") as file:
            number = self.trial.number if self.trial is not None else None
            file.write(json.dumps([number, os.environ.get("CUDA_VISIBLE_DEVICES")]) + chr(10))
        return super().build_model()
"""
STUDY = """
name: rehearsed
workload: mine.py:Mine
objective: {metric: accuracy}
space: {lr: {low: 1e-3, high: 1e-2, log: true}}
fixed: {depth: 1, width: 32, patch: 4}
search: {sampler: random}
stopping: {rule: none}
budget: {trials: 8, steps: 4, report_every: 2}
"""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    file = tmp_path / "gpus.ini"
    file.write_text(HOST.format(process="4321:4096"))
    return file


def test_a_study_trains_on_rehearsed_gpus_of_two_kinds_and_each_rank_sees_its_own(host: Path, tmp_path: Path) -> None:
    environments = tmp_path / "environments"
    (tmp_path / "mine.py").write_text(MINE.format(file=str(environments)))
    (tmp_path / "study.yaml").write_text(STUDY)
    rehearsal = {"SCAMP_REHEARSAL_GPUS": str(host)}
    service = Served(tmp_path / "data", **rehearsal)
    try:
        client = service.client
        until(lambda: len(client.cluster()["devices"]) == 4, "four GPUs")
        cluster = client.cluster()
        offered = defaultdict(set)
        for device in cluster["devices"]:
            offered[device["kind"]].add(device["capacity_mib"])
        assert offered == OFFERED
        assert cluster["detail"].startswith("this is a rehearsal")
        sent = run_scamp(tmp_path / "data", "submit", tmp_path / "study.yaml", **rehearsal)
        assert sent.returncode == 0, sent.stderr
        shown = run_scamp(tmp_path / "data", "status", "1", **rehearsal)
        assert "this is a rehearsal" in shown.stdout
        index = {device["id"]: device["index"] for device in cluster["devices"]}
        visible = {number: cuda for number, cuda in map(json.loads, environments.read_text().splitlines()) if cuda}
        for trial in client.trials(1):
            assert trial["state"] == "COMPLETED", trial["reason"]
            *_, attempt = client.trial(1, trial["number"])["attempts"]
            (device,) = attempt["devices"]
            assert visible[trial["number"]] == str(index[device]), "the rank sees the GPU that the packer chose"
    finally:
        service.abandon()


@pytest.fixture
def own_ray() -> Iterator[None]:
    ray.init(address="local", num_gpus=4, num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("own_ray")
def test_what_gpus_offer_follows_other_processes_and_failures(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MEASURE_AGAIN_SECONDS", 0.0)
    pools = Pools(Settings(rehearsal_gpus=str(host)), "rehearsed")

    def offered() -> list[tuple[int, int]]:
        pools.follow({node["NodeID"]: node for node in ray.nodes()})
        return [(device.index, device.capacity_mib) for device in pools.cluster.devices]

    before = [(0, 79872), (1, 79872), (2, 13312), (3, 9216)]
    until(lambda: offered() == before, "all GPUs are measured")
    host.write_text(HOST.format(process="4321:4096 4322:9216"))
    until(lambda: offered() == before[:3], "another process holds the rest of GPU 3")
    assert "GPU 3 (Tesla T4) has 15360 MiB, of which other processes hold 13312 MiB" in pools.detail
    host.write_text(HOST.format(process="\nlost = yes").replace("switch:12", "switch:12\nworn_out = yes"))
    until(lambda: offered() == before[2:3], "some are lost or have memory errors")
    host.write_text("[driver]\nerror = 18\n" + HOST.format(process=""))
    until(lambda: offered() == [], "the driver is reloaded")
    assert "NVML shows none of its Ray's GPUs" in pools.detail
    host.write_text(HOST.format(process=""))
    until(lambda: offered() == [*before[:3], (3, 13312)], "all are back, and the other process has ended")
    pools.remove()
