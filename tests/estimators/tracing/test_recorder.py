"""The life of single buffers. What the steps of whole models log is in ``test_session`` and ``test_tracer``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from estimators.tracing.recorder import OtherDevice, Recorder
from estimators.work import Work

KIB = 256
"""Numbers of four bytes that make a KiB."""
SAMPLES = torch.ones(2, 8)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, Recorder(fake) as new_recorder:
        yield new_recorder


def test_a_buffer_is_logged_when_it_is_made_and_when_nothing_refers_to_it(recorder: Recorder) -> None:
    first = torch.ones(KIB)
    second = first.repeat(3)
    view = second[KIB:].view(2, KIB)
    assert recorder.log == [(0, 1024), (1, 3072)] and recorder.live_bytes == 4096
    del second
    assert len(recorder.log) == 2, "its view lives"
    del view
    first.add_(1)
    assert recorder.log[2:] == [(1, 0)] and recorder.live_bytes == 1024
    del first
    assert recorder.log[3:] == [(0, 0)] and recorder.live_bytes == 0


def test_a_new_log_begins_with_what_lives_numbered_anew_in_its_categories(recorder: Recorder) -> None:
    gone, kept, later = torch.ones(KIB), torch.ones(2 * KIB), torch.ones(3 * KIB)
    recorder.categorise([later], "gradients")
    recorder.categorise({"a": (kept,)}, "parameters")
    product = kept @ kept
    recorder.mark(0)
    assert recorder.work != Work()
    del gone, product
    assert recorder.begin() == 5 * 1024 == recorder.live_bytes
    assert recorder.log == [(0, 2048), (1, 3072)] and recorder.categories == ["parameters", "gradients"]
    assert (recorder.marks, recorder.work, recorder.numbers([kept, later, "text"])) == ([], Work(), [0, 1])
    del kept
    assert recorder.log[2:] == [(0, 0)] and recorder.passes.categories == ("parameters", "gradients")


def test_only_buffers_without_a_category_are_owned(recorder: Recorder) -> None:
    batch = recorder.copied((SAMPLES, SAMPLES))
    rest = torch.ones(KIB)
    recorder.claim("optimizer")
    assert recorder.categories == ["batch", "batch", "optimizer"]
    assert recorder.numbers(batch) == [0, 1] and recorder.numbers(rest) == [2]


def test_a_storage_that_is_resized_is_the_same_buffer_with_gathered_parameters(recorder: Recorder) -> None:
    buffer = torch.ones(KIB)
    buffer.untyped_storage().resize_(0)
    buffer.untyped_storage().resize_(512)
    assert recorder.log == [(0, 1024), (0, 0), (0, 512)]
    assert (recorder.live_bytes, recorder.categories) == (512, ["gathered"])


def test_marks_say_where_in_the_log_a_block_begins(recorder: Recorder) -> None:
    recorder.mark(0)
    first = torch.ones(8, 8)
    recorder.mark(1)
    product = first @ first
    recorder.mark(None)
    assert [(place, block) for place, block, _ in recorder.marks] == [(0, 0), (1, 1), (2, None)]
    flops = [work.flops for _, _, work in recorder.marks]
    assert flops[0] == flops[1] == 0 and flops[2] == recorder.work.flops == 2 * 8**3
    assert product.shape == (8, 8)


def test_what_a_backward_pass_finds_of_the_forward_pass_are_activations(recorder: Recorder) -> None:
    weight = nn.Parameter(torch.ones(8, 8))
    recorder.claim("parameters")
    x = recorder.copied(SAMPLES)
    loss = (x @ weight).relu().sum()
    assert set(recorder.categories) == {"parameters", "batch", "scratch"}
    loss.backward()
    (number,) = recorder.numbers(loss)
    assert recorder.categories[number] == "activations"
    assert recorder.categories.count("activations") >= 2, "the result of relu, too"
    assert weight.grad is not None and recorder.categories[recorder.numbers(weight.grad)[0]] == "scratch"


def loss_of(weight: Tensor) -> Tensor:
    return (torch.ones(2, 8) @ weight).relu().sum()


@pytest.mark.parametrize(
    "select",
    [
        lambda x: x[torch.tensor([1, 0])],
        lambda x: x.index_select(0, torch.tensor([1, 0])),
        lambda x: x.gather(0, torch.tensor([[1, 0]])),
    ],
    ids=["index", "index_select", "gather"],
)
def test_a_gradient_is_scattered_into_zeros_without_a_copy(
    recorder: Recorder, select: Callable[[Tensor], Tensor]
) -> None:
    x = torch.ones(1000, 2, requires_grad=True)
    loss = select(x).sum()
    recorder.begin()
    loss.backward()
    live = most = 0
    sizes: dict[int, int] = {}
    for number, size in recorder.log:
        live += size - sizes.get(number, 0)
        sizes[number] = size
        most = max(most, live)
    assert 2 * x.nbytes < most < 2.1 * x.nbytes, "the tensor and its gradient"


def test_a_forward_pass_is_logged_alone_and_the_backward_pass_does_not_run(recorder: Recorder) -> None:
    weight = nn.Parameter(torch.ones(8, 8))
    recorder.begin()
    passes = recorder.forward_log(lambda: loss_of(weight).backward())
    assert passes.work == passes.forward
    assert weight.grad is None
    assert passes.work.of("matmul")[1] == 2 * 2 * 8 * 8, "the product of the forward pass alone"
    with pytest.raises(ValueError, match="the step has no backward pass"):
        recorder.forward_log(lambda: loss_of(weight))
    recorder.begin()
    loss_of(weight).backward()
    assert weight.grad is not None, "later steps run to their end"
    assert recorder.passes.forward == passes.work and recorder.passes.work.flops == 2 * passes.work.flops


def test_a_tensor_on_another_device_ends_the_trace_with_its_name(recorder: Recorder) -> None:
    with pytest.raises(OtherDevice, match=r"^it puts a tensor on cuda:1$"):
        torch.ones(2, device="cuda:1")
    assert recorder.log == []


def test_buffers_of_other_streams_are_numbered_in_the_order_of_their_first_use(recorder: Recorder) -> None:
    first, other = torch.cpu.Stream(), torch.cpu.Stream()
    buffers = [torch.ones(KIB)]
    for stream in (other, first, other):
        with torch.cpu.stream(stream):
            buffers.append(torch.ones(KIB))
    assert recorder.streams == {1: 1, 2: 2, 3: 1}
    del buffers[:2]
    recorder.begin()
    assert recorder.streams == {0: 2, 1: 1}
