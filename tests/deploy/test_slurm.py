"""The job of Slurm, run by the real daemons on this machine: a study goes on through requeues."""

from __future__ import annotations

import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.deploy.test_deploy_files import ROOT
from tests.services.hosts import network
from tests.services.hosts import why_not as why_no_hosts
from tests.services.processes import environment, run_scamp
from tests.services.slurm import WHY_NOT, Slurm, slurm_on
from tests.waiting import until

JOB = ROOT / "deploy/slurm/scamp.sbatch"
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


def submit(slurm: Slurm, folder: Path, *options: str, words: Sequence[str] = (), **variables: str) -> str:
    """Submit the job, with one virtual device on each node, and return its number. ``words`` replace those after it."""
    if not (folder / "study.yaml").exists():
        (folder / "study.yaml").write_text(STUDY)
    kept = environment(folder / "data", SCAMP_VIRTUAL_DEVICES="1", SCAMP_MAX_GANGS_PER_DEVICE="1", **variables)
    del kept["SCAMP_PORT"]
    command = ["sbatch", "--parsable", f"--output={folder / 'job.out'}", "--time=30", *options]
    return slurm.run(*command, str(JOB), *(words or [str(folder / "study.yaml")]), variables=kept).strip()


def command_in(shared: Path) -> dict[str, str]:
    """The variable that names the command `scamp` of a folder that all nodes see, beside Ray's."""
    for name, program in (("ray", Path(sys.executable).with_name("ray")), ("scamp", ROOT / "deploy/scamp")):
        (shared / name).symlink_to(program)
    return {"SCAMP_COMMAND": str(shared / "scamp")}


def evaluations(data: Path, after: int) -> set[tuple[object, ...]]:
    """The evaluations once there are more than ``after``."""
    until(lambda: len(rows(data, METRICS)) > after, "progress")
    return set(rows(data, METRICS))


def interrupted(slurm: Slurm, job: str, data: Path, after: int) -> set[tuple[object, ...]]:
    """The evaluations at the end of a run of the job, to which its wall time is said to end after so many of them."""
    evaluations(data, after)
    slurm.run("scancel", "--batch", "--signal=USR1", job)  # as Slurm does before the wall time
    until(lambda: slurm.state(job) == "PENDING", "the job waits to run again")
    assert rows(data, "SELECT state FROM scamp_studies") == [("RUNNING",)]
    seen = set(rows(data, METRICS))
    until(lambda: slurm.state(job) == "RUNNING", "the next run of the job")
    return seen


def expect_whole(data: Path) -> None:
    """The one study has ended with all rows of both trials."""
    assert rows(data, "SELECT state FROM scamp_trials") == [("COMPLETED",)] * 2
    assert rows(data, "SELECT count(*) FROM scamp_studies") == [(1,)], "the key of the job submits it once"
    assert rows(data, "SELECT count(DISTINCT step) FROM scamp_metrics GROUP BY trial_id") == [(6,)] * 2


@pytest.mark.ray
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_a_study_goes_on_through_a_requeue_of_its_job_and_in_another_job_and_loses_no_row(tmp_path: Path) -> None:
    data, command = tmp_path / "data", str(ROOT / "deploy/scamp")
    with slurm_on() as slurm:
        job = submit(slurm, tmp_path, SCAMP_COMMAND=command)
        first = interrupted(slurm, job, data, after=3)
        assert len(rows(data, STOPPED)) == 1, "it stops with a checkpoint"
        second = evaluations(data, after=len(first) + 2)
        assert first <= second

        slurm.run("scancel", job)
        until(lambda: slurm.state(job) == "CANCELLED", "the job is cancelled")
        second |= set(rows(data, METRICS))
        assert rows(data, "SELECT state FROM scamp_studies") == [("RUNNING",)]
        next_job = submit(slurm, tmp_path, SCAMP_COMMAND=command, SCAMP_JOB=job)
        assert slurm.end(next_job) == "COMPLETED"
    assert second <= set(rows(data, METRICS))
    expect_whole(data)
    assert (tmp_path / "job.out").read_text().count("wall time is near") == 1


@pytest.mark.ray  # it takes long
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_a_job_whose_ray_does_not_start_says_why_and_fails(tmp_path: Path) -> None:
    (ray := tmp_path / "ray").write_text("#!/bin/sh\necho 'no Ray today'\nexit 1\n")
    ray.chmod(0o755)
    with slurm_on() as slurm:
        words = [str(tmp_path / "study.yaml"), "--open"]
        job = submit(slurm, tmp_path, words=words, SCAMP_COMMAND=str(ROOT / "deploy/scamp"), SCAMP_RAY=str(ray))
        until(lambda: slurm.state(job) == "FAILED", "the job's end")
    said = (tmp_path / "job.out").read_text()
    assert said.startswith("Ray has 0 of 1 nodes:\n") and said.endswith("no Ray today\n")


