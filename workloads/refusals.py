"""Explains an error of a user's code in at most four lines: where it happened, what happened, and what to do about it.

Only lines of the user's files and of libraries are shown, never those of ScaMP, torch or Python itself.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from estimators.traits import FSDP
from scamp.user_code.own_imports import OUR_FOLDERS
from scamp.workload.datasets import Count
from scamp.workload.hints import Contradiction
from workloads.files.archive import ArchiveError
from workloads.protocol import Workload, defines

MESSAGE_CHARACTERS = 500  # of an error's own message: those of libraries may fill pages
TRACEBACK_CHARACTERS = 8000
SOURCE_CHARACTERS = 200  # of a line of code: a formatter's longest lines have 120
WITHOUT_FSDP = f"use {FSDP.instead}"
_WITHOUT_CLOSURE = (
    "choose an optimizer whose step needs no closure, such as torch.optim.AdamW: ScaMP computes the gradients; for "
    'sharpness-aware minimization see "SAM in two steps" in docs/updates.md'
)
COUNTS = ("num_train", "num_eval")
"""The numbers of samples of a workload."""
_ROOT = Path(__file__).resolve().parents[1]
_BUILT_IN = _ROOT / "workloads" / "models"
_PLANS = _ROOT / "workloads" / "parallel"
_LIBRARIES = Path(sysconfig.get_path("purelib")).resolve()
_PYTHON = Path(sysconfig.get_path("stdlib")).resolve()
_UNDER_TORCH = ("torch", "numpy", "sympy")  # their lines say nothing to the author of a model

_SPREADING = (DataParallel, DistributedDataParallel)

_Kind = TypeVar("_Kind")


class WorkloadError(Exception):
    """The workload cannot be used; the message says why, and where in the user's files."""


class WrongResult(Exception):
    """A function of the user returned something that cannot be used. Its definition is shown, as no line failed."""

    def __init__(self, function: Callable[..., Any] | None, problem: str, advice: str) -> None:
        super().__init__(f"{problem}: {advice}")
        self.function, self.problem, self.advice = function, problem, advice

    def __reduce__(self) -> tuple[type[WrongResult], tuple[None, str, str]]:
        return WrongResult, (None, self.problem, self.advice)  # a method would take its workload along


class Stopped(BaseException):
    """The user's code took too long. Not an ``Exception``, because the user's code might catch that and continue."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}: {advice}")
        self.problem, self.advice = problem, advice


def expect(value: Any, kind: type[_Kind], function: Callable[..., Any], expectation: str) -> _Kind:
    """``value``, which ``function`` has returned. Raises ``WrongResult`` unless it is of this kind."""
    if not isinstance(value, kind):
        raise WrongResult(function, f"returns {kinds_of(value)} instead of {expectation}", f"return {expectation}")
    return value


def expect_loss(value: Any, function: Callable[..., Any]) -> tuple[Tensor, Tensor | None]:
    """The loss that ``function`` has returned: a mean, or a sum and the count that it is divided by, a scalar.

    Raises ``WrongResult`` unless it can be minimised.
    """
    if isinstance(value, tuple):
        if len(value) != 2:
            raise WrongResult(
                function, f"returns {len(value)} values", "return the mean loss, or a sum and what it is divided by"
            )
        return expect_minimised(value[0], function), _expect_count(value[1], function)
    return expect_minimised(value, function), None


def expect_minimised(value: Any, function: Callable[..., Any]) -> Tensor:
    """One number that ``function`` has returned. Raises ``WrongResult`` unless it can be minimised."""
    if isinstance(value, float):
        raise WrongResult(function, "returns a number, which has no gradients", "return the tensor, without .item()")
    loss = expect(value, Tensor, function, "the loss, a tensor with one number")
    if loss.numel() != 1:
        raise WrongResult(function, f"returns {kinds_of(loss)}, but the loss is one number", "return its .mean()")
    if not loss.requires_grad:
        raise WrongResult(
            function,
            "returns a loss that depends on no trained parameter",
            "avoid .detach(), torch.no_grad() and requires_grad=False between the model's parameters and its loss",
        )
    return loss


def _expect_count(value: Any, function: Callable[..., Any]) -> Tensor:
    """The divisor of a loss, as a scalar. Raises ``WrongResult`` unless it is one number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number and not (isinstance(value, Tensor) and value.numel() == 1):
        raise WrongResult(
            function,
            f"returns a sum and {kinds_of(value)}",
            "return what the sum is divided by, one number, such as (targets != -100).sum()",
        )
    count = torch.as_tensor(value).reshape(())
    if count.requires_grad:
        raise WrongResult(
            function,
            "returns a sum and a count that depends on trained parameters, through which no gradients flow",
            "count samples, tokens or given weights, or divide in the loss",
        )
    return count


