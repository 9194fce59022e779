"""The job of Slurm, run by the real daemons on this machine: a study goes on through requeues."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.deploy.test_deploy_files import ROOT
from tests.services.processes import environment
from tests.services.serving import free_port
from tests.waiting import PATIENCE_SECONDS, until

JOB = ROOT / "deploy/slurm/scamp.sbatch"
DAEMONS = {
    name: shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    for name in ("munged", "slurmctld", "slurmd")
}
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=15
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={port}
SlurmdPort={other_port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
SchedulerParameters=sched_interval=1,bf_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP
"""
STUDY = """
name: requeued
workload: vit_digits
objective: {metric: accuracy}
space: {lr: {low: 1.0e-3, high: 1.0e-2, log: true}}
fixed: {depth: 2, width: 24, patch: 4}
search: {sampler: random}
stopping: {rule: none}
budget: {trials: 2, steps: 600, report_every: 100}
"""


class Slurm:
    """The daemons of a cluster of this machine, without control groups, and its commands.

    A requeued job runs again after ``cred_expire`` seconds; two minutes are usual.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        host = socket.gethostname().partition(".")[0]
        ports = {"port": free_port(), "other_port": free_port()}
        self._conf = folder / "slurm.conf"
        self._conf.write_text(CONF.format(folder=folder, host=host, cpus=os.cpu_count(), **ports))
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        munge_files = {"--key-file": "munge.key", "--socket": "munge.socket", "--pid-file": "munge.pid",
               "--log-file": "munge.log", "--seed-file": "munge.seed"}  # fmt: skip
        paths = [f"{option}={folder / name}" for option, name in munge_files.items()]
        self._processes = [self._start("munged", "--foreground", "--force", *paths)]
        until((folder / "munge.socket").exists, "munge")
        self._processes += [self._start(name, "-D", "-f", str(self._conf)) for name in ("slurmctld", "slurmd")]
        until(lambda: "idle" in self.run("sinfo", "--noheader", check=False), "an idle node")

    def run(self, *command: str, check: bool = True, variables: Mapping[str, str] = {}) -> str:
        kept = {**os.environ, **variables, "SLURM_CONF": str(self._conf)}
        return subprocess.run(
            command, env=kept, capture_output=True, text=True, check=check, timeout=PATIENCE_SECONDS
        ).stdout

    def state(self, job: str) -> str:
        """State of a job, such as RUNNING."""
        shown = self.run("scontrol", "show", "job", job)
        return shown.partition("JobState=")[2].split()[0]

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(PATIENCE_SECONDS)

    def _start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        program = DAEMONS[name]
        assert program is not None
        with (self.folder / f"{name}.out").open("wb") as output:
            return subprocess.Popen([program, *options], stdout=output, stderr=output, start_new_session=True)


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # a socket's path may not exceed 107 characters
    cluster = Slurm(folder)
    yield cluster
    cluster.stop()
    shutil.rmtree(folder)


def rows(data_dir: Path, query: str) -> list[tuple[object, ...]]:
    try:
        connection = sqlite3.connect(f"file:{data_dir / 'scamp.db'}?mode=ro", uri=True)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()
    except sqlite3.OperationalError:  # it is being made
        return []


EVERY = 100
STOPPED = f"SELECT checkpoint_step % {EVERY} FROM scamp_attempts WHERE outcome = 'STOPPED'"
METRICS = "SELECT DISTINCT trial_id, step FROM scamp_metrics"


def interrupted(slurm: Slurm, job: str, data: Path, after: int) -> set[tuple[object, ...]]:
    """The evaluations at the end of a run of the job, to which its wall time is said to end after so many of them."""
    until(lambda: len(rows(data, METRICS)) > after, "progress")
    slurm.run("scancel", "--batch", "--signal=USR1", job)  # as Slurm does before the wall time
    until(lambda: slurm.state(job) == "PENDING", "the job waits to run again")
    assert rows(data, "SELECT state FROM scamp_studies") == [("RUNNING",)]
    evaluations = set(rows(data, METRICS))
    until(lambda: slurm.state(job) == "RUNNING", "the next run of the job")
    return evaluations


@pytest.mark.ray
@pytest.mark.skipif(os.geteuid() != 0 or None in DAEMONS.values(), reason="Slurm is not installed, or this is not root")
def test_a_study_goes_on_through_two_requeues_of_its_job_and_loses_no_row(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    data, output = tmp_path / "data", tmp_path / "job.out"
    variables = environment(data, SCAMP_VIRTUAL_DEVICES="1", SCAMP_MAX_GANGS_PER_DEVICE="1")
    del variables["SCAMP_PORT"]
    submitted = slurm.run(
        "sbatch", "--parsable", f"--output={output}", "--time=30", str(JOB), str(tmp_path / "study.yaml"),
        variables={**variables, "SCAMP_COMMAND": str(ROOT / "deploy/scamp")},
    )  # fmt: skip
    job = submitted.strip()
    first = interrupted(slurm, job, data, after=3)
    second = interrupted(slurm, job, data, after=len(first) + 3)
    assert first <= second
    until(lambda: slurm.state(job) == "COMPLETED", "the job's end")
    assert second <= set(rows(data, METRICS))
    kept = rows(data, STOPPED)
    assert len(kept) == 2 and kept != [(0,), (0,)], "they stop with a checkpoint, also between two reports"
    assert rows(data, "SELECT state FROM scamp_trials") == [("COMPLETED",)] * 2
    assert rows(data, "SELECT count(*) FROM scamp_studies") == [(1,)], "the key of the job submits it once"
    steps = rows(data, "SELECT count(DISTINCT step) FROM scamp_metrics GROUP BY trial_id")
    assert steps == [(6,)] * 2
    assert output.read_text().count("wall time is near") == 2


def test_the_job_is_a_script_without_mistakes_that_asks_to_be_requeued() -> None:
    text = JOB.read_text()
    assert subprocess.run(["bash", "-n", JOB]).returncode == 0
    for option in ("--requeue", "--signal=B:USR1@", "--open-mode=append"):
        assert f"#SBATCH {option}" in text
