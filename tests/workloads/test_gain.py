"""The gain of a larger batch."""

from __future__ import annotations

import pytest

from workloads.gain import LARGEST_NOISE, gain_of_batch, noise_scale_of
from workloads.training.updates.adascale import AdaScale, gain_of


@pytest.mark.parametrize(("noise_scale", "gain"), [(0.0, 1.0), (16.0, 16 / 9), (1e9, 8.0)])
def test_a_larger_batch_gains_as_much_as_gradients_are_noise(noise_scale: float, gain: float) -> None:
    assert gain_of_batch(128, 16, noise_scale) == pytest.approx(gain)


def test_the_gain_is_the_one_by_which_training_counts_its_steps() -> None:
    variance, square = 3.0, 0.7
    noise_scale = noise_scale_of(variance, square, 64)
    assert gain_of_batch(64, 16, noise_scale) == pytest.approx(gain_of(4.0, variance, square))


def test_noise_is_finite_where_the_mean_is_estimated_as_0_and_unknown_before_enough_steps() -> None:
    assert noise_scale_of(1.0, -0.1, 4) == LARGEST_NOISE
    few, enough = AdaScale(4, 2.0, num_steps=20), AdaScale(4, 2.0, variance=2.0, square=1.0, num_steps=21)
    assert few.noise_scale is None
    assert enough.noise_scale == 16.0
