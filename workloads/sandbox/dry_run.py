"""Tries a workload on a few samples without training it: which parameters it reads, and which metrics it returns.

``scamp_service.sizing.submission_check`` decides what that means for a study.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from inspect import unwrap
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer

from estimators.model import Layout, Plan
from estimators.tracing.session.modes import NoInit
from scamp.user_code.own_imports import OUR_FOLDERS
from scamp.workload.datasets import NAMES as SETS
from workloads.options import NAMES as OPTIONS
from workloads.options import never_read
from workloads.protocol import Workload
from workloads.refusals import (
    MESSAGE_CHARACTERS,
    WorkloadError,
    WrongResult,
    expect_loss,
    missing_counts,
    shortened,
)
from workloads.sandbox.drawn_samples import has_unknown_sizes
from workloads.training.data.batch_transform import step_batch
from workloads.training.data.data_checks import expect_data, expect_samples
from workloads.training.data.outputs import Collected, has_summary, summary
from workloads.training.metrics import common_names, reportable
from workloads.training.outline import model_of, outline_of
from workloads.training.reported import TRAIN_LOSS, expect_own_names, joined
from workloads.training.step import evaluate, illustrate
from workloads.training.updates.precision import autocast
from workloads.training.updates.schedules import Schedules, expect_resumable
from workloads.training.updates.update import make_optimizer, updates_of
from workloads.unfreezing import reached, texts_in

NUM_SAMPLES = 2
NUM_SUMMARIZED = 32
"""Held-out samples for metrics of the whole set, many of which need several classes."""
MOST_REAL_PARAMETERS = 5_000_000
"""Larger models have fake tensors, which take no time and memory; then code that needs values of tensors fails."""
TRY_SECONDS = 5.0
"""Processor time after which no further candidate is tried."""
MOST_QUOTED = 2000
"""Names in quotes of the user's code that misspelt parameters are compared with."""
_STEPS = 1000  # passed to ``on_step`` and ``scheduler``
_TEXT_SUFFIXES = frozenset({".py", ".json", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".txt"})


_MISTAKES = (TypeError, NameError, AttributeError, KeyError)
"""Errors of metrics of the whole set that no samples mend. Others may need more samples, or a trained model."""
_CALLED_LATER = ("load_weights", "inherit", "on_step", "on_evaluate", "illustrate")
"""Methods that only a training calls, or calls in many states, or that may look at values of a large model."""


class MetricFailed(Exception):
    """A metric of the whole set, or ``on_evaluate``, raised an error, its cause, that other samples would not mend."""


class NotingParams(dict[str, Any]):
    """Parameters of a candidate. ``given`` are their names, and ``read`` those that were looked up, even if not given.

    Whoever looks at all of them, as by a loop, a copy or ``**params``, has read each. Printing them reads none.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self.given = frozenset(params)
        self.read: set[str] = set()


def _noting_one(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def noting(self: NotingParams, key: str, *default: Any) -> Any:
        self.read.add(key)
        return method(self, key, *default)

    return noting


def _noting_all(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def noting(self: NotingParams, *args: Any) -> Any:
        self.read.update(dict.__iter__(self))
        return method(self, *args)

    return noting


for _name in ("__getitem__", "__contains__", "get", "pop", "setdefault"):
    setattr(NotingParams, _name, _noting_one(_name))
for _name in ("__iter__", "__reversed__", "__or__", "__ror__", "keys", "values", "items", "copy", "popitem"):
    setattr(NotingParams, _name, _noting_all(_name))


def try_candidates(
    make: Callable[[Mapping[str, Any]], Workload], candidates: Sequence[Mapping[str, Any]], metrics: Collection[str]
) -> list[dict[str, Any]]:
    """Tries candidates and reports what became of each; ends once one has all ``metrics`` and every parameter was read.

    Where a candidate came to its end, there are the names that it ``read``, or that methods contain which only a
    training calls, and its ``metrics``. It is ``unsummarized`` if metrics of the whole set are missing, because a few
    samples are not enough for them. The ``uneven`` sets, if there are any, have samples that differ in size without
    ``lengths``, and no optimizer has the ``untrained`` parameters of the model. Otherwise there are the words of its
    ``ValueError`` as ``refused``, or the error with which it ``failed``, whose reason may be this host. Raises
    ``WorkloadError`` for a workload without a number of samples, or with metrics or schedulers of the wrong form: no
    host and no data mend these.
    """
    tries: list[dict[str, Any]] = []
    unread = {name for params in candidates for name in params} - {"batch", *OPTIONS}  # which ScaMP itself reads
    began = time.process_time()
    for params in candidates:
        noting = NotingParams(params)
        tries.append(_params_after_trying(make, noting))
        if "metrics" in tries[-1]:
            unread -= noting.read
            if not unread and (tries[-1].get("unsummarized") or set(metrics) <= set(tries[-1]["metrics"])):
                break
        if time.process_time() - began > TRY_SECONDS:
            break
    return tries


def _in_words(error: Exception) -> str:
    """The type of an error, and what it says in one line."""
    lines = str(error).splitlines() or [""]
    return shortened(f"{type(error).__name__}: {lines[0]}".removesuffix(": "), MESSAGE_CHARACTERS)


def _params_after_trying(make: Callable[[Mapping[str, Any]], Workload], params: NotingParams) -> dict[str, Any]:
    try:
        workload = make(params)
    except ValueError as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"failed": _in_words(error)}
    try:
        if missing := missing_counts(workload):
            raise WorkloadError(missing)
        expect_data(workload)
        expect_samples(workload)
        metrics, are_all, untrained = _try_methods(workload)
    except (WorkloadError, WrongResult, MetricFailed):
        raise
    except Exception as error:
        return {"failed": _in_words(error)}
    uneven = [name for name in SETS if has_unknown_sizes(workload, name)]
    params.read |= params.given & _texts_of_later_methods(type(workload))
    report: dict[str, Any] = {"read": sorted(params.read - set(OPTIONS)), "metrics": metrics}
    report |= {"uneven": uneven} if uneven else {}
    report |= {"untrained": untrained} if untrained else {}
    return report if are_all else {**report, "unsummarized": True}


def unread(params: NotingParams, workload: type, folder: Path) -> str:
    """Words for the first parameter that a candidate whose methods have all run never reads; empty if there is none.

    A parameter whose name is in the user's files, or may be put together there, might be read by other candidates.
    """
    doubtful = params.given - params.read - {"batch", *OPTIONS} - _texts_of_later_methods(workload)
    names = sorted(doubtful - set(mentioned(doubtful, workload, folder)))
    if not names:
        return ""
    return never_read(names[0], {*params.read, *OPTIONS, "batch", *quoted_names(folder)} - params.given)


def _texts_of_later_methods(workload: type) -> set[str]:
    """The texts in quotes in the user's methods that only a training calls, and in functions that they name."""
    package = workload.__module__.partition(".")[0]
    methods = [unwrap(getattr(workload, name)) for name in _CALLED_LATER]
    functions = [
        function
        for method in methods
        if isinstance(method, FunctionType)
        for function in reached(method, workload)
        if str(function.__module__).partition(".")[0] == package
    ]
    return {text for function in functions for text in texts_in(function.__code__)}


