"""The figures of speed: 95th percentiles of pages, and of downloads microseconds for each trial."""

from __future__ import annotations

import pytest

from benchmarks.facing.speed_part import Case, Result, cases, figures, measure


def test_pages_have_percentiles_and_downloads_the_fastest_time_for_a_trial() -> None:
    numbers = figures(
        [
            Result("picture", 10, [0.5] * 19 + [2.0], [0.25] * 20),
            Result("table", 10, [0.75] * 20, [0.5] * 20),
            Result("CSV", 1000, [0.2, 0.1], [0.05, 0.06]),
        ]
    )
    assert numbers["picture_p95_seconds"] > 1 and numbers["picture_p95_cpu_seconds"] == 0.25
    assert (numbers["table_100k_p95_seconds"], numbers["table_100k_p95_cpu_seconds"]) == (0.75, 0.5)
    assert numbers["csv_us_per_trial"] == pytest.approx(100) and numbers["csv_cpu_us_per_trial"] == pytest.approx(50)


def test_pages_are_loaded_often_enough_for_a_percentile() -> None:
    assert all(case.times >= 20 for case in cases(False, 0) if case.kind != "CSV")


def test_a_download_is_measured() -> None:
    result = measure(Case("CSV", 20, 2), 60)
    assert len(result.seconds) == len(result.cpu_seconds) == 2 and min(result.seconds) > 0
