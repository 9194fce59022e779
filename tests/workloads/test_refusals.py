"""A refusal names the user's line, what happened and what to do."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from estimators.tracing import kernels  # noqa: F401  (registers kernels)
from workloads import refusals
from workloads.parallel.tensor_parallel import split_of
from workloads.refusals import (
    WorkloadError,
    WrongResult,
    deepest_lines,
    expect,
    expect_counts,
    expect_loss,
    expect_model,
    expect_no_scaler,
    explain,
)


def raised(folder: Path, source: str) -> BaseException:
    """The error that ``f(x)`` of a user's file raises."""
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(source)
    names: dict[str, Callable[[Any], Any]] = {"torch": torch, "nn": nn}  # type: ignore[dict-item]
    with FakeTensorMode(allow_non_fake_inputs=True):
        exec(compile(source, folder / "net.py", "exec"), names)
        with pytest.raises(BaseException) as caught:
            names["f"](torch.zeros(3, 4))
    return caught.value


@pytest.mark.parametrize(
    ("line", "cause", "advice"),
    [
        ("print(x.sum().item())", "reads a value of a tensor", "drop the print"),
        ("if x.sum() > 0: pass", "reads a value of a tensor", "torch.where"),
        ("if x.sum() > 0: print(1)", "reads a value of a tensor", "on_evaluate"),
        ("x.sum().item()", "reads a value of a tensor", r"no \.item\(\)"),
        ("torch.log(x).sum().item()", "reads a value of a tensor", r"no \.item\(\)"),
        ("range(x.max().long())", "reads a value of a tensor", "take sizes from shapes"),
        ("f'{x.sum():.3f}'", "reads a value of a tensor", "on_evaluate"),
        ("x.unique()", "size depends on values", "lengths and ids from the batch"),
        ("x.repeat_interleave(x[0, 0].long())", "size depends on values", "mask"),
        ("torch.sparse.mm(torch.eye(3).to_sparse(), x)", "multiplies a sparse matrix", "index_add"),
        (
            "torch.nested.nested_tensor_from_jagged(x, offsets=torch.tensor([0, 3]))",
            "uses nested tensors",
            "pad samples to one size",
        ),
        (
            "y = x.requires_grad_()[None, None]; "
            "__import__('torch.nn.attention.flex_attention').nn.attention.flex_attention.flex_attention(y, y, y)",
            "uses flex_attention",
            "scaled_dot_product_attention",
        ),
        ("torch.as_tensor(list(x[:, 0].long()))", "needs the values of tensors", "whole tensors"),
        (
            "w = nn.Embedding(3, 4, sparse=True); w(x.long()).sum().backward(); w.weight.grad.untyped_storage()",
            "does with a sparse gradient what a prediction cannot follow",
            "sparse=False",
        ),
        (
            "nn.utils.rnn.pack_padded_sequence(x[None], torch.ones(1).long())",
            "packs sequences by their lengths",
            r"output\[torch\.arange",
        ),
        (
            "nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))",
            "makes a weight orthogonal",
            "use_trivialization=False",
        ),
        ("x.numpy()", "NumPy", "torch's functions"),
        ("x.cuda()", "asks for a device", "leave devices to ScaMP"),
        ("x.to('mps')", "asks for a device", "leave devices to ScaMP"),
        ("nn.Linear(4, 4, device='meta')(x)", "on the meta device, which has no values", "real tensors"),
        ("nn.LazyLinear(4)(x)", "has a lazy layer", r"nn\.Linear\(8, 4\) instead"),
        (
            "nn.parallel.DistributedDataParallel(nn.Linear(4, 4))",
            "spreads the model over processes",
            "init_process_group",
        ),
        ("torch.distributed.init_process_group('gloo')", "spreads the model over processes", "leave that to ScaMP"),
        ("nn.Linear(5, 5)(x)", r"sizes of tensors do not match: .*\[3, 4\]", "inputs"),
        ("nn.Embedding(5, 5)(x)", "types of tensors do not match", r"\.to\(dtype\)"),
        ("nn.Linear(4, 4).weight.add_(1)", "changes a parameter in place", "no_grad"),
        ("f(x)", "calls itself without end", "an end"),
        ("open('gone.bin')", "a file that is not there: .*gone.bin", "--working-dir"),
        ("raise ConnectionError('cannot connect to hub')", "ConnectionError: cannot connect to hub", None),
        ("raise ValueError('the dimension must be even')", "ValueError: the dimension must be even", None),
    ],
)
def test_a_refusal_names_the_users_line_what_happened_and_what_to_do(
    tmp_path: Path, line: str, cause: str, advice: str | None
) -> None:
    text = explain(raised(tmp_path, f"def f(x):\n    {line}\n"), tmp_path)
    first, second, *more = text.splitlines()
    assert first == f"net.py, line 2: {line}"
    assert re.search(cause, second), text
    if advice is None:
        assert not more
    else:
        assert len(more) == 1 and more[0].startswith("→ ") and re.search(advice, more[0]), text


