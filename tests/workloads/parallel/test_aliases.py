"""Tensors that ranks cannot keep in step are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from workloads.parallel.aliases import parameter_attributes, set_parameter_attributes, why_one_rank


def pair() -> Any:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))


def same_memory() -> nn.Module:
    model = pair()
    model[1].weight = nn.Parameter(model[0].weight.data)
    return model


def data_assigned() -> nn.Module:
    model = pair()
    model[1].weight.data = model[0].weight.data
    return model


def overlapping_views() -> nn.Module:
    model, flat = nn.Module(), torch.zeros(10)
    model.a, model.b = nn.Parameter(flat[:6]), nn.Parameter(flat[5:])
    return model


def buffer_of_a_parameter() -> nn.Module:
    model = pair()
    model.register_buffer("first", model[0].weight.detach())
    return model


def parameters_in_a_list() -> nn.Module:
    model = pair()
    model.weights = [layer.weight for layer in model]
    return model


def parameters_in_a_dictionary_of_lists() -> nn.Module:
    model = pair()
    model[0].kept = {"weights": [model[1].weight]}
    return model


def layers_in_a_list() -> nn.Module:
    model = pair()
    model.more = [nn.Linear(2, 2)]
    return model


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (same_memory, "0.weight and 1.weight are two tensors in the same memory"),
        (data_assigned, "0.weight and 1.weight are two tensors in the same memory"),
        (overlapping_views, "a and b are two tensors in the same memory"),
        (buffer_of_a_parameter, "0.weight and first are two tensors in the same memory"),
        (parameters_in_a_list, "weights holds parameters outside of modules"),
        (parameters_in_a_dictionary_of_lists, "0.kept holds parameters outside of modules"),
        (layers_in_a_list, "more holds layers that are not part of the model"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_ranks_cannot_keep_in_step_is_refused_with_its_name(
    build: Callable[[], nn.Module], message: str, device: str
) -> None:
    with torch.device(device):
        model = build()
    assert why_one_rank(model).startswith(message)


def tied() -> nn.Module:
    model = pair()
    model[1].weight = model[0].weight
    return model


def views_side_by_side() -> nn.Module:
    model, flat = nn.Module(), torch.zeros(10)
    model.a, model.b, model.c = nn.Parameter(flat[:5].view(5, 1).t()), nn.Parameter(flat[5:]), nn.Parameter(flat[:0])
    return model


def registered_layers_in_a_list() -> nn.Module:
    model = pair()
    model.all = [model[0], model[1], nn.ReLU()]
    return model


def a_dictionary_in_itself() -> nn.Module:
    model = pair()
    model.options = {"rate": 0.1}
    model.options["all"] = [model.options]
    return model


OTHERS = (pair, tied, views_side_by_side, registered_layers_in_a_list, a_dictionary_in_itself, lambda: nn.LSTM(2, 3))


@pytest.mark.parametrize("build", OTHERS)
def test_other_models_pass(build: Callable[[], nn.Module]) -> None:
    assert why_one_rank(build()) == ""


def test_attributes_of_parameters_survive_new_parameters() -> None:
    model = pair()
    model[1].bias._no_decay = True
    attributes = parameter_attributes(model)
    assert attributes == {"1.bias": {"_no_decay": True}}
    model.to_empty(device="meta")
    set_parameter_attributes(model, attributes)
    assert model[1].bias._no_decay


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_parameters_are_refused(register: str) -> None:
    model = pair()
    getattr(model[1].weight, register)(lambda gradient: None)
    assert why_one_rank(model).startswith("1.weight has a hook")