def expect_optimizer(value: Any, function: Callable[..., Any], expectation: str = "a torch optimizer") -> Optimizer:
    """The optimizer that ``function`` has returned. Raises ``WrongResult`` if its step wants to compute the loss."""
    optimizer = expect(value, Optimizer, function, expectation)
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise WrongResult(
            function,
            f"returns {kinds_of(optimizer)}, whose step computes the loss several times by a closure",
            _WITHOUT_CLOSURE,
        )
    return optimizer


def explain_closure(error: Exception) -> WrongResult | None:
    """The mistake that ``error``, of an optimizer's step without a closure, shows; None if it shows another one."""
    frames = frames_of(error)
    source = linecache.getline(*frames[-1]) if frames else ""
    if "closure" not in f"{error} {source}".lower():
        return None
    problem = f"needs a closure, by which it computes the loss several times: {' '.join(str(error).split())}"
    mistake = WrongResult(None, shortened(problem, MESSAGE_CHARACTERS), _WITHOUT_CLOSURE)
    raised_in(mistake, frames)
    return mistake


def explain_gradient_in_evaluation(error: Exception) -> WrongResult | None:
    """The mistake that ``error``, of a method without gradients, shows; None if it shows another one."""
    if not re.search(r"does not require grad|does not have a grad_fn", str(error)):
        return None
    mistake = WrongResult(
        None,
        "takes derivatives where ScaMP computes no gradients, as in evaluate and illustrate",
        "put `with torch.enable_grad():` around what takes them, and .detach() what comes of it",
    )
    raised_in(mistake, frames_of(error))
    return mistake


def expect_optimizers(value: Any, function: Callable[..., Any]) -> list[Optimizer]:
    """The optimizers that ``function`` has returned, one or a list of them. Raises ``WrongResult`` for others."""
    if isinstance(value, list | tuple) and value:
        return [expect_optimizer(optimizer, function) for optimizer in value]
    return [expect_optimizer(value, function, "a torch optimizer, or a list of them")]


def expect_counts(workload: Workload) -> None:
    """Raise ``WorkloadError`` unless the sets of ``workload`` have samples."""
    if missing := missing_counts(workload):
        raise WorkloadError(missing)
    for name in COUNTS:
        count = getattr(workload, name)
        if count == 0 and isinstance(inspect.getattr_static(workload, name), Count):
            raise WorkloadError(f'dataset("{name.removeprefix("num_")}") has no samples: its length is 0')
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise WorkloadError(f"{name} is {count!r}: it must be the number of samples, a whole number from 1")


def missing_counts(workload: Workload) -> str:
    """Words about the numbers of samples that ``workload`` does not have; empty if there are none.

    A property is not asked for its value.
    """
    static = {name: inspect.getattr_static(workload, name, None) for name in COUNTS}
    unset = [name for name, value in static.items() if value is None or isinstance(value, Count)]
    missing = [name for name in unset if getattr(workload, name, None) is None]  # it may come from __getattr__
    if not missing:
        return ""
    if defines(workload, "dataset"):
        sets = " and ".join(f'dataset("{name.removeprefix("num_")}")' for name in missing)
        return f"{sets} has no length: give the data set __len__, or set {' and '.join(missing)} in the workload"
    return f"{' and '.join(missing)} is missing: set it in the class, in __init__, or as a property"


def expect_model(value: Any, function: Callable[..., Any]) -> nn.Module:
    """The model that ``function`` has returned. Raises ``WrongResult`` if it is spread over devices or processes."""
    model = expect(value, nn.Module, function, "an nn.Module")
    wrappers = [type(module).__name__ for module in model.modules() if isinstance(module, _SPREADING)]
    if wrappers:
        raise WrongResult(
            function,
            f"returns a model in {wrappers[0]}, which spreads it over devices itself",
            "return the model without it: ScaMP spreads it",
        )
    return model