def test_a_library_that_the_users_line_called_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, users = tmp_path / "site", tmp_path / "users"
    (library / "nets").mkdir(parents=True)
    users.mkdir()
    (library / "nets" / "deep.py").write_text("def forward(x):\n    return x if x.any() else -x\n")
    (library / "nets" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(library)
    monkeypatch.setattr(refusals, "_LIBRARIES", library)
    text = explain(raised(users, "from nets.deep import forward\ndef f(x):\n    return forward(x)\n"), users)
    del sys.modules["nets"], sys.modules["nets.deep"]
    assert text.splitlines()[:2] == [
        "net.py, line 3: return forward(x)",
        "calls nets/deep.py, line 2: return x if x.any() else -x",
    ]
    assert len(text.splitlines()) == 4 and "torch.where" in text


def test_lines_of_scamp_torch_and_python_are_never_shown(tmp_path: Path) -> None:
    ours = [(str(Path(refusals.__file__)), 1), (torch.__file__, 1), (pytest.__file__, 2), ("<string>", 1)]
    assert deepest_lines(ours[:2] + ours[3:], tmp_path) == []
    assert deepest_lines([(str(tmp_path / "net.py"), 7), *ours[:2]], tmp_path) == ["net.py, line 7"]


def test_files_of_the_user_are_named_without_the_folder_that_scamp_has_made(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 50)  # a folder of ScaMP is no part of a message
    missing = explain(FileNotFoundError(2, "No such file", f"{folder}/data.csv"), folder)
    assert "'data.csv'" in missing and "deep" not in missing
    here = explain(ImportError(f"cannot import name 'x' from 'net' ({folder}/net.py)"), folder)
    assert here == "ImportError: cannot import name 'x' from 'net' (net.py)"
    assert explain(WorkloadError(f"no file in {folder}"), folder) == "no file in the folder of the study"


def test_a_line_of_code_is_whole_unless_it_is_absurdly_long(tmp_path: Path) -> None:
    usual = f"raise ValueError('wrong')  # {'word ' * 22}end"
    absurd = f"raise ValueError('wrong')  # {'word ' * 100}"
    usual_line, cut = (
        explain(raised(tmp_path / n, f"def f(x):\n    {line}\n"), tmp_path / n).splitlines()[0]
        for n, line in (("usual", usual), ("absurd", absurd))
    )
    assert len(usual) > 100 and usual_line == f"net.py, line 2: {usual}"
    assert cut.endswith("…") and len(cut) < 250


def test_a_message_is_short_whatever_the_error_says(tmp_path: Path) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise KeyError

    assert explain(Broken(), tmp_path) == "Broken"
    cut = explain(ValueError("x\n" * 10_000), tmp_path)
    assert len(cut) < 600 and cut.endswith("…")
    assert "\n" not in explain(ValueError("two\nlines"), tmp_path)


def test_a_wrong_result_is_shown_at_the_function_that_returned_it(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("\n\ndef loss(model, x):\n    return 3\n")
    names: dict[str, Any] = {}
    exec(compile((tmp_path / "net.py").read_text(), tmp_path / "net.py", "exec"), names)
    with pytest.raises(WrongResult) as caught:
        expect_loss(3, names["loss"])
    assert explain(caught.value, tmp_path).startswith(
        "net.py, line 3: def loss(model, x):\nreturns int instead of the loss"
    )


@pytest.mark.parametrize("count", [0, -5, 2.0, True, "9"])
@pytest.mark.parametrize("name", ["num_train", "num_eval"])
def test_a_workload_has_samples(name: str, count: Any) -> None:
    expect_counts(SimpleNamespace(num_train=1, num_eval=9))  # type: ignore[arg-type]
    workload: Any = SimpleNamespace(**{"num_train": 1, "num_eval": 9, name: count})
    with pytest.raises(WorkloadError, match=rf"{name} is {count!r}: it must be the number of samples"):
        expect_counts(workload)
    delattr(workload, name)
    with pytest.raises(WorkloadError, match=f"{name} is missing: set it in the class, in __init__, or as a property"):
        expect_counts(workload)


def test_a_model_is_returned_without_what_spreads_it() -> None:
    model = nn.Linear(4, 4)
    assert expect_model(model, min) is model
    with pytest.raises(WrongResult, match="a model in DataParallel, which spreads it over devices itself: return"):
        expect_model(nn.Sequential(nn.DataParallel(model)), min)


def test_a_workload_that_scales_its_loss_is_refused() -> None:
    expect_no_scaler(SimpleNamespace(scale=2.0))  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match=r"has a GradScaler, self\.scaler: ScaMP computes"):
        expect_no_scaler(SimpleNamespace(scaler=torch.amp.GradScaler("cpu")))  # type: ignore[arg-type]


def test_advice_for_predictions_is_not_given_in_training(tmp_path: Path) -> None:
    error = raised(tmp_path, "import numpy as np\ndef f(x):\n    np.zeros('a')\n")
    assert "needs its values" in explain(error, tmp_path)
    place, message = explain(error, tmp_path, in_training=True).splitlines()
    assert place == "net.py, line 3: np.zeros('a')"
    assert message.startswith("TypeError: ")


def test_a_loss_is_one_number_that_depends_on_parameters() -> None:
    trained = torch.ones(2, requires_grad=True)
    assert expect_loss(trained.sum(), min)[1] is None
    assert expect_loss((trained.sum(), 3), min)[1] == 3
    assert expect_loss((trained.sum(), torch.tensor([2.5])), min)[1] == 2.5
    for wrong, words in (
        (trained, r"shape \[2\], but the loss is one number"),
        (trained.sum().detach(), "depends on no trained parameter"),
        (SimpleNamespace(loss=3), "returns SimpleNamespace"),
        (None, "returns None"),
        (0.5, r"returns a number, which has no gradients: .* without \.item\(\)"),
        ((trained.sum(), 1, 2), "returns 3 values: return the mean loss, or a sum and what it is divided by"),
        ((trained.sum(), trained.detach()), r"returns a sum and .*shape \[2\].*: return what the sum is divided by"),
        ((trained.sum(), "2"), "returns a sum and str"),
        ((trained.sum(), trained.sum()), "a count that depends on trained parameters"),
    ):
        with pytest.raises(WrongResult, match=words):
            expect_loss(wrong, min)
    assert expect(3, int, min, "a number") == 3


@pytest.mark.parametrize(
    ("message", "cause", "advice"),
    [
        ("Tensor cached during selective activation checkpoint has been mutated", "changes in place", "selective"),
        (
            "aten.pow_: in-place operations that require placement changes are not supported",
            "torch cannot divide",
            "AdamW",
        ),
        ("got mixed torch.Tensor and DTensor", "combines a sharded parameter", r"block\(x\)"),
        ("got mixed torch.Tensor and DTensor", "a sharded parameter", r"dp_replicate.*ZeRO-1 unless .* phases"),
        ("Trying to backward through the graph a second time (or", "backward a second time", r"no \.backward\(\)"),
    ],
)
def test_errors_of_plans_are_explained_in_training_too(message: str, cause: str, advice: str) -> None:
    _, *lines = ["", *explain(RuntimeError(message), None, in_training=True).splitlines()]
    assert re.search(cause, lines[0]) and re.search(advice, lines[1])


def test_a_label_without_an_output_is_explained() -> None:
    with pytest.raises(IndexError) as caught:
        nn.functional.cross_entropy(torch.zeros(1, 3), torch.tensor([3]))
    problem, advice = explain(caught.value, None, in_training=True).splitlines()[-2:]
    assert "Target 3 is out of bounds" in problem and "below the number of the model's outputs" in advice


def test_words_of_scamp_about_a_plan_are_shown_without_the_type_of_the_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        split_of(nn.Linear(4, 4), 2)
    assert explain(caught.value, tmp_path).startswith("block 2 (Linear) does not say how it is divided")


def test_an_own_average_of_sharded_weights_is_refused_with_the_option_that_averages(tmp_path: Path) -> None:
    class Sharded:
        def lerp_(self, other: Any, share: float) -> None:
            raise RuntimeError("aten.lerp_.Scalar: got mixed torch.Tensor and DTensor")

    (tmp_path / "net.py").write_text("def f(x):\n    x.lerp_(x, 0.1)\n")
    names: dict[str, Any] = {}
    exec(compile((tmp_path / "net.py").read_text(), tmp_path / "net.py", "exec"), names)
    with pytest.raises(RuntimeError) as caught:
        names["f"](Sharded())
    lines = explain(caught.value, tmp_path).splitlines()
    assert lines[0] == "net.py, line 2: x.lerp_(x, 0.1)" and "ema_decay: 0.99" in lines[-1]
