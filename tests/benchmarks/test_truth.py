from __future__ import annotations

from benchmarks.estimating import truth
from benchmarks.estimating.case import Case


def test_the_peak_of_a_deep_u_net_is_foretold_within_a_percent_of_what_a_process_allocates() -> None:
    """Its last images are smaller than its kernels: on CPUs without AVX512 oneDNN copies matrices there."""
    found = truth.measure(Case("unet", 2, {"width": 32, "side": 32}), seconds=300)
    assert found.measured > 50 * 2**20 and abs(found.error_pct()) < 1, found