def _try_methods(workload: Workload) -> tuple[list[str], bool, list[str]]:
    """The names of the metrics, and whether these are all: so few samples may not be enough for those of the whole set.

    The last are names of parameters that should be trained and that no optimizer has. Runs every method that a step and
    an evaluation call.
    """
    samples = torch.arange(NUM_SAMPLES)
    batch = step_batch(workload, samples % workload.num_train)
    is_small, collected = _is_small(workload), Collected(workload) if has_summary(workload) else None
    num_held_out = NUM_SAMPLES if collected is None else min(NUM_SUMMARIZED, workload.num_eval)
    spread = torch.arange(num_held_out) * workload.num_eval // num_held_out  # of several classes, if they are sorted
    held_out = workload.eval_batch(spread)
    counted = torch.ones(num_held_out, dtype=torch.bool)
    with ExitStack() as modes:
        if not is_small:
            modes.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            modes.enter_context(NoInit())
        model = model_of(workload)
        workload.blocks(model)
        optimizer = _optimizer(workload, model)
        phases, rates = updates_of(model).phases, _rates(optimizer)
        workload.on_step(0, _STEPS, optimizer)
        sets_rates = _rates(optimizer) != rates
        untrained = _untrained(model, optimizer)
        model.train()
        for loss in [phase.loss for phase in phases] or [workload.loss]:
            with autocast(workload, model):
                expect_loss(loss(model, batch), loss)
        for schedules in updates_of(model).schedules:
            _expect_schedulers(workload, schedules, sets_rates)
        sums = evaluate(workload, model, [(held_out, counted)], collected.add if collected and is_small else None)
        if is_small:  # it mostly looks at values, and fake tensors have none
            illustrate(workload, model, 0)
    names = common_names([sums.names], may_be_none=collected is not None)
    with reportable("evaluate"):
        expect_own_names(names, [phase.name for phase in phases])
    if collected is not None:
        summarized = _try_summary(workload, collected) if is_small else None  # fake outputs have no values
        if summarized is None:
            return names, False, untrained
        with reportable("the workload"):
            names = sorted(joined(dict.fromkeys(names, 0.0), dict.fromkeys(summarized, 0.0)))
            expect_own_names(names, [phase.name for phase in phases])
    _expect_known_metrics(workload, [*names, TRAIN_LOSS, *(f"{phase.name}_loss" for phase in phases)])
    return names, True, untrained