def expect_no_scaler(workload: Workload) -> None:
    """Raise ``WorkloadError`` if ``workload`` has a ``GradScaler``: its factor would stay in the gradients."""
    for name, value in vars(workload).items():
        if isinstance(value, GradScaler):
            raise WorkloadError(
                f"the workload has a GradScaler, self.{name}: ScaMP computes and applies the gradients, and scales "
                "the loss itself; remove it, and give the study the parameter precision: fp16 or bf16"
            )


def kinds_of(value: Any) -> str:
    """The type of a result in words, with the shape of a tensor."""
    if value is None:
        return "None"
    if isinstance(value, float):  # in a trace of a class of its own
        return "a number"
    if isinstance(value, tuple):
        return f"({', '.join(map(kinds_of, value))})"
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def is_of_plan(error: Exception) -> bool:
    """Whether an error says that a plan cannot run the workload's code, whatever the values of tensors are."""
    return isinstance(error, WorkloadError | WrongResult) or re.search(_SHARDED_WITH_PLAIN, str(error)) is not None


def explain(error: BaseException, folder: Path | None, *, in_training: bool = False) -> str:
    """The error in at most four lines; ``folder`` holds the user's files, None for a built-in workload.

    ``in_training`` says that the error came from real tensors; those of a prediction have no values, and have errors of
    their own. An error whose class fails to describe it is known by its type alone.
    """
    try:
        return _explained(error, folder, in_training)
    except BaseException:
        return type(error).__name__


def traceback_of(error: BaseException) -> str:
    """The end of an error's traceback, at most ``TRACEBACK_CHARACTERS`` long, also of an error that cannot be shown."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as failed:  # of the error's own class, or because too many errors are nested in it
        lines = traceback.format_tb(error.__traceback__)
        text = f"{''.join(lines)}{type(error).__name__}, which cannot be shown: {type(failed).__name__}"
    return text[-TRACEBACK_CHARACTERS:]


def _explained(error: BaseException, folder: Path | None, in_training: bool) -> str:
    if isinstance(error, WorkloadError | ArchiveError | Contradiction):  # these are in the user's words
        return shortened(without_folder(str(error), folder), TRACEBACK_CHARACTERS)
    lines, causes = deepest_lines(_frames(error), folder), _CAUSES if in_training else _PREDICTING + _CAUSES
    problem, advice = _meaning(error, lines[-1] if lines else "", causes, folder)
    return "\n".join([*lines, problem, *([f"→ {advice}"] if advice else [])])


def without_folder(text: str, folder: Path | None) -> str:
    """``text``, in which files of the user have their paths relative to ``folder``: it is a temporary one of ScaMP."""
    for path in () if folder is None else {str(folder.resolve()), str(folder)}:
        text = text.replace(f"{path}/", "").replace(path, "the folder of the study")
    return text


def deepest_lines(frames: Iterable[tuple[str, int]], folder: Path | None) -> list[str]:
    """The deepest line of the user's files, and the deepest line of a library that it called; no line if there is none.

    ``frames`` are files and line numbers, the deepest last.
    """
    users_line, library_line = "", ""
    for file, line in frames:
        name, is_users = _name_of(file, folder)
        where = f"{name}, line {line}{_source(file, line)}" if name else ""
        if is_users:
            users_line, library_line = where, ""
        elif name:
            library_line = where
    if users_line and library_line:
        return [users_line, f"calls {library_line}"]
    return [line for line in (users_line, library_line) if line]


def raised_in(error: BaseException, frames: Sequence[tuple[str, int]]) -> BaseException:
    """``error``, which another process has raised in these ``frames`` (see ``frames_of``)."""
    vars(error)[_ELSEWHERE] = tuple(frames)
    return error


def frames_of(error: BaseException) -> tuple[tuple[str, int], ...]:
    """Files and line numbers where ``error`` was raised, the deepest last."""
    return tuple(_frames(error))


_ELSEWHERE = "_raised_in_another_process"


def _frames(error: BaseException) -> Iterator[tuple[str, int]]:
    if elsewhere := getattr(error, _ELSEWHERE, ()):
        yield from elsewhere
        return
    if isinstance(error, WrongResult):
        if error.function and (code := getattr(inspect.unwrap(error.function), "__code__", None)):
            yield code.co_filename, code.co_firstlineno
        return
    for frame in traceback.extract_tb(error.__traceback__):
        yield frame.filename, frame.lineno or 0
    if isinstance(error, SyntaxError) and error.filename:  # in a file that was about to be imported
        yield error.filename, error.lineno or 0


def is_users(file: str, folder: Path | None) -> bool:
    """Whether a file is the user's, whose files are in ``folder``."""
    return _name_of(file, folder)[1]


