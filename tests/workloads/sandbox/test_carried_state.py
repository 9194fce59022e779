"""State of a call with another number of samples fails no trace; its candidate trains where a batch is not divided."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from estimators.model import Layout
from estimators.traits import NO_TRAITS
from workloads.protocol import Workload
from workloads.sandbox.carried_state import traced
from workloads.sandbox.recipe import recipe_of


class Carrying(Workload):
    """A recurrent network whose state goes from one call of the loss to the next."""

    num_train = num_eval = 16
    is_guarded = False
    state: Tensor | None = None
    width = 3

    def build_model(self) -> nn.Module:
        return nn.GRU(3, self.width, batch_first=True)

    def train_batch(self, indices: Tensor) -> Tensor:
        return torch.zeros(len(indices), 5, 3)

    eval_batch = train_batch

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        if self.is_guarded and self.state is not None and self.state.shape[1] != len(batch):
            self.state = None
        output, state = model(batch, self.state)
        self.state = state.detach()
        return (output - batch).square().mean()

    def evaluate(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {"error": (model(batch)[0] - batch).square().mean((1, 2))}


class Guarded(Carrying):
    is_guarded = True


class WrongSizes(Guarded):
    """A network of another width than its inputs, so no state is at fault."""

    width = 4


def of(workload: Workload) -> Any:
    return traced(workload, recipe_of(workload), Layout(), 8, None)


@pytest.mark.full
def test_state_of_another_number_of_samples_allows_plans_that_do_not_divide_a_batch() -> None:
    carrying = of(Carrying({}))
    assert carrying.traits.couples_samples.startswith("the loss keeps self.state between calls")
    assert carrying.curve == of(Guarded({})).curve
    accepting = Carrying({})
    accepting.accepts_parts = True
    assert of(accepting).traits == NO_TRAITS


@pytest.mark.full
def test_state_that_begins_anew_is_traced() -> None:
    assert of(Guarded({})).traits == NO_TRAITS


def test_an_error_that_state_does_not_cause_stays_as_it_is() -> None:
    with pytest.raises(RuntimeError, match="broadcast"):
        of(WrongSizes({}))
