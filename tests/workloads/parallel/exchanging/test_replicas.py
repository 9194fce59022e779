"""Whole replicas send the gradients of each block as soon as they are complete, and none is lost or sent twice."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from estimators.model import Layout
from estimators.tracing.fake_gang import fake_mesh
from workloads.parallel.apply import apply_plan
from workloads.parallel.exchanging import replicas
from workloads.parallel.exchanging.replicas import begin_last_pass, end_passes, replica_gradients

TWO = Layout(dp_replicate=2)
INPUT = torch.ones(3, 4)


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.spare = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x).tanh()
        scores: Tensor = self.head(x)
        return scores


class Sent(list[tuple[int, bool]]):
    """What has been sent: numbers, and whether that was during a backward pass. The other replica sends zeros."""

    def __init__(self, mesh: DeviceMesh | None) -> None:
        super().__init__()
        self.mesh = mesh

    def model(self, *, spare: bool = False) -> Chain:
        """A replica, which has trained nothing yet; it may train its spare layer, too."""
        torch.manual_seed(0)
        model = Chain()
        model.spare.requires_grad_(spare)
        apply_plan(model, list(model.blocks), TWO, self.mesh)
        return model


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sent]:
    """Of replicas that are not small."""
    with fake_mesh(TWO) as mesh:
        sent, real = Sent(mesh), dist.all_reduce

        def noted(tensor: Tensor, **kwargs: Any) -> Any:
            sent.append((len(tensor), torch._C._current_graph_task_id() != -1))
            return real(tensor, **kwargs)

        monkeypatch.setattr(dist, "all_reduce", noted)
        monkeypatch.setattr(replicas, "SMALL_BYTES", 0)
        yield sent


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def expected(num_passes: int = 1) -> list[Tensor]:
    """Half of the gradients of these passes on one rank: the other replica has none."""
    torch.manual_seed(0)
    model = Chain()
    for _ in range(num_passes):
        model(INPUT).sum().backward()
    return [gradient / 2 for gradient in gradients(model)]


BLOCK, ENDS = 4 * 4 + 4, 4 * 4 + 4 + 4 + 1


def test_blocks_are_sent_during_the_last_backward_pass_and_the_rest_after_it(sent: Sent) -> None:
    model = sent.model()
    model(INPUT).sum().backward()
    assert not sent, "other micro-batches follow"
    begin_last_pass(model)
    model(INPUT).sum().backward()
    end_passes(model)
    assert sent == [(BLOCK, True)] * 3 + [(ENDS, False)]
    torch.testing.assert_close(gradients(model), expected(2))


def test_a_small_model_sends_everything_at_once(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "SMALL_BYTES", 2**20)
    model = sent.model()
    for step in range(2):
        model.zero_grad()
        begin_last_pass(model)
        model(INPUT).sum().backward()
        end_passes(model)
        assert sent == [(3 * BLOCK + ENDS, False)] * (step + 1)
        torch.testing.assert_close(gradients(model), expected())


def test_a_second_backward_pass_adds_to_gradients_that_have_been_sent(sent: Sent) -> None:
    model = sent.model()
    for _ in range(2):
        model.zero_grad()
        begin_last_pass(model)
        for _ in range(2):
            model(INPUT).sum().backward()
        end_passes(model)
        torch.testing.assert_close(gradients(model), expected(2))


def test_parameters_that_no_rank_uses_have_no_gradient_and_are_not_sent_again(sent: Sent) -> None:
    model = sent.model(spare=True)
    for _ in range(2):
        begin_last_pass(model)
        model(INPUT).sum().backward()
        end_passes(model)
        assert model.spare.weight.grad is None and model.head.weight.grad is not None
        model.zero_grad()
    assert [size for size, _ in sent[3::4]] == [ENDS + BLOCK // 4, ENDS]


def test_parameters_that_another_rank_uses_have_a_gradient_and_are_expected_from_then_on(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = sent.model(spare=True)
    gradients_of_ranks = replica_gradients(model)
    assert gradients_of_ranks is not None
    monkeypatch.setattr(replicas, "_tells", lambda bucket: True)
    for is_used in (False, True, False):
        gradients_of_ranks.agree = partial(_with_spare, model, is_used)
        begin_last_pass(model)
        model(INPUT).sum().backward()
        end_passes(model)
        assert (model.spare.weight.grad is not None) is is_used
        model.zero_grad()
    assert sent[-1] == (ENDS + BLOCK // 4 + 1, False), "a gradient of the spare layer, as another step has one"


def _with_spare(model: Chain, is_used: bool, bits: Sequence[bool]) -> Sequence[bool]:
    """What ranks agree on if another rank uses ``spare``."""
    parameters = list(model.parameters())
    if len(bits) == len(parameters):  # which gradients are late
        return [any(parameter is spare for spare in model.spare.parameters()) for parameter in parameters]
    return [is_used, *bits[1:]]


def test_frozen_parameters_are_left_out_until_they_train(sent: Sent) -> None:
    model = sent.model()
    for is_frozen in (True, False, False):
        model.first.requires_grad_(not is_frozen)
        begin_last_pass(model)
        model(INPUT).sum().backward()
        end_passes(model)
        assert (model.first.weight.grad is None) is is_frozen
        model.zero_grad()


def test_a_model_that_has_trained_is_freed(sent: Sent) -> None:
    model = sent.model()
    begin_last_pass(model)
    model(INPUT).sum().backward()
    end_passes(model)
    freed = weakref.ref(model.first.weight)
    del model
    gc.collect()
    assert freed() is None
