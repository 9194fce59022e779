"""A study through Ray's own job API, on a cluster that somebody else has started: a head node with tokens."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from scamp_service.store.store import Store
from tests.services.curious import SECRETS, curious, found_in
from tests.services.processes import ROOT, environment
from tests.services.serving import free_port
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.ray

STUDY = """
name: through a job
workload: vit_digits
objective: {metric: accuracy}
space: {lr: {low: 1e-3, high: 1e-2, log: true}}
fixed: {depth: 1, width: 32, patch: 4}
budget: {trials: 2, steps: 4, report_every: 2}
"""


class Head:
    """``ray start --head`` in the foreground, and its job server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        token = folder / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        self.port, self.dashboard = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.dashboard}"
        self.environment = environment(folder / "data", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token))
        self.environment |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore", **SECRETS}
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._http = httpx.Client(headers={"Authorization": f"Bearer {token.read_text()}"})
        options = {
            "port": self.port,
            "node-ip-address": "127.0.0.1",
            "dashboard-host": "127.0.0.1",
            "dashboard-port": self.dashboard,
            "dashboard-agent-listen-port": free_port(),
            "ray-client-server-port": free_port(),
            "min-worker-port": 0,
            "max-worker-port": 0,
            "num-cpus": 2,
            "object-store-memory": 100 * 10**6,
            "temp-dir": folder / "ray",
            "resources": '{"virtual_device": 4}',
        }
        ray = Path(sys.executable).with_name("ray")
        with (folder / "head.out").open("w") as output:
            self.process = subprocess.Popen(
                [ray, "start", "--head", "--block", *(f"--{name}={value}" for name, value in options.items())],
                cwd=folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        until(self._answers, "the job server")

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self.folder / "head.out").read_text()
        try:
            return self.get("/api/version").is_success
        except httpx.TransportError:
            return False

    def get(self, path: str) -> httpx.Response:
        return self._http.get(self.url + path)

    def listed(self, resource: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.get(f"/api/v0/{resource}").json()["data"]["result"]["result"]
        return rows

    def submit(self, *command: str) -> subprocess.CompletedProcess[str]:
        ray = Path(sys.executable).with_name("ray")
        return subprocess.run(
            [ray, "job", "submit", "--address", self.url, "--working-dir", ".", "--", *command],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )

    def stop(self) -> None:
        self._http.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    folder = Path(tempfile.mkdtemp(prefix="scamp-head-", dir="/tmp"))  # a socket's path may not exceed 107 characters
    head = Head(folder)
    try:
        yield head
    finally:
        head.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_two_studies_run_as_jobs_one_after_the_other_and_leave_nothing_on_the_cluster(head: Head) -> None:
    """Each job has a database of its own, so neither knows what the other reserves: the devices belong to one."""
    usual = head.folder / "usual.yaml"
    usual.write_text(STUDY)

    def run(study: Path) -> tuple[float, float]:
        data = head.folder / study.stem
        job = head.submit("python", "-m", "scamp_service", "run", str(study), "--json", "--data-dir", str(data))
        assert job.returncode == 0, job.stdout + job.stderr
        summary = json.loads(next(line for line in job.stdout.splitlines() if line.startswith('{"study"')))
        assert summary["trials"] == {"COMPLETED": 2}
        store = Store(f"sqlite:///{data}/scamp.db")
        attempts = [attempt for trial in store.trials.page(1) for attempt in store.attempts.of_trial(trial.id)]
        assert all(len(store.reports.metrics(attempt.trial_id)) == 2 for attempt in attempts)
        store.close()
        return min(attempt.created_at for attempt in attempts), max(attempt.ended_at or 0.0 for attempt in attempts)

    with ThreadPoolExecutor(2) as pool:
        first, second = sorted(pool.map(run, [usual, curious(head.folder)]))
    assert first[1] <= second[0], "both held the same devices at once"
    assert {actor["state"] for actor in head.listed("actors")} == {"DEAD"}
    assert {group["state"] for group in head.listed("placement_groups")} == {"REMOVED"}
    check_secrets(head.folder)


def check_secrets(folder: Path) -> None:
    """Ranks have no secret that their nodes were started with. Their parent, the raylet, has: it is not ours."""
    secrets_of = found_in(folder)
    assert secrets_of.keys() == {"rank", "trace"}
    of_environment = [
        pair for pairs in secrets_of.values() for pair in pairs if pair[0] in ("os.environ", "/proc/self/environ")
    ]
    assert of_environment == []
    assert {name for _, name in secrets_of["rank"]} == SECRETS.keys(), "the secrets were there to be found"


def test_nobody_submits_without_the_token(head: Head) -> None:
    ray = Path(sys.executable).with_name("ray")
    environment = {**head.environment, "RAY_AUTH_TOKEN": "f" * 64}  # it wins over the file
    command: list[str | Path] = [ray, "job", "submit", "--address", head.url, "--", "true"]
    job = subprocess.run(
        command, env=environment, cwd=head.folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert job.returncode != 0 and "token" in (job.stdout + job.stderr).lower()
    assert httpx.get(f"{head.url}/api/jobs/").status_code in (401, 403)
