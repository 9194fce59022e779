"""Drawn traces have the published marginals, whatever the seed."""

from __future__ import annotations

from statistics import fmean, median

import pytest

from benchmarks.packing.generated import PHILLY, at_load, generate

NUM = 4000


def test_philly_has_its_share_of_single_gpus_and_its_median() -> None:
    jobs = generate(PHILLY, NUM, 1)
    assert fmean(job.num_gpus == 1 for job in jobs) == pytest.approx(0.93, abs=0.02)
    assert median(job.seconds for job in jobs if job.num_gpus == 1) == pytest.approx(1117, rel=0.25)
    assert median(job.seconds for job in jobs if job.num_gpus == 8) > 5000


def test_a_seed_repeats_and_limits_hold() -> None:
    jobs = generate(PHILLY, 200, 5, most_gpus=8, most_seconds=86400)
    assert jobs == generate(PHILLY, 200, 5, most_gpus=8, most_seconds=86400)
    assert max(job.num_gpus for job in jobs) <= 8 and max(job.seconds for job in jobs) <= 86400
    assert [job.at for job in jobs] == sorted(job.at for job in jobs) and jobs[0].at == 0
    with pytest.raises(ValueError, match="no job"):
        generate(PHILLY, 1, 0, most_gpus=0)


def test_arrivals_are_stretched_to_a_load() -> None:
    jobs = at_load(generate(PHILLY, 300, 4), 64, 0.5)
    assert sum(job.gpu_seconds for job in jobs) == pytest.approx(0.5 * 64 * jobs[-1].at)
    assert at_load(jobs[:1], 64, 0.5) == jobs[:1]
    with pytest.raises(ValueError, match="above 0"):
        at_load(jobs, 64, 0.0)
