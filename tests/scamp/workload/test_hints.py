"""Hints are metadata: they are put on a module, read from it, and change nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from estimators.tracing.blocks import are_equal
from scamp.workload.hints import Hint, hints_of
from workloads.protocol import hints

UNTYPED: Any = hints  # for calls that its types refuse


def test_a_module_without_hints_has_none() -> None:
    assert hints_of(nn.Linear(2, 2)) == ()


def test_hints_return_their_module_so_they_can_be_put_around_each_other() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    assert hints.replica(hints.pipeline(hints.default(model, "split"), micro_batches=4), degree=2) is model
    assert hints_of(model) == (
        Hint("default", "split"),
        Hint("pipeline", micro_batches=4),
        Hint("replica", degree=2),
    )
    assert hints_of(hints.stage(model[0])) == (Hint("stage"),) and len(hints_of(model)) == 3


def test_a_hint_changes_neither_parameters_nor_results() -> None:
    torch.manual_seed(0)
    model, inputs = nn.Linear(3, 2), torch.randn(4, 3)
    state, output = copy.deepcopy(model.state_dict()), model(inputs)
    hints.split(hints.replica(model, 2), dim=0, degree=4)
    assert model.state_dict().keys() == state.keys() and torch.equal(model(inputs), output)


def test_a_copy_of_a_module_keeps_its_hints_and_gets_its_own() -> None:
    block = hints.split(nn.Linear(2, 2))
    other = hints.stage(copy.deepcopy(block))
    assert hints_of(other) == (Hint("split"), Hint("stage")) and hints_of(block) == (Hint("split"),)


def test_blocks_with_other_hints_are_equal_so_that_a_few_of_them_are_traced() -> None:
    blocks = [nn.Linear(2, 2) for _ in range(4)]
    hints.split(blocks[0], degree=2)
    hints.stage(hints.split(blocks[2]))
    assert are_equal(blocks)


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (Hint("replica"), "replica()"),
        (Hint("split", dim=0, degree=4), "split(dim=0, degree=4)"),
        (Hint("pipeline", stages=2, micro_batches=4), "pipeline(stages=2, micro_batches=4)"),
        (Hint("default", "replica"), 'default("replica")'),
    ],
)
def test_a_hint_reads_as_it_was_written(hint: Hint, text: str) -> None:
    assert str(hint) == text


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda module: hints.replica(module, -3), "at least 1"),
        (lambda module: hints.split(module, degree=0), "at least 1"),
        (lambda module: UNTYPED.split(module, dim=2), "dim is a dimension of a linear layer's weight"),
        (lambda module: hints.pipeline(module, stages=1), "at least 2"),
        (lambda module: hints.pipeline(module, stages=4, micro_batches=2), "a micro-batch for each stage"),
        (lambda module: hints.pipeline(module, micro_batches=1), "a micro-batch for each stage"),
        (lambda module: UNTYPED.default(module, "stage"), "replica, split, pipeline"),
        (lambda module: UNTYPED.replica([module]), "not on list"),
    ],
)
def test_an_option_that_no_plan_can_have_is_refused_at_once(wrong: Callable[[Any], Any], why: str) -> None:
    module = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=why):
        wrong(module)
    assert hints_of(module) == ()
