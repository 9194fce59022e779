"""What code may look at although the tensors are fake, and what it may not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from estimators.tracing.recorder import Recorder
from estimators.tracing.stand_ins import UnknownNumber, stand_ins


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, Recorder(fake) as recorder, stand_ins(recorder.values):
        yield recorder


def _counted() -> Any:
    return [rate.item() for rate in torch.linspace(0, 0.5, 3)]


def _written() -> Any:
    numbers = torch.zeros(4, dtype=torch.int64)
    numbers[1:3] = 5
    numbers[1:2].add_(2)
    return numbers.tolist()


def _masked() -> Any:
    steps = torch.arange(6)
    return steps[steps % 2 == 0].tolist()


def _positions() -> Any:
    return (torch.tensor([0, 3, 0, 4]) > 0).nonzero().squeeze(1).tolist()


def _compared() -> Any:
    return bool((torch.arange(4) < 4).all()), torch.equal(torch.arange(3), torch.tensor([0, 1, 2]))


def _as_array() -> Any:
    return torch.ones(2).numpy().sum()


@pytest.mark.parametrize(
    "code", [_counted, _written, _masked, _positions, _compared, _as_array], ids=lambda code: code.__name__.strip("_")
)
def test_values_that_depend_on_no_training_are_those_of_real_tensors(
    recorder: Recorder, code: Callable[[], Any]
) -> None:
    seen = code()
    assert recorder.values.assumed == set()
    with torch._C._DisableTorchDispatch():
        assert seen == code()


@pytest.mark.parametrize(
    "code",
    [
        lambda: torch.rand(3).nonzero(),
        lambda: bool(torch.rand(3).sum() > 0),
        lambda: torch.empty(3).tolist(),
        lambda: int(torch.rand(3).argmax()),
        lambda: torch.ones(3).mul_(torch.rand(3)).tolist(),
        lambda: torch.rand(3)[torch.rand(3) > 0],
    ],
)
def test_values_that_nobody_knows_are_refused(recorder: Recorder, code: Callable[[], Any]) -> None:
    with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        code()


def test_what_is_written_at_random_is_forgotten(recorder: Recorder) -> None:
    known = torch.zeros(3)
    assert known.tolist() == [0, 0, 0]
    known[1:].normal_()
    with pytest.raises(DataDependentOutputException):
        known.tolist()


def test_checks_for_nan_pass_and_it_is_told(recorder: Recorder) -> None:
    x = torch.rand(3, 4)
    assert torch.isfinite(x).all() and not torch.isnan(x).any() and not (x.isinf() | x.isnan()).any()
    assert {one.partition(" (")[0] for one in recorder.values.assumed} == {"checks for NaN and infinity find none"}
    assert all("test_values.py:" in one for one in recorder.values.assumed)
    with pytest.raises(DataDependentOutputException):
        assert (x == 0).all()


def test_whole_numbers_of_a_batch_decide_and_it_is_told(recorder: Recorder) -> None:
    with torch._C._DisableTorchDispatch():
        batch = {"labels": torch.tensor([3, 9]), "images": torch.rand(2, 4)}
    fake = recorder.copied(batch)
    assert fake["labels"].max().item() == 9
    (assumed,) = recorder.values.assumed
    assert assumed.startswith("data decide as the first samples do (test_values.py:")
    with pytest.raises(DataDependentOutputException):
        bool(fake["images"].max() > 0)


def test_a_number_of_the_training_may_be_printed_and_not_compared(recorder: Recorder) -> None:
    loss = torch.rand(3).mean().item()
    mean = (loss + 2 * loss) / 3
    assert isinstance(mean, UnknownNumber) and f"{mean:.2f}" == "1.00"
    for look in (lambda: mean < 1, lambda: bool(mean), lambda: max(mean, 0.0), lambda: int(mean)):
        with pytest.raises(DataDependentOutputException):
            look()


def test_a_copy_of_a_module_has_memory_and_gradients_of_its_own(recorder: Recorder) -> None:
    module = nn.Linear(4, 4)
    module.weight.requires_grad_(False)
    module.tied = module.weight  # type: ignore[assignment]
    before = recorder.live_bytes
    copied = copy.deepcopy(module)
    assert recorder.live_bytes - before == 4 * (16 + 4)
    assert isinstance(copied.weight, nn.Parameter) and not copied.weight.requires_grad and copied.bias.requires_grad
    assert copied.tied is copied.weight and copied.weight is not module.weight


def test_a_compiled_model_is_the_eager_one(recorder: Recorder) -> None:
    compiled: Callable[[Tensor], Tensor] = torch.compile(nn.Linear(4, 4))
    compiled(torch.rand(2, 4)).sum().backward()
    assert recorder.live_bytes == 4 * 2 * (16 + 4)
