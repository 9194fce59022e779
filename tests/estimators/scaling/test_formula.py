"""Formulas are found from products of dimensions, and nothing is found where no product explains a size."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from estimators.scaling.formula import RANKS, Formula, Monomial, NotWhole, Padded, Points, Shards, Solver

FORMULA = TypeAdapter(Formula)
WIDTHS = (64, 128, 192, 256, 320, 448, 576, 640, 96, 1024)
TOKENS = (16, 49, 100, 64, 81, 25, 36, 121, 9, 10)
SAMPLES = (2, 3, 5, 8, 16, 32, 64, 4, 7, 9)
POINTS: Points = {
    "width": np.array(WIDTHS),
    "tokens": np.array(TOKENS),
    "micro_batch": np.array(SAMPLES),
    "depth": np.full(10, 6),
}


@given(
    st.integers(1, 64),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(-1, 1),
)
def test_a_product_of_dimensions_is_found_whatever_its_exponents(
    coefficient: int, under: int, width: int, tokens: int, samples: int
) -> None:
    common = int(np.lcm.reduce(SAMPLES)) * under if samples < 0 else under
    exponents = tuple((n, e) for n, e in (("width", width), ("tokens", tokens), ("micro_batch", samples)) if e)
    monomial = Monomial(Fraction(coefficient * common, under), exponents)
    values = monomial.at(POINTS)
    formula = Solver(POINTS).formula(values, [])
    assert formula == Formula(monomial)
    assert FORMULA.validate_json(FORMULA.dump_json(formula)) == formula


def test_a_dimension_may_have_one_more_token_and_be_a_factor() -> None:
    solver = Solver(POINTS)
    dimension = solver.dimension(POINTS["tokens"] + 1)
    assert dimension == Monomial(Fraction(1), (("tokens", 1),), 1)
    values = 8 * POINTS["micro_batch"] * (POINTS["tokens"] + 1) ** 2
    assert solver.formula(values, []) is None
    formula = solver.formula(values, [dimension])
    assert formula is not None and formula.factors == (dimension, dimension)
    assert formula.at({name: np.array([11]) for name in POINTS}).tolist() == [8 * 11 * 144]


def test_shards_are_rounded_up_to_whole_rows_and_added_up_in_a_unit() -> None:
    points = {**POINTS, RANKS: np.array([2, 4, 8, 16, 32, 64, 2, 4, 8, 16])}
    unity, rows, width = Monomial(Fraction(1)), Monomial(Fraction(97)), Monomial(Fraction(1), (("width", 1),))
    unit = Shards(((rows, width), (width, unity)))
    elements = -(-97 // points[RANKS]) * points["width"] + -(-points["width"] // points[RANKS])
    assert unit.at(points).tolist() == elements.tolist()
    solver = Solver(points)
    assert solver.formula(4 * points[RANKS] * elements, []) is None
    assert solver.formula(4 * points[RANKS] * elements, [unit]) == Formula(
        Monomial(Fraction(4), ((RANKS, 1),)), (unit,)
    )


def test_a_formula_knows_its_variables_by_name() -> None:
    shards = Shards(((Monomial(Fraction(1), (("w", 1),)), Monomial(Fraction(2))),))
    formula = Formula(Monomial(Fraction(4), (("e", 1), ("n", -1))), (shards, Monomial(Fraction(1), (("t", 2),), 1)))
    assert formula.variables == {"e", "n", "w", "t", RANKS}


def test_one_byte_among_millions_is_no_product() -> None:
    values = 10**6 * POINTS["width"] * POINTS["tokens"]
    assert Solver(POINTS).formula(values, []) is not None
    values[3] += 1
    assert Solver(POINTS).formula(values, []) is None


def test_a_sum_that_no_factor_explains_has_no_formula() -> None:
    assert Solver(POINTS).formula(POINTS["width"] * POINTS["tokens"] + POINTS["width"] ** 2, []) is None


def test_a_size_that_falls_out_of_the_line_has_no_formula() -> None:
    values = 4 * POINTS["width"] * POINTS["micro_batch"]
    values[3] += 4
    assert Solver(POINTS).formula(values, []) is None


def test_where_a_formula_is_not_whole_it_says_so_instead_of_rounding() -> None:
    half = Formula(Monomial(Fraction(1, 2), (("width", 1),)))
    assert half.at({"width": np.array([6, 8])}).tolist() == [3, 4]
    with pytest.raises(NotWhole):
        half.at({"width": np.array([6, 7])})


def test_only_gradients_with_rows_that_ranks_do_not_divide_are_padded() -> None:
    monomial = Monomial(Fraction(1))
    padded = Padded(
        ((Monomial(Fraction(1), (("classes", 1),)), Monomial(Fraction(1), (("width", 1),))), (_of(8), monomial))
    )
    points = {"classes": np.array([10, 10, 12, 9]), "width": np.full(4, 3), RANKS: np.array([2, 4, 4, 3])}
    assert padded.at(points).tolist() == [1, 12 * 3, 1, 9]
    formula = Formula(_of(4), (padded,))
    assert FORMULA.validate_json(FORMULA.dump_json(formula)) == formula


def _of(number: int) -> Monomial:
    return Monomial(Fraction(number))


def test_examples_that_cannot_tell_variables_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot tell"):
        Solver({**POINTS, "heads": POINTS["width"] // 16})
    with pytest.raises(ValueError, match="too few"):
        Solver({name: values[:6] for name, values in POINTS.items()})