@pytest.mark.ray
@pytest.mark.hosts
@pytest.mark.skipif(bool(WHY_NOT or why_no_hosts()), reason=WHY_NOT or why_no_hosts())
def test_a_job_on_two_nodes_goes_on_after_one_is_drained() -> None:
    with network("one", "two", "three") as hosts, slurm_on(*hosts) as slurm:
        shared = hosts[0].shared
        data, command = shared / "data", command_in(shared)
        job = submit(slurm, shared, "--nodes=2", "--nodelist=one", **command)
        first = evaluations(data, after=3)
        used = rows(data, "SELECT DISTINCT devices FROM scamp_attempts")
        assert len(used) == 2, "a trial trains on each node"

        slurm.run("scontrol", "update", "nodename=two", "state=drain", "reason=repair")
        assert slurm.state(job) == "RUNNING", "a node that is drained ends no job"
        slurm.run("scancel", "--batch", "--signal=USR1", job)
        until(lambda: slurm.state(job) == "PENDING", "the job waits to run again")
        kept = rows(data, STOPPED)
        assert len(kept) == 2 and kept != [(0,), (0,)], "the trials of both nodes stop with a checkpoint"
        assert not Path(f"/tmp/scamp-{job}").exists() and not hosts[1].pids("ray"), "nothing is left on the nodes"
        until(lambda: slurm.state(job) == "RUNNING", "the job runs on the other nodes")
        assert slurm.end(job) == "COMPLETED", (shared / "job.out").read_text()
        assert first <= set(rows(data, METRICS))
        expect_whole(data)


@pytest.mark.soak
@pytest.mark.ray
@pytest.mark.hosts
@pytest.mark.skipif(bool(WHY_NOT or why_no_hosts()), reason=WHY_NOT or why_no_hosts())
def test_jobs_join_another_and_leave_it_and_its_study_loses_no_row() -> None:
    with network("one", "two") as hosts, slurm_on(*hosts) as slurm:
        shared = hosts[0].shared
        data, command = shared / "data", command_in(shared)
        study = shared / "study.yaml"
        study.write_text(STUDY.replace("steps: 600, report_every: 100", "steps: 1800, report_every: 300"))
        job = submit(slurm, shared, "--nodelist=one", words=[str(study), "--open"], **command)
        until((data / "ray.env").exists, "the Ray of the job")
        other = submit(slurm, shared, "--nodelist=two", "--array=1", words=["--join", job], **command) + "_1"
        devices = "SELECT DISTINCT devices FROM scamp_attempts"
        until(lambda: len(rows(data, devices)) == 2, "a trial on the node that has joined")
        until(lambda: len(rows(data, "SELECT DISTINCT trial_id FROM scamp_metrics")) == 2, "it trains")
        slurm.run("scancel", "--batch", "--signal=USR1", other)
        until(lambda: slurm.state(other) == "PENDING", "its job waits to run again")
        ((why,),) = rows(data, "SELECT detail FROM scamp_attempts WHERE outcome = 'STOPPED' AND checkpoint_step > 0")
        assert str(why).startswith("its node is leaving"), "its trial continues at its step"
        seen = evaluations(data, after=0)
        assert slurm.end(job) == "COMPLETED", "the end of the study"
        until(lambda: slurm.state(other) in ("PENDING", "COMPLETED"), "the end of the other job")
        assert seen <= set(rows(data, METRICS))
        expect_whole(data)


@pytest.mark.ray  # it takes long
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_sbatch_takes_the_jobs_that_are_written_for_a_study(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(STUDY)
    written = run_scamp(tmp_path / "data", "plan", study, "--device", "T4", "--count", "2", "--slurm")
    lines = [line for line in written.stdout.splitlines() if not line.startswith("#")]
    assert len(lines) == 2, written.stderr
    with slurm_on(gpus=2) as slurm:
        for line in lines:
            command, *words = shlex.split(line, comments=True)
            slurm.run(command, "--test-only", *words)
        with pytest.raises(subprocess.CalledProcessError):
            slurm.run("sbatch", "--test-only", "--gpus=3", str(JOB), str(study))


def test_the_job_is_a_script_without_mistakes_that_asks_to_be_requeued() -> None:
    text = JOB.read_text()
    assert subprocess.run(["bash", "-n", JOB]).returncode == 0
    for option in ("--requeue", "--signal=B:USR1@", "--open-mode=append"):
        assert f"#SBATCH {option}" in text
