"""Published traces are recognised by their columns; what is none is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from placement.model import Cluster, Device
from scamp_service.cli.simulating import app
from scamp_service.errors import InvalidInput
from scamp_service.simulation.traces import Replayed, read_trace, replay_trace, trace_jobs

SIA = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,a
2017-10-09 07:00:55,30.0,4,120.0,a
2017-10-09 07:02:55,30.0,0,0.0,a
"""
HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,u,v,8,64,1,COMPLETED,2020-04-01 00:00:03,2020-04-01 00:00:09,2020-04-01 00:10:09,600,6
2,u,v,0,64,1,COMPLETED,2020-04-01 00:00:05,2020-04-01 00:00:09,2020-04-01 00:10:09,600,6
"""
OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,12000,16384,1,460,,LS,Running,100,900,150
p1,12000,16384,1,1000,,LS,Pending,200,900,
p2,12000,16384,2,1000,,LS,Running,300,900,400
"""
FOUR = Cluster(tuple(Device(f"d{n}", "n", n, "V100-16", 1000) for n in range(4)))


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SIA, [(0, 4, 30, 1), (60, 1, 66, 1)]),
        (HELIOS, [(0, 8, 600, 1)]),
        (OPENB, [(0, 1, 750, 0.46), (200, 2, 500, 1)]),
    ],
)
def test_each_published_list_is_read(
    tmp_path: Path, text: str, expected: list[tuple[float, int, float, float]]
) -> None:
    written(tmp_path, "jobs.csv", text)
    written(tmp_path, "other.csv", "a,b\n1,2\n")
    jobs = read_trace(tmp_path, 10)
    assert [(job.at, job.num_gpus, job.seconds, job.share) for job in jobs] == expected


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="one of philly, helios, pai"):
        read_trace(tmp_path / "none", 1)
    with pytest.raises(InvalidInput, match="no trace is known"):
        read_trace(written(tmp_path, "other.csv", "a,b\n1,2\n"), 1)
    broken = written(tmp_path, "broken.csv", SIA.replace("66.0,1", "long,1"))
    with pytest.raises(InvalidInput, match="not the trace that its columns say"):
        read_trace(broken, 1)
    written(tmp_path, "second.csv", SIA)
    with pytest.raises(InvalidInput, match="name one of them"):
        read_trace(tmp_path, 1)
    with pytest.raises(InvalidInput, match="no job with a GPU"):
        read_trace(written(tmp_path, "empty.csv", SIA.splitlines()[0] + "\n"), 1)
    with pytest.raises(InvalidInput, match="--load"):
        trace_jobs("philly", 4, Replayed(load=0.0))


def test_jobs_that_share_a_device_do_not_slow_each_other(tmp_path: Path) -> None:
    text = OPENB.replace("2,1000,,LS,Running,300,900,400", "1,500,,LS,Running,100,900,150")
    jobs = read_trace(written(tmp_path, "pods.csv", text), 10)
    cluster = Cluster(FOUR.devices[:1])
    assert [run.end for run in replay_trace(jobs, cluster, "pack", 4).runs] == [750, 750]


def test_the_command_compares_policies_on_a_drawn_trace() -> None:
    args = ["simulate", "--traces", "helios", "--jobs", "40", "--cluster", "2x8xV100-16", "--json"]
    result = CliRunner().invoke(app, [*args, "--policy", "pack,min-degree"])
    answers = json.loads(result.output)
    assert set(answers) == {"pack", "min-degree"} and len(answers["pack"]["jobs"]) == 40
    table = CliRunner().invoke(app, args[:-1]).output
    assert "mean completion" in table and "assumed: jobs run as wide and as long as the trace says" in table
