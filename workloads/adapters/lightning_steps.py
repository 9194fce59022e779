"""Calls the methods of a LightningModule that log metrics: its steps, and ``on_validation_epoch_end``.

In a step, torchmetrics only note their arguments, as ranks have parts of the held-out set. Once the arguments of all
samples are together, the metrics of another module get them, and the hook runs on that module.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workloads.protocol import Batch
from workloads.refusals import WorkloadError, kinds_of

EPOCH_END = "on_validation_epoch_end"
"""The only hook that is called."""
_OWN = frozenset(vars(nn.Module()))
"""Attributes of every module."""
Arguments = tuple[tuple[Tensor, ...], dict[str, Tensor]]
"""The arguments of one update of a metric, whose first dimension is the sample."""


@dataclass(frozen=True, slots=True)
class OfWholeSet:
    """Stands for the result of a metric over all samples; ``path`` is its name in the module."""

    path: str


class Call:
    """A call of a method: what the module may ask for meanwhile, and what it ``logged``, by name.

    ``updates`` are the arguments of each metric that was updated, by its name in the module. ``is_end``: metrics have
    got all samples. It is no dataclass, because FSDP copies dataclasses when it casts inputs.
    """

    def __init__(
        self,
        optimizer: Callable[[], Any],
        schedulers: Callable[[], list[Any]],
        *,
        batch_idx: int = 0,
        num_samples: int = 0,
        updates: dict[str, Arguments] | None = None,
        is_end: bool = False,
    ) -> None:
        self.optimizer, self.schedulers, self.batch_idx, self.num_samples = (
            optimizer,
            schedulers,
            batch_idx,
            num_samples,
        )
        self.updates, self.is_end, self.logged = updates if updates is not None else {}, is_end, dict[str, Any]()

    def attributes(self) -> dict[str, Any]:
        """Methods that a module has during the call."""
        return {"log": self._log, "optimizers": self._optimizers, "lr_schedulers": self._schedulers}

    def _log(self, name: str, value: Any, *more: Any, **options: Any) -> None:
        self.logged[name] = value.compute() if _is_metric(value) and self.is_end else value

    def _optimizers(self, use_pl_optimizer: bool = True) -> Any:
        return self.optimizer()

    def _schedulers(self) -> Any:
        schedulers = self.schedulers()
        return schedulers[0] if len(schedulers) == 1 else schedulers or None


class Steps(nn.Module):
    """Calls a step of the module in its own ``forward``, where plans divide the model."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, name: str, batch: Batch, call: Call) -> Any:
        """The result of the step ``name``."""
        step = getattr(self.module, name)
        with _noting(self.module, call):
            return step(batch, call.batch_idx) if _takes_index(step) else step(batch)


def end_epoch(module: Any, call: Call) -> None:
    """Run ``on_validation_epoch_end`` of a module without parameters, whose metrics have got the ``updates``.

    Raises ``WorkloadError`` if it does anything but compute and log.
    """

    def refuse(words: str) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> None:
            raise WorkloadError(f"{EPOCH_END} {words}")

        return method

    metrics = _metrics(module)
    updated = {name for path in call.updates for name in _parts(metrics, path)}
    with ExitStack() as stack:
        stack.enter_context(_with_attributes(module, call.attributes()))
        for path, metric in metrics.items():
            update = refuse(
                f"updates {path}, but nothing is kept from one evaluation to the next: update it in validation_step, "
                "or leave it out. The best value of a metric is the study's objective with at: best"
            )
            methods = {"update": update, "forward": update}
            if path not in updated and not isinstance(metric, nn.ModuleDict):
                methods["compute"] = refuse(f"computes {path}, which validation_step does not update: leave it out")
            stack.enter_context(_with_attributes(metric, methods))
        stack.enter_context(keeping_nothing(module, EPOCH_END))
        stack.enter_context(_WithoutParameters())  # type: ignore[no-untyped-call]
        getattr(module, EPOCH_END)()


@contextmanager
def keeping_nothing(module: nn.Module, method: str) -> Iterator[None]:
    """Raises ``WorkloadError`` at the end if attributes of the module changed, which a later call might read."""
    before = _kept(module)
    yield
    changed = [name for name, value in _kept(module).items() if before.get(name) != value]
    if changed:
        raise WorkloadError(
            f"{method} keeps something in self.{changed[0]}, but ranks have parts of the held-out set, and nothing is "
            f"kept from one evaluation to the next: update torchmetrics in validation_step, such as CatMetric for "
            f"values of samples, and compute them in {EPOCH_END}"
        )


