"""Code may look at some values although the tensors are fake; others raise an error."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from estimators.tracing.recorder import Recorder
from estimators.tracing.stand_ins import UnknownNumber, stand_ins
from tests.estimators.tracing import checks


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


def _masked_in_two_dimensions() -> Any:
    steps = torch.arange(6).reshape(2, 3)
    steps[steps == 4] = 7
    return steps[steps > 1].tolist(), torch.masked_select(steps, steps < 2).tolist()


def _compared() -> Any:
    return bool((torch.arange(4) < 4).all()), torch.equal(torch.arange(3), torch.tensor([0, 1, 2]))


def _as_array() -> Any:
    return torch.ones(2).numpy().sum()


@pytest.mark.parametrize(
    "code",
    [_counted, _written, _masked, _positions, _masked_in_two_dimensions, _compared, _as_array],
    ids=lambda code: code.__name__.strip("_"),
)
def test_values_that_depend_on_no_training_are_those_of_real_tensors(
    recorder: Recorder, code: Callable[[], Any]
) -> None:
    seen = code()
    assert recorder.values.assumptions.described == []
    with torch._C._DisableTorchDispatch():
        assert seen == code()


@pytest.mark.parametrize(
    ("code", "shape"),
    [
        (lambda x: x[x > 0], (6,)),
        (lambda x: x[x[:, 0] > 0], (2, 3)),
        (lambda x: x[:, x[0] > 0], (2, 3)),
        (lambda x: x.repeat(9, 1)[torch.rand(18, 3) < 0.15], (54,)),
        (lambda x: x.masked_select(x[0] > 0), (6,)),
        (lambda x: x.nonzero(), (6, 2)),
        (lambda x: x[torch.where(x > 0)], (6,)),
        (lambda x: x.index_put_((x > 0,), x[x > 0]), (2, 3)),
    ],
)
def test_a_mask_that_is_not_known_chooses_all_that_it_may(
    recorder: Recorder, code: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    assert code(torch.empty(2, 3)).shape == shape
    assert recorder.values.assumptions.described[0].startswith("a mask chooses all that it may (")


def test_a_mask_of_checks_for_nan_chooses_nothing(recorder: Recorder) -> None:
    numbers = torch.empty(2, 3)
    assert numbers[numbers.isnan()].shape == (0,) and numbers.isfinite().nonzero().shape == (6, 2)
    assert [assumption.split(" (")[0] for assumption in recorder.values.assumptions.described] == [
        "checks for NaN and infinity find none"
    ]


@pytest.mark.parametrize(
    "code",
    [
        lambda: bool(torch.empty(3).sum() > 0),
        lambda: torch.rand(30).tolist(),
        lambda: int(torch.rand(30).sum()),
        lambda: torch.ones(3).mul_(torch.empty(3)).tolist(),
    ],
)
def test_values_that_nobody_knows_are_refused(recorder: Recorder, code: Callable[[], Any]) -> None:
    with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        code()


def test_layers_that_are_built_on_the_meta_device_have_no_values_and_may_be_traced(recorder: Recorder) -> None:
    layer = nn.BatchNorm1d(3, device="meta").to_empty(device="cpu")
    assert layer(torch.ones(2, 3)).shape == (2, 3)
    assert layer.running_var is not None
    with pytest.raises(DataDependentOutputException):
        layer.running_var.tolist()


def test_what_is_written_at_random_is_forgotten(recorder: Recorder) -> None:
    zeros = torch.zeros(3)
    assert zeros.tolist() == [0, 0, 0]
    zeros[1:].normal_()
    with pytest.raises(DataDependentOutputException):
        zeros.tolist()


def test_checks_for_nan_pass_and_it_is_told(recorder: Recorder) -> None:
    x = torch.empty(3, 4)
    results = [torch.isfinite(x).all(), torch.isnan(x).any(), (x.isinf() | x.isnan()).any(), x.isnan().sum()]
    assert [int(check) for check in results] == [1, 0, 0, 0]
    (assumed,) = recorder.values.assumptions.described
    assert assumed.startswith("checks for NaN and infinity find none (test_values.py:")
    with pytest.raises(DataDependentOutputException):
        bool((x == 0).all())


def test_values_of_a_batch_decide_and_it_is_told(recorder: Recorder) -> None:
    with torch._C._DisableTorchDispatch():
        batch = {"labels": torch.tensor([3, 9]), "images": torch.rand(2, 4)}
    fake = recorder.copied(batch)
    assert fake["labels"].max().item() == 9 and fake["images"].max() <= 1
    (assumed,) = recorder.values.assumptions.described
    assert assumed.startswith("data decide as the first samples do (test_values.py:")
    with pytest.raises(DataDependentOutputException):
        bool(nn.Linear(4, 1)(fake["images"]).max() > 0)


def test_a_number_of_the_training_may_be_printed_and_not_compared(recorder: Recorder) -> None:
    loss = torch.empty(3).mean().item()
    mean = (loss + 2 * loss) / 3
    assert isinstance(mean, UnknownNumber) and f"{mean:.2f}" == "1.00"
    ones = torch.ones(2, 3)
    assert (mean * ones).shape == (mean / ones).shape == (ones - mean).shape == (2, 3)
    for look in (lambda: mean < 1, lambda: bool(mean), lambda: max(mean, 0.0), lambda: int(mean)):
        with pytest.raises(DataDependentOutputException):
            look()


def test_a_float_of_the_training_decides_nothing_and_it_is_told(recorder: Recorder) -> None:
    assert checks.shows(torch.empty(3).mean()) == "loss 1.000"
    (assumed,) = recorder.values.assumptions.described
    assert assumed.startswith("a number taken by float() decides nothing (checks.py:")
    for decides in (checks.stops_early, checks.chooses, checks.compares):
        with pytest.raises(DataDependentOutputException):
            decides(torch.empty(3).mean())


def test_an_optimizer_may_compare_the_numbers_that_it_scales_updates_by(recorder: Recorder) -> None:
    model = nn.Linear(3, 3)
    model(torch.ones(2, 3)).sum().backward()
    torch.optim.Adafactor(model.parameters()).step()  # it takes the larger one of a root mean square and a constant


def test_a_number_of_the_training_may_be_formatted(recorder: Recorder) -> None:
    loss = torch.empty(3).mean()
    assert f"{loss:.3f} of {loss.argmax():d}" == "1.000 of 1"
    assert recorder.values.assumptions.described == []
    with pytest.raises(TypeError):
        f"{torch.empty(3):.3f}"


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (checks.asserts, (-1.0, 3.0)),
        (checks.raises, (-1.0, 3.0)),
        (checks.raises_in_one_line, (-1.0, 3.0)),
        (checks.raises_over_several_lines, (-1.0, 3.0)),
        (lambda x: torch._check_tensor_all(x > 0), (-1.0,)),
    ],
)
def test_a_check_that_a_healthy_run_passes_is_passed(
    recorder: Recorder, check: Callable[[Tensor], None], wrong: Sequence[float]
) -> None:
    check(torch.empty(3))
    (assumed,) = recorder.values.assumptions.described
    assert assumed.startswith("a check holds (")
    check(torch.ones(3))
    for value in wrong:
        with pytest.raises((AssertionError, ValueError, RuntimeError)):
            check(torch.full((3,), value))


def test_a_value_before_a_constant_decides_nothing(recorder: Recorder) -> None:
    assert checks.returns_none(torch.empty(3).norm()) is None
    assert recorder.values.assumptions.described == []
    with pytest.raises(DataDependentOutputException):
        checks.returns_one_of(torch.empty(3).norm())


def test_a_list_of_scalars_is_an_index(recorder: Recorder) -> None:
    x, places = torch.empty(5, 7, 2), torch.empty(4, dtype=torch.int64)
    assert x[:, list(places)].shape == (5, 4, 2)
    assert x[list(places), [0, 1, 2, places[0]]].shape == (4, 2)
    x[list(places), 0] = 1
    assert x[:, [0, 1]].shape == (5, 2, 2) and x[places].shape == (4, 7, 2)


def test_a_branch_is_no_check(recorder: Recorder) -> None:
    with pytest.raises(DataDependentOutputException):
        checks.branches(torch.empty(3))


def test_a_model_chooses_evenly_or_always_the_same() -> None:
    chosen = {}
    for even in (True, False):
        with FakeTensorMode() as fake, Recorder(fake, even=even) as recorder, stand_ins(recorder.values):
            experts = torch.empty(6, 4).topk(2).indices
            counts = nn.functional.one_hot(experts, 4).sum((0, 1)).tolist()
            rows = (experts == 1).nonzero()
            nearest = torch.empty(3, 5).argmin(1)
            assert torch.bincount(nearest, minlength=5).shape == (5,)
            assert torch.empty(3, 5).min(1).indices.tolist() == nearest.tolist()
            chosen[even] = (counts, list(rows.shape), torch.empty(3, 5).argmax(1).tolist())
            assert recorder.values.assumptions.described[0].startswith("choices by the model are even (")
    assert chosen == {True: ([3, 3, 3, 3], [3, 2], [0, 1, 2]), False: ([6, 6, 0, 0], [6, 2], [0, 0, 0])}


def test_a_few_random_numbers_are_drawn(recorder: Recorder) -> None:
    assert 0 <= torch.rand([]).item() < 1
    assert recorder.values.assumptions.has_drawn
    assert recorder.values.assumptions.described == []
    recorder.values.assumptions.in_step = True
    torch.rand(100)
    assert not recorder.values.assumptions.has_decided
    (drawn,) = recorder.values.assumptions.described
    assert drawn.startswith("random numbers are drawn for each micro-batch, so they depend on the plan (test_values.py")


def test_dropout_is_no_news(recorder: Recorder) -> None:
    recorder.values.assumptions.in_step = True
    nn.Dropout(0.5)(torch.ones(100))
    nn.functional.dropout(torch.ones(100), 0.5)
    assert recorder.values.assumptions.described == []


def test_a_copy_of_a_module_has_memory_and_gradients_of_its_own(recorder: Recorder) -> None:
    module = nn.Linear(4, 4)
    module.weight.requires_grad_(False)
    module.tied = module.weight
    before = recorder.live_bytes
    copied = copy.deepcopy(module)
    assert recorder.live_bytes - before == 4 * (16 + 4)
    assert isinstance(copied.weight, nn.Parameter)
    assert not copied.weight.requires_grad
    assert copied.bias.requires_grad
    assert copied.tied is copied.weight and copied.weight is not module.weight


def test_a_compiled_model_is_the_eager_one(recorder: Recorder) -> None:
    compiled: Callable[[Tensor], Tensor] = torch.compile(nn.Linear(4, 4))
    compiled(torch.rand(2, 4)).sum().backward()
    assert recorder.live_bytes == 4 * 2 * (16 + 4)


def test_the_positions_that_a_mask_chooses_take_memory_while_they_are_used(recorder: Recorder) -> None:
    numbers = torch.empty(10, 100)
    before = len(recorder.log)
    chosen = numbers[numbers > 0]
    taken = [num_bytes for _, num_bytes in recorder.log[before:]]
    assert 2 * 8 * 1000 in taken
    assert chosen.shape == (1000,)
