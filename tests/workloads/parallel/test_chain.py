"""A chain is cut into stages that hold every parameter once."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from estimators.model import Stage
from workloads.models.stdlib_gpt import CharacterGpt
from workloads.parallel.chain import cut
from workloads.protocol import Chain, PipelinePlace


def place(index: int, count: int) -> PipelinePlace:
    return PipelinePlace((Stage(index, count, 4, "1f1b"),), cast(ProcessGroup, None))


def names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


def test_every_parameter_is_on_one_stage_under_its_own_name() -> None:
    all_names = names(CharacterGpt(5, 8, 2, 4, 0.0))
    stages = [CharacterGpt(5, 8, 2, 4, 0.0) for _ in range(3)]
    sizes = [len(cut(model, place(index, 3))) for index, model in enumerate(stages)]
    assert sizes == [1, 2, 2], "the first stage holds most micro-batches"
    assert sorted(name for model in stages for name in names(model)) == sorted(all_names)


def test_a_stage_takes_what_the_one_before_it_gives() -> None:
    torch.manual_seed(0)
    undivided = CharacterGpt(3, 8, 2, 4, 0.0)
    x = torch.randint(0, 90, (2, 4))
    expected = undivided(x)
    state = undivided.state_dict()
    for index in range(2):
        model = CharacterGpt(3, 8, 2, 4, 0.0)
        cut(model, place(index, 2))
        model.load_state_dict({name: state[name] for name in names(model)})
        x = model(x)
        assert index == 1 or x.shape == model.hidden_shape(2)
    torch.testing.assert_close(x, expected)


class Tied(Chain):
    enters, leaves = ("embedding",), ("head",)

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(4, 4), nn.Linear(4, 4, bias=False)
        self.head.weight = self.embedding.weight
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def enter(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.embedding(inputs))

    def leave(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(x))

    def hidden_shape(self, num_samples: int) -> tuple[int, ...]:
        return num_samples, 4


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 2), "Linear does not say where a pipeline may cut it: make it a scamp.Chain"),
        (CharacterGpt(1, 8, 2, 4, 0.0), "1 blocks cannot be divided into 2 stages: choose fewer stages"),
        (Tied(), "stages of Tied would share parameters"),
    ],
    ids=["plain", "short", "tied"],
)
def test_a_model_that_cannot_be_cut_is_refused(model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cut(model, place(0, 2))


def test_a_stage_gives_what_can_be_sent() -> None:
    class Transposed(Chain):
        enters, leaves = (), ()

        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Identity(), nn.Identity()])

        def enter(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs.transpose(1, 2)

        def leave(self, x: torch.Tensor) -> torch.Tensor:
            return x

        def hidden_shape(self, num_samples: int) -> tuple[int, ...]:
            return num_samples, 3, 2

    model = Transposed()
    model.place = place(0, 2)
    assert model(torch.zeros(1, 2, 3)).is_contiguous()
