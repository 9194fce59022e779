"""Pods of Kubernetes, rehearsed: each is a set of namespaces, in which Ray is started as KubeRay does and the service
by the very script of its Deployment, with a root that it cannot write. As there, all of a container ends with its first
process."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from operator import gt
from pathlib import Path

import pytest

from scamp_service.lifecycle import Outcome, StudyState, TrialState
from scamp_service.store.store import Store
from tests.deploy.test_deploy_files import ROOT
from tests.deploy.test_kubernetes import service_container, variables
from tests.services.hosts import Host, network
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.hosts, pytest.mark.ray, pytest.mark.soak]

STUDY = """
name: in pods
workload: patient.py:Patient
objective: {metric: accuracy}
space: {lr: {low: 1.0e-3, high: 1.0e-2, log: true}}
fixed: {depth: 1, width: 16, heads: 2, patch: 4}
search: {sampler: random}
stopping: {rule: none}
budget: {trials: 2, steps: 1000, report_every: 5, max_lost: 5}
"""
CODE = """
import os, time
from workloads.models.vit_digits import VitDigits

class Patient(VitDigits):
    def on_step(self, *args):
        super().on_step(*args)
        if not os.path.exists({go!r}):
            time.sleep(0.5)
"""
"""Trains slowly until a file exists, so that the study ends neither before all has been killed nor long after."""
HEAD = "ray start --head --port=6379 --num-cpus=0 --include-dashboard=false"
WORKER = """ray start --address=$SCAMP_RAY_ADDRESS --num-cpus=2 --resources='{"virtual_device": 1}'"""
ON_A_SMALL_HOST = " --node-ip-address=$POD_IP --object-store-memory=100000000 --block"
RAY_RUNS = "Ray runtime started"
LEAVE = Path("deploy/kubernetes/leave")
READ_ONLY = 'mount --rbind /tmp /tmp && mount -o remount,bind,ro / && exec "$@"'
CONTAINER = 'trap : TERM; bash -c "$0"; code=$?; kill -KILL -1; exit $code'


class Pods:
    """Pods that share a folder for checkpoints and, in place of a PostgreSQL, a database in it."""

    def __init__(self, hosts: list[Host]) -> None:
        self.hosts = hosts
        self.shared = hosts[0].shared
        self.store = Store(f"sqlite:///{self.outside('scamp.db')}")
        self._programs = hosts[0].outside.parent / "bin"
        self._programs.mkdir()
        for name, program in (("ray", Path(sys.executable).with_name("ray")), ("scamp", ROOT / "deploy/scamp")):
            (self._programs / name).symlink_to(program)
        self._token = secrets.token_hex(16)
        self.head = hosts[0]

    def outside(self, name: str) -> Path:
        """Path of a file that all pods share."""
        return self.shared / name

    def start(self, host: Host, script: str, runs: str = 'exec bash -c "$0"') -> subprocess.Popen[bytes]:
        """Run a script in a pod, or by ``runs`` as its container does."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SCAMP_", "PYTHON"))}
        declared = {name: value for name, value in variables("base").items() if value is not None and name != "HOME"}
        changed = {
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "POD_IP": host.address,
            "PYTHONDONTWRITEBYTECODE": "1",
            "RAY_AUTH_TOKEN": self._token,
            "SCAMP_API_TOKEN": self._token,
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(PATIENCE_SECONDS),
            "SCAMP_AUTOSCALE_DEVICES": "0",
            "SCAMP_CHECKPOINT_DIR": str(self.outside("checkpoints")),
            "SCAMP_DATABASE_URL": f"sqlite:///{self.outside('scamp.db')}",
            "SCAMP_DATA_DIR": f"{host.disk}/data",
            "SCAMP_KEEP_SECONDS": str(PATIENCE_SECONDS),
            "SCAMP_LEASE_SECONDS": "3",
            "SCAMP_RAY_ADDRESS": f"{self.head.address}:6379",
        }
        command = ["unshare", "--mount", "sh", "-ec", READ_ONLY, "sh", "bash", "-c", runs, script]
        return host.start(command, self.output(host), ROOT, kept | declared | changed)

    def output(self, host: Host) -> Path:
        return host.outside.parent / f"{host.name}.out"

    def run(self, host: Host, script: str, *ready: str) -> subprocess.Popen[bytes]:
        """Start a container until it says these words. On a busy machine Ray gives up, and kubelet starts it again."""
        self.output(host).write_text("")
        process = self.start(host, script, CONTAINER)
        until(lambda: process.poll() is not None or self.says(host, *ready), f"{ready} on {host.name}")
        return process if process.poll() is None else self.run(host, script, *ready)

    def says(self, host: Host, *words: str) -> bool:
        output = self.output(host).read_text()
        return all(word in output for word in words)

    def run_ray(self, host: Host, script: str) -> subprocess.Popen[bytes]:
        return self.run(host, script + ON_A_SMALL_HOST, RAY_RUNS)

    def run_service(self, host: Host) -> subprocess.Popen[bytes]:
        return self.run(host, service_container("base")["args"][0], RAY_RUNS, "ScaMP is at")

    def num_devices(self) -> int:
        recorded = self.store.cluster.recorded()
        return len(recorded[0].devices) if recorded else 0

    def num_rows(self) -> list[int]:
        """Number of rows of each trial."""
        return [len(self.store.reports.metrics(trial.id)) for trial in self.store.trials.page(1)]

    def expect_progress(self) -> None:
        before = self.num_rows()
        until(lambda: all(map(gt, self.num_rows(), before)), "every trial trains")

    def outcomes(self) -> list[Outcome | None]:
        trials = self.store.trials.page(1)
        return [attempt.outcome for trial in trials for attempt in self.store.attempts.of_trial(trial.id)]