def _expect_known_metrics(workload: Workload, names: Sequence[str]) -> None:
    """Raise ``WorkloadError`` if ``on_evaluate`` looks up a metric that is not among ``names``.

    Raises ``MetricFailed`` for other mistakes in it that no value of a metric mends.
    """
    try:
        workload.on_evaluate(dict.fromkeys(names, 1.0))
    except WorkloadError:
        raise
    except KeyError as error:
        if error.args and isinstance(error.args[0], str) and error.args[0] not in names:
            raise WorkloadError(
                f"on_evaluate looks up {error.args[0]!r}, but the metrics are {', '.join(names)}: use one of these"
            ) from None
    except (TypeError, NameError, AttributeError) as error:
        raise MetricFailed(str(error)) from error
    except Exception:
        pass  # it may depend on what only a training does


def _try_summary(workload: Workload, collected: Collected) -> list[str] | None:
    """The names of the metrics of the whole set; None if they may need more samples, or a trained model.

    Raises ``MetricFailed`` for errors that these do not mend.
    """
    outputs = collected.gathered(Plan(1), 0)
    try:
        return list(summary(workload, outputs, 0))
    except WrongResult:
        raise
    except _MISTAKES as error:
        raise MetricFailed(str(error)) from error
    except Exception:
        return None


def _optimizer(workload: Workload, model: nn.Module) -> Optimizer:
    """The optimizer of a training. Raises ``WorkloadError`` for wrong phases, optimizers and schedulers."""
    try:
        return make_optimizer(workload, model, Layout(), None, _STEPS)
    except WrongResult as error:
        raise WorkloadError(f"{getattr(error.function, '__name__', 'optimizer')} {error}") from None


def _rates(optimizer: Optimizer) -> list[Any]:
    return [group["lr"] for group in optimizer.param_groups]


def _untrained(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """The names of parameters that require gradients and that the optimizer does not have."""
    ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return [name for name, each in model.named_parameters() if each.requires_grad and id(each) not in ids]


def _expect_schedulers(workload: Workload, schedules: Schedules, sets_rates: bool) -> None:
    """Raise ``WorkloadError`` for schedulers that cannot resume, or that ``on_step`` overrides if it ``sets_rates``.

    No host and no data mend these.
    """
    if sets_rates and schedules.schedulers:
        raise WorkloadError("on_step sets the learning rate, and scheduler returns a scheduler of it: keep one")
    try:
        expect_resumable(workload, schedules.optimizer, _STEPS)
    except WrongResult as error:
        raise WorkloadError(f"scheduler {error}") from None


def _is_small(workload: Workload) -> bool:
    return sum(parameter.numel() for parameter in outline_of(workload).parameters()) <= MOST_REAL_PARAMETERS


def mentioned(
    names: Iterable[str], workload: type, folder: Path, suffixes: Collection[str] = _TEXT_SUFFIXES
) -> list[str]:
    """The ``names`` that the user's files with these suffixes or the classes of ``workload`` contain, or may put
    together.

    Code that has not run may read them. ScaMP's own classes read a parameter by its name in quotes; other words in them
    say nothing.
    """
    words: set[str] = set()
    patterns: set[str] = set()
    files = [file for file in folder.rglob("*") if file.suffix in suffixes and file.is_file()]
    modules = {sys.modules.get(class_.__module__) for class_ in workload.__mro__}
    files += [Path(path) for module in modules if (path := getattr(module, "__file__", None))]
    for file in files:
        text = file.read_text(errors="replace")
        is_ours = any(map(file.resolve().is_relative_to, OUR_FOLDERS))
        words |= set(re.findall(r"[\"'](\w+)[\"']" if is_ours else r"\w+", text))
        patterns |= set(_patterns(text)) if file.suffix == ".py" else set()
    return [name for name in names if name in words or any(re.fullmatch(pattern, name) for pattern in patterns)]


def quoted_names(folder: Path) -> list[str]:
    """The names in quotes in the user's Python files, such as those of parameters; at most ``MOST_QUOTED``."""
    files = sorted(file for file in folder.rglob("*.py") if file.is_file())
    names = (
        name for file in files for name in re.findall(r"[\"']([a-zA-Z_]\w*)[\"']", file.read_text(errors="replace"))
    )
    return list(itertools.islice(dict.fromkeys(names), MOST_QUOTED))


def _patterns(source: str) -> Iterator[str]:
    """Patterns of the names that ``source`` puts together: f"{kind}_rate", "{}_rate".format(kind) or "rate" + n."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        parts: list[str | None] = []  # None: any text
        match node:
            case ast.JoinedStr(values=values):
                parts = [_text(value) for value in values]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                parts = [None, _text(left), _text(right), None]
            case ast.Constant(value=str(text)) if "{" in text or "%" in text:
                parts = [part for fixed in re.split(r"\{.*?\}|%\w", text) for part in (fixed, None) if part != ""][:-1]
        fixed = [part for part in parts if part is not None]
        if fixed and all(re.fullmatch(r"\w+", part) for part in fixed):
            yield "".join(".*" if part is None else part for part in parts)


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
