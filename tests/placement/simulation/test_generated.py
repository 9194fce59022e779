"""Drawn traces have the published marginals, whatever the seed."""

from __future__ import annotations

import re
from statistics import fmean, median
from typing import Any

import pytest

from placement.model import Cluster, Device
from placement.simulation.generated import CLUSTERS, HELIOS, PAI, PHILLY, TraceJob, at_load, generate, rigid_jobs

NUM = 4000


def test_philly_has_its_share_of_single_gpus_and_its_median() -> None:
    jobs = generate(PHILLY, NUM, 1)
    assert fmean(job.num_gpus == 1 for job in jobs) == pytest.approx(0.93, abs=0.02)
    assert median(job.seconds for job in jobs if job.num_gpus == 1) == pytest.approx(1117, rel=0.25)
    assert median(job.seconds for job in jobs if job.num_gpus == 8) > 5000


def test_helios_has_its_means() -> None:
    jobs = generate(HELIOS, NUM, 2)
    assert fmean(job.num_gpus for job in jobs) == pytest.approx(3.72, rel=0.1)
    assert median(job.seconds for job in jobs) == pytest.approx(206, rel=0.2)


def test_in_pai_four_of_ten_jobs_ask_for_a_part_of_a_gpu() -> None:
    jobs = generate(PAI, NUM, 3)
    assert fmean(job.share < 1 for job in jobs) == pytest.approx(0.41, abs=0.03)
    assert all(job.num_gpus == 1 for job in jobs if job.share < 1)


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_seed_repeats_and_limits_hold(name: str) -> None:
    jobs = generate(CLUSTERS[name], 200, 5, most_gpus=8, most_seconds=86400)
    assert jobs == generate(CLUSTERS[name], 200, 5, most_gpus=8, most_seconds=86400)
    assert max(job.num_gpus for job in jobs) <= 8 and max(job.seconds for job in jobs) <= 86400
    assert [job.at for job in jobs] == sorted(job.at for job in jobs) and jobs[0].at == 0
    with pytest.raises(ValueError, match="no job"):
        generate(CLUSTERS[name], 1, 0, most_gpus=0)


def test_arrivals_are_stretched_to_a_load() -> None:
    jobs = at_load(generate(PHILLY, 300, 4), 64, 0.5)
    assert sum(job.gpu_seconds for job in jobs) == pytest.approx(0.5 * 64 * jobs[-1].at)
    assert at_load(jobs[:1], 64, 0.5) == jobs[:1]
    with pytest.raises(ValueError, match="above 0"):
        at_load(jobs, 64, 0.0)


def test_jobs_ask_for_their_share_of_the_smallest_device() -> None:
    cluster = Cluster((Device("a", "n", 0, "V100-16", 1000), Device("b", "n", 1, "V100-32", 2000)))
    [part, full] = rigid_jobs([TraceJob("0", 0, 1, 5.0, 0.25), TraceJob("1", 2, 2, 7.0)], cluster)
    assert [(job.shapes[0].num_ranks, job.shapes[0].mib_per_rank, job.at) for job in (part, full)] == [
        (1, 250, 0),
        (2, 1000, 2),
    ]


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"num_gpus": 0}, "num_gpus of job '7' must be at least 1, got 0"),
        ({"seconds": 0.0}, "seconds of job '7' must be above 0, got 0.0"),
        ({"share": 1.5}, "share of job '7' must be above 0 and at most 1, got 1.5"),
        ({"at": -1.0}, "at of job '7' must be at least 0, got -1.0"),
    ],
)
def test_a_job_with_a_wrong_field_is_refused_by_the_name_of_the_field(change: dict[str, Any], refusal: str) -> None:
    fields: dict[str, Any] = {"id": "7", "at": 0.0, "num_gpus": 1, "seconds": 1.0}
    with pytest.raises(ValueError, match=f"^{re.escape(refusal)}$"):
        TraceJob(**fields | change)
