"""Heads are compared with the library in single steps, and one that differs without a word is counted."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.covering.heads import HEADS, held_to_library, workload_of
from benchmarks.covering.parts import heads_part

pytest.importorskip("transformers")


def test_enough_heads_of_every_kind_are_drawn_half_of_them_by_a_second_seed() -> None:
    first, other = heads_part.cases(False, 0), heads_part.cases(False, 1)
    assert len(first) >= 40 and {case.name for case in first} == set(HEADS)
    assert len(set(map(str, first))) == len(first) and len(set(first) & set(other)) >= 20


@pytest.mark.full
def test_a_model_that_is_trained_with_another_loss_is_wrong() -> None:
    workload: Any = workload_of("CausalLM", "gpt2")
    held = held_to_library(workload)
    assert max(held.error, held.gradients, held.divided, held.evaluated) < 1e-6 and held.divided >= 0
    right = workload.loss

    def doubled(model: Any, batch: Any) -> Any:
        total, count = right(model, batch)
        return 2 * total, count

    workload.loss = doubled
    assert held_to_library(workload).error > 0.5


def test_only_what_differs_without_a_word_is_silently_wrong() -> None:
    equal, refused = heads_part.Result(1e-8, 1e-6, 1e-6, 0.0, ""), heads_part.Result(0.0, 0.0, -1.0, -1.0, "a sum")
    wrong, failing = (heads_part.Result(error, 0.0, -1.0, -1.0, "", why) for error, why in ((1e-3, ""), (0.0, "fails")))
    values = heads_part.figures([equal, refused, wrong, failing])
    assert (values["adapter_heads"], values["adapter_refused"], values["adapter_silently_wrong"]) == (3, 1, 1)
    assert values["adapter_loss_max_error"] == 1e-3 and failing.row()[-1] == "the library fails"