def _kept(module: nn.Module) -> dict[str, tuple[Any, ...]]:
    kept: dict[str, tuple[Any, ...]] = {}
    for name, value in vars(module).items():
        if isinstance(value, list | dict | set) and name not in _OWN:
            kept[name] = (len(value),)
        elif value is None or isinstance(value, bool | int | float | str | Tensor):
            kept[name] = (id(value) if isinstance(value, Tensor) else value,)
    return kept | {name: (id(buffer), buffer._version) for name, buffer in module.named_buffers(recurse=False)}


class _WithoutParameters(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses to compute with parameters, which are on the meta device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in tree_leaves((args, kwargs))):
            raise WorkloadError(
                f"{EPOCH_END} uses parameters of the model, but a rank may have only parts of them: compute this in "
                "validation_step, and update torchmetrics there"
            )
        return func(*args, **(kwargs or {}))


@contextmanager
def _noting(module: Any, call: Call) -> Iterator[None]:
    """The context of a step: metrics note their arguments, and what is logged stands for their results."""
    metrics = _metrics(module)
    paths = {id(metric): path for path, metric in metrics.items()}
    updated: set[str] = set()

    def updater(path: str, metric: Any) -> Callable[..., Any]:
        def update(*args: Any, **kwargs: Any) -> Any:
            parts = _parts(metrics, path)
            if updated & parts:
                raise WorkloadError(f"the metric {path} is updated twice in one step: use two metrics")
            updated.update(parts)
            call.updates[path] = _of_samples(path, metric, call.num_samples, args, kwargs)
            if isinstance(metric, nn.ModuleDict):
                return {name: OfWholeSet(paths[id(part)]) for name, part in metric.items()}
            return OfWholeSet(path)

        return update

    def refuse() -> Any:
        raise WorkloadError(
            "a step computes a metric, but has only a part of the samples: log the metric itself (self.log(name, "
            f"self.metric)), or compute it in {EPOCH_END}"
        )

    with ExitStack() as stack:
        stack.enter_context(_with_attributes(module, call.attributes()))
        for path, metric in metrics.items():
            update = updater(path, metric)
            stack.enter_context(
                _with_attributes(metric, {"update": update, "forward": update, "compute": refuse, "reset": _nothing})
            )
        yield
    for name, value in call.logged.items():
        if (logged_path := paths.get(id(value))) is not None:
            if logged_path not in updated:
                raise WorkloadError(f"a step logs the metric {logged_path}, but does not update it: update it always")
            call.logged[name] = OfWholeSet(logged_path)


def _of_samples(
    path: str, metric: Any, num: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The arguments of an update, one for each sample. A mean over the batch is that of each of its samples."""
    if type(metric).__name__ == "MeanMetric" and not kwargs and len(args) == 1 and torch.as_tensor(args[0]).ndim == 0:
        return (torch.as_tensor(args[0]).detach().float().expand(num),), {}
    for argument in (*args, *kwargs.values()):
        if not isinstance(argument, Tensor) or argument.ndim == 0 or len(argument) != num:
            raise WorkloadError(
                f"the metric {path} is updated with {kinds_of(argument)} for {num} samples: pass tensors whose first "
                "dimension is the sample; log the mean of a batch by self.log, or with a MeanMetric without weight"
            )
    return tuple(argument.detach() for argument in args), {name: value.detach() for name, value in kwargs.items()}


def _nothing() -> None: ...


def _metrics(module: nn.Module) -> dict[str, Any]:
    return {name: metric for name, metric in module.named_modules() if _is_metric(metric)}


def _parts(metrics: Mapping[str, Any], path: str) -> set[str]:
    """The names of a metric, and of the metrics in it if it is a collection."""
    return {name for name in metrics if name == path or name.startswith(f"{path}.")}


def _is_metric(value: Any) -> bool:
    return isinstance(value, nn.Module) and hasattr(value, "compute") and hasattr(value, "update")


@contextmanager
def _with_attributes(owner: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Set attributes until the context ends; torchmetrics has some on each object, others on the class."""
    before = {name: vars(owner)[name] for name in values if name in vars(owner)}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in values:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)


def _takes_index(step: Callable[..., Any]) -> bool:
    """Whether a step takes the number of the batch as its second argument, whatever it calls it, as in Lightning."""
    kinds = [parameter.kind for parameter in inspect.signature(step).parameters.values()]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(kind in by_position for kind in kinds) > 1 or inspect.Parameter.VAR_POSITIONAL in kinds


def line_without_result(step: Callable[..., Any]) -> int | None:
    """The first line in which a step returns None; None if there is no such line, or its source is not known."""
    try:
        lines, first = inspect.getsourcelines(step)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, TypeError):
        return None
    waiting: list[ast.AST] = list(getattr(tree.body[0], "body", []))
    numbers = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Return) and (node.value is None or getattr(node.value, "value", ...) is None):
            numbers.append(first + node.lineno - 1)
        waiting += ast.iter_child_nodes(node)
    return min(numbers, default=None)
