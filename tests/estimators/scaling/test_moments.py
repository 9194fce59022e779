"""Moments count blocks that are there, and what a single sample keeps alive."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from estimators.scaling.blueprint import Blueprint
from estimators.scaling.formula import SAMPLES, Formula, Monomial
from estimators.scaling.moments import LEAST_DEPTH, Moments

WIDTH = Formula(Monomial(Fraction(1), (("width", 1),)))
SAMPLE = Formula(Monomial(Fraction(1), ((SAMPLES, 1),)))


def moments(*rows: tuple[list[int], list[int], bool]) -> Moments:
    base, per_block, inner = zip(*rows, strict=True)
    return Moments.of(np.array(base), np.array(per_block), inner)


def test_blocks_that_are_not_there_need_nothing() -> None:
    sizes = moments(([1], [2], False), ([5], [3], True)).bytes(np.array([[10.0, 10.0]]), np.array([LEAST_DEPTH, 4]))
    assert sizes.tolist() == [[10, 50], [0, 110]]


def test_the_optimizer_begins_with_what_a_single_sample_keeps_alive() -> None:
    """Gradients of one sample may keep larger buffers alive, which are there when the optimizer needs most."""
    passes, update = moments(([1, 1], [0, 0], False)), moments(([3, 0], [0, 0], False))
    after, after_single = moments(([1, 0], [0, 0], False)), moments(([2, 0], [0, 0], False))
    depth = Monomial(Fraction(1), (("depth", 1),))
    blueprint = Blueprint(
        (WIDTH, SAMPLE), depth, passes, passes, update, (after, after_single), {}, {}, (), ("parameters", "batch")
    )
    costs = blueprint.costs({"width": np.array([100]), "depth": np.array([2])})
    assert costs.curve(0).peak_bytes(1) == 3 * 100 + (2 - 1) * 100
    assert costs.curve(0).peak_bytes(2) == 3 * 100
    assert costs.curve(0).peak_bytes(500) == 100 + 500