@pytest.mark.timeout(3600)
def test_a_study_outlives_the_pod_of_the_service_then_that_of_rays_head_and_then_all_that_train() -> None:
    with network("head", "worker", "service", "next-head", "next-worker", "next-service", "last-worker") as hosts:
        head, worker, service, next_head, next_worker, next_service, last_worker = hosts
        pods = Pods(hosts)
        pods.run_ray(head, HEAD)
        pods.run_ray(worker, WORKER)
        process = pods.run_service(service)
        go = pods.outside("go")
        pods.outside("study.yaml").write_text(STUDY)
        pods.outside("patient.py").write_text(CODE.format(go=str(go)))
        submit = f"scamp submit {pods.outside('study.yaml')} --no-wait"
        assert pods.start(service, submit).wait(PATIENCE_SECONDS) == 0, pods.output(service).read_text()
        until(lambda: len(pods.num_rows()) == 2, "two trials")
        pods.expect_progress()

        next_process = pods.run_service(next_service)  # ranks wait 60 s for it, and a busy machine may start it in more
        for pid in service.pids("wait -n"):
            os.kill(pid, signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)
        service.kill()
        pods.expect_progress()
        assert pods.outcomes() == [None, None], "in the same attempts, as their ranks have not ended"

        head.kill()
        assert next_process.wait(PATIENCE_SECONDS) != 0, "the container ends with its Ray, and is started again"
        worker.kill()
        pods.head = next_head
        pods.run_ray(next_head, HEAD)
        container = pods.run_ray(next_worker, WORKER)
        pods.run_service(next_service)
        pods.expect_progress()

        pods.start(next_worker, str(ROOT / LEAVE))
        container.wait(PATIENCE_SECONDS)
        until(lambda: pods.num_devices() == 0, "a cluster without devices")
        assert Counter(pods.outcomes())[Outcome.STOPPED] == 2, "both trials have a checkpoint of their last step"
        pods.run_ray(last_worker, WORKER)
        go.touch()
        until(lambda: pods.store.studies.get(1).state is not StudyState.RUNNING, "the end of the study")
        assert {trial.state for trial in pods.store.trials.page(1)} == {TrialState.COMPLETED}
        assert set(pods.outcomes()) == {Outcome.LOST, Outcome.STOPPED, Outcome.DONE}
        pods.store.close()