def _name_of(file: str, folder: Path | None) -> tuple[str, bool]:
    """(name to show, whether the file is the user's); the name is empty for files of ScaMP, torch and Python.

    The folder of the user may be the checkout, which has all of these inside.
    """
    path, home = Path(file).resolve(), folder.resolve() if folder is not None else _BUILT_IN
    is_ours = any(path.is_relative_to(package) and not home.is_relative_to(package) for package in OUR_FOLDERS)
    if is_ours:
        return "", False
    if path.is_relative_to(_LIBRARIES):
        name = path.relative_to(_LIBRARIES)
        return "" if name.parts[0] in _UNDER_TORCH else str(name), False
    if path.is_relative_to(home):
        return str(path.relative_to(home)), True
    hidden = file.startswith("<") or path.is_relative_to(_ROOT) or path.is_relative_to(_PYTHON)
    return "" if hidden else path.name, False


def _source(file: str, line: int) -> str:
    text = linecache.getline(file, line).strip()
    return f": {shortened(text, SOURCE_CHARACTERS)}" if text else ""


@dataclass(frozen=True, slots=True)
class _Cause:
    """A kind of error in the user's words, in which {error} stands for the error's own message.

    It applies to errors of ``types`` whose message and line of code contain the patterns ``message`` and ``source``,
    and that come from a file of torch whose path contains ``inside``.
    """

    problem: str
    advice: str
    types: tuple[type[BaseException], ...] = (Exception,)
    message: str = ""
    source: str = ""
    inside: str = ""

    def applies(self, error: BaseException, message: str, source: str) -> bool:
        return (
            isinstance(error, self.types)
            and re.search(self.message, message) is not None
            and re.search(self.source, source) is not None
            and (not self.inside or any(self.inside in file for file, _ in _frames(error)))
        )


_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
_READS = "reads a value of a tensor; a prediction knows the sizes of tensors, but not their values"
_LOGS = "a workload can print its metrics in on_evaluate"
_SHARDED_WITH_PLAIN = r"mixed torch\.Tensor and DTensor"
_COUNTS = "makes a tensor whose size depends on values; a prediction knows sizes, but no values"

