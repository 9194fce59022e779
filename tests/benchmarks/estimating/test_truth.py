"""The predicted peak of convolutions is within a percent of the allocated one."""

from __future__ import annotations

import pytest

from benchmarks.estimating import truth
from benchmarks.estimating.case import Case

pytestmark = pytest.mark.full


@pytest.mark.parametrize(
    "case",
    [
        Case("unet", 2, {"width": 32, "side": 32}),  # images smaller than its kernels: oneDNN may copy matrices there
        Case("unet3d_blobs", 1, {"width": 32, "side": 16}),  # a single sample, which torch makes without oneDNN
    ],
    ids=str,
)
def test_the_peak_of_convolutions_is_predicted_within_a_percent_of_what_a_process_allocates(case: Case) -> None:
    result = truth.measure(case, seconds=300)
    assert result.measured > 40 * 2**20 and abs(result.error_pct()) < 1, result
