"""The gain of a larger batch: as how many steps of the base batch one step counts with AdaScale. Pure arithmetic.

With the variance σ² of the gradient of one sample, summed over all parameters, and the square μ² of its mean, the
*noise scale* N = σ² / μ² is a number of samples. A batch far below it trains faster in proportion as it grows, one far
above it does not. A step with a batch of B samples, where the learning rate and the steps are those of a base batch b,
counts as

    r = (σ² / b + μ²) / (σ² / B + μ²) = (N / b + 1) / (N / B + 1)

Sources: r is the gain of T. Johnson et al., "AdaScale SGD", ICML 2020; N is the simple noise scale of S. McCandlish et
al., "An Empirical Model of Large-Batch Training", arXiv:1812.06162.
"""

from __future__ import annotations

LARGEST_NOISE = 1e9
"""The highest noise scale, in samples: where the squared mean is estimated as 0, they are not finite."""


def gain_of_batch(batch: int, base_batch: int, noise_scale: float) -> float:
    """Steps of ``base_batch`` that one step of ``batch`` samples counts as; ``noise_scale`` is in samples."""
    return (noise_scale / base_batch + 1) / (noise_scale / batch + 1)


def noise_scale_of(variance: float, square: float, batch: int) -> float:
    """The noise scale in samples, from the variance and the squared mean of the gradient of ``batch`` samples."""
    variance, square = max(variance, 0.0), max(square, 0.0)
    return min(LARGEST_NOISE, batch * variance / square) if square > 0 else LARGEST_NOISE