_PREDICTING = (
    _Cause("packs sequences by their lengths; a prediction knows sizes, but no lengths", "give the recurrent layer the "
           "padded batch, the most that packed ones need, and take what you need of its output by the lengths: "
           "output[torch.arange(len(lengths)), lengths - 1]", _VALUES, inside="nn/utils/rnn.py"),
    _Cause("makes a weight orthogonal when the model is built, which needs its values",
           "pass use_trivialization=False to orthogonal, with orthogonal_map='cayley' or 'matrix_exp'",
           inside="nn/utils/parametrizations.py"),
    _Cause("does with a sparse gradient what a prediction cannot follow: {error}", "use sparse=False with AdamW, say; "
           "unlike SparseAdam it also moves rows that a step has not looked up",
           message="SparseTensorImpl|Sparse(CPU|Meta)"),
    _Cause("uses nested tensors, whose sizes are values of other tensors; a prediction knows no values",
           "pad samples to one size, the most that nested ones need, and leave the rest out by a mask",
           message="shape_env must not be None|Nested(Tensor|CPU|Meta)"),
    _Cause("uses flex_attention, which torch cannot train on a CPU, where predictions are made for GPUs too",
           "use torch.nn.functional.scaled_dot_product_attention, with is_causal or a mask",
           message="FlexAttention does not support backward on CPU"),
    _Cause("multiplies a sparse matrix, whose memory a prediction does not know", "keep the places and values of its "
           "elements as dense tensors, and add up rows: torch.zeros(n, width).index_add(0, rows, values[:, None] * "
           "x[columns])", message="a product with a sparse matrix"),
    _Cause("needs the values of tensors, for example of numbers in a list that is used as an index; a prediction knows "
           "sizes, but no values", "use whole tensors: x[rows, cols] of two tensors, not of lists of their numbers",
           message=r"its data is not allocated yet|len\(\) of a 0-d tensor"),
    _Cause(_READS, f"drop the print; {_LOGS}", _VALUES,
           source=r"\bprint\(|\b(logger|logging|log|wandb|writer)\.\w+\("),
    _Cause(_COUNTS, "choose by a mask, or by lengths and ids from the batch, not by what is trained", _VALUES[1:]),
    _Cause(_READS, "choose with torch.where(condition, a, b), or decide by a parameter or a shape; if it only logs, "
           f"leave it out: {_LOGS}", _VALUES, source=r"\b(if|elif|while|assert)\b"),
    _Cause(_READS, "keep the value in a tensor: no .item(), .tolist(), int(), float() or bool(); take sizes from "
           "shapes or parameters", _VALUES),
    _Cause(_READS, f"leave it out; {_LOGS}", (TypeError,), r"format string passed to FakeTensor"),
    _Cause("turns a tensor into a NumPy array, which needs its values", "use torch's functions instead",
           message=r"\.numpy\(\) is not supported|__array__"),
    _Cause("turns a tensor into a NumPy array, which needs its values", "use torch's functions instead",
           (TypeError,), source=r"\b(np|numpy)\.\w+\("),
    _Cause("takes too much memory before any training: {error}", "keep large data sets on disk, and read only the "
           "samples of each batch", message=r"MemoryError|can't allocate memory|Unable to allocate .* array"),
    _Cause("copies a model while it trains, which a prediction cannot follow", "make the copy in build_model, and keep "
           "it in the model or the workload", message="set the storage of a tensor", source=r"\bcopy\b|deepcopy"),
    _Cause("has a lazy layer, whose size nobody knows before its first batch",
           "give the size: nn.Linear(8, 4) instead of nn.LazyLinear(4)", message="UninitializedParameter"),
    _Cause("spreads the model over processes itself: {error}", "leave that to ScaMP: return the model without "
           "DataParallel, DistributedDataParallel, FullyShardedDataParallel, fully_shard and init_process_group",
           message=r"(?i)process group|torch\.distributed using env|FSDP needs"),
    _Cause("uses SyncBatchNorm, which torch has for GPUs alone", "use nn.BatchNorm", message=r"SyncBatchNorm expected"),
    _Cause("is compiled by torch.jit.script, which cannot be divided",
           "return the model itself, or torch.compile(model)", message=r"not supported on ScriptModules"),
    _Cause("has a tensor on the meta device, which has no values: {error}", "build the model with real tensors",
           message=r"\bmeta and cpu|\bcpu and meta"),
    _Cause("asks for a device: {error}", "leave devices to ScaMP, which moves the model and its batches: remove "
           '.to("cuda"), .cuda(), device="cuda" and the like', message=r"(?i)cuda|nvidia|same device|device propagation"
           r"|not linked with support|accelerator device|puts a tensor on"),
    _Cause("needs the network: {error}", "download files beforehand; a prediction needs no weights, so build the model "
           "from its configuration", (OSError,), r"(?i)connect|resolution|network|urlopen|timed out|Name or service"),
    _Cause("loads data in worker processes: {error}", "load samples in train_batch itself (num_workers=0)",
           message=r"DataLoader worker"),
)  # fmt: skip
"""Causes of errors that only a prediction has, whose tensors have no values."""

_CAUSES = (
    _Cause("updates sharded parameters in a way that torch cannot divide: {error}", "use an optimizer that updates "
           f"each number by itself, such as AdamW, or {WITHOUT_FSDP}",
           message=r"in-place operations that require placement changes"),
    _Cause("changes in place the result of a matrix product, a convolution or attention, which selective recompute "
           "keeps", "make a new tensor (nn.ReLU() instead of nn.ReLU(inplace=True), x = x + … instead of x += …), or "
           "use plans without selective recompute", message="selective activation checkpoint has been mutated"),
    _Cause("updates an own copy of sharded parameters: {error}", "leave an average of the weights to ScaMP, which "
           f"evaluates with it (fixed: {{ema_decay: 0.99}}); or {WITHOUT_FSDP}",
           message=_SHARDED_WITH_PLAIN, source=r"\blerp_?\(|_foreach_lerp|\bmul_\(|(?i:\bema|average)"),
    _Cause("combines a sharded parameter with a tensor that is not sharded: {error}", "call the blocks themselves "
           "(block(x), not their layers), use parameters inside of the forward of the module "
           f"that has them, and change them in on_step by nothing but themselves; or {WITHOUT_FSDP}",
           message=_SHARDED_WITH_PLAIN),
    _Cause("has a label that the model has no output for: {error}", "labels count from 0, so each must be below the "
           "number of the model's outputs: subtract 1 from labels that begin with 1, or give the model more outputs",
           (IndexError,), message=r"Target -?\d+ is out of bounds"),
    _Cause("goes backward a second time through the same graph, which torch frees the first time", "call no "
           ".backward() in the loss, as ScaMP does it with the loss that is returned; and use no tensor of an earlier "
           "call without .detach()", message=r"backward through the graph a second time"),
    _Cause("takes gradients of gradients, which selective recompute cannot compute again",
           "use plans without selective recompute", message=r"Trying to backward an extra time"),
    _Cause("uses a tensor that build_model made and that is not a parameter, buffer or attribute of a module: {error}",
           "register it with register_buffer", message=r"device meta|meta tensor|on the meta device"),
    _Cause("has samples that cannot be stacked: {error}", "define collate, which pads them to one size, or makes "
           "tensors of what is none", message=r"stack expects each tensor|default_collate:"),
    _Cause("types of tensors do not match: {error}", "convert with .to(dtype), or make such inputs",
           message=r"(?i)dtype|scalar type|tensor of type"),
    _Cause("sizes of tensors do not match: {error}", "compare the sizes of the inputs with those of the layers",
           message=r"(?i)\bshape|sizes? of tensor|must match|reduction dim|mat1|expected input|dimension|split_sizes"),
    _Cause("changes a parameter in place: {error}", "do it under torch.no_grad(), or make a new tensor",
           message=r"in-place operation"),
    _Cause("needs a file that is not there: {error}", "send it along (in a folder on the dashboard, or with "
           "--working-dir) and open it as Path(__file__).parent / …, or give the full path of a file that every "
           "machine has", (FileNotFoundError, NotADirectoryError)),
    _Cause("asks for more memory than this rank may use: {error}", "allocate less at once; keep large data sets on "
           "disk, and read only the samples of each batch", message="MemoryError"),
    _Cause("calls itself without end", "give the recursion an end", (RecursionError,)),
    _Cause("has no parameters to train: {error}", "give the optimizer the model's parameters",
           message=r"optimizer got an empty parameter list"),
    _Cause("ends Python ({error})", "raise an exception instead", (SystemExit, KeyboardInterrupt)),
)  # fmt: skip
"""The first that applies explains an error. The message of any other error must do."""


def _meaning(error: BaseException, source: str, causes: Sequence[_Cause], folder: Path | None) -> tuple[str, str]:
    """(what happened, what to do about it, which may be empty)"""
    if isinstance(error, WrongResult | Stopped):
        return error.problem, error.advice
    name, text = type(error).__name__, _text(error, folder)
    message = text if text and _is_said_by_scamp(error) else f"{name}: {text}" if text else name
    if re.search(r"\braise\b", source) and not isinstance(error, _VALUES):
        return message, ""  # the author's own words
    for cause in causes:
        if cause.applies(error, message, source):
            return cause.problem.replace("{error}", text or name), cause.advice
    return message, ""


def _is_said_by_scamp(error: BaseException) -> bool:
    """Whether ScaMP raised a ``ValueError`` about a plan: its words are for users, the name of its type is not."""
    deepest = next(reversed(frames_of(error)), None)
    return isinstance(error, ValueError) and deepest is not None and Path(deepest[0]).resolve().is_relative_to(_PLANS)


def _text(error: BaseException, folder: Path | None) -> str:
    """The error's message in one line, without the C++ stack that torch appends."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except BaseException:  # a user's class of errors may be broken
        return ""
    text = without_folder(" ".join(text.partition("Exception raised from ")[0].split()), folder)
    return shortened(text, MESSAGE_CHARACTERS)


def in_enough_digits(first: float, second: float) -> tuple[str, str]:
    """Two numbers that differ, each with at least five digits, and with as many as it takes to see the difference."""
    for digits in range(5, 18):
        words = f"{first:.{digits}g}", f"{second:.{digits}g}"
        if words[0] != words[1]:
            break
    return words


def shortened(text: str, most: int) -> str:
    """``text``, of which at most ``most`` characters are left; an ellipsis stands for the rest."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
