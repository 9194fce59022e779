"""Notes how a model of a library compares its outputs with targets, while it computes its own loss.

Such a model calls a loss function of torch inside of ``forward``. What it passes there, such as logits and labels, and
what the function divides by, are known here by value: no name of a class says whether labels are shifted, for example.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

_OF_CLASSES = ("cross_entropy", "nll_loss")
"""Loss functions whose targets may be numbers of classes, some of which are ignored."""
_OF_ERRORS = ("huber_loss", "l1_loss", "mse_loss", "smooth_l1_loss")
_FUNCTIONS = (
    *(*_OF_CLASSES, *_OF_ERRORS),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "ctc_loss"),
)


@dataclass(frozen=True, eq=False)
class Comparison:
    """A call of the loss function ``name`` of torch with ``arguments``. It sums up ``terms``, or averages them."""

    name: str
    arguments: Mapping[str, Any]
    terms: Tensor

    @property
    def is_sum(self) -> bool:
        """Whether the terms are summed up, and not averaged."""
        return bool(self.arguments["reduction"] == "sum")

    @property
    def classes(self) -> Tensor | None:
        """The targets, if they are numbers of classes."""
        target = self.arguments["target"] if self.name in _OF_CLASSES else None
        return None if target is None or target.is_floating_point() else target

    @cached_property
    def weights(self) -> Tensor:
        """The share of each term in the divisor of a mean, in the shape of the terms."""
        weights = torch.ones_like(self.terms, dtype=torch.float32)
        if self.classes is None:
            return weights
        is_ignored = self.classes == self.arguments["ignore_index"]
        if self.arguments["weight"] is not None:
            weights = self.arguments["weight"].detach().float()[self.classes.masked_fill(is_ignored, 0)]
        return weights.masked_fill(is_ignored, 0.0)

    @cached_property
    def count(self) -> Tensor:
        """The divisor of a mean, a scalar."""
        return self.weights.sum()

    @cached_property
    def value(self) -> Tensor:
        """The result of the function. A mean over nothing is 0 and has gradients of 0, while torch returns NaN."""
        return self.terms.sum() if self.is_sum else _quotient(self.terms.sum(), self.count)

    @property
    def right(self) -> Tensor | None:
        """Whether the largest output is that of the target, for each term; None without classes."""
        if self.classes is None:
            return None
        outputs: Tensor = self.arguments["input"]
        largest = outputs.argmax(min(1, outputs.ndim - 1))
        return torch.eq(largest, self.classes) & torch.ne(self.classes, self.arguments["ignore_index"])


class Comparisons(list[Comparison]):
    """All comparisons of one pass, in their order."""

    @property
    def divisor(self) -> Tensor:
        """The divisor that all comparisons have; if they have different ones, the mean of these."""
        return torch.stack([comparison.count for comparison in self]).mean()

    @property
    def is_over_one_set(self) -> bool:
        """Whether all comparisons are means over as many terms."""
        sizes = {comparison.terms.numel() for comparison in self}
        return len(sizes) == 1 and not any(comparison.is_sum for comparison in self)

    def compares_parts(self, num: int) -> bool:
        """Whether the classes of more than one thing in each of ``num`` samples are compared, such as of its tokens."""
        return any(comparison.classes is not None and comparison.terms.numel() > num for comparison in self)

    def of_samples(self, loss: Tensor, num: int) -> tuple[Tensor, Tensor]:
        """The part of ``loss`` that these comparisons make, as totals and counts of ``num`` samples, both [n].

        Comparisons that are not over one set are averaged within each sample first. It must be called inside of
        ``noted_comparisons(measured=True)``.
        """
        values_sum = torch.stack([comparison.value.float() for comparison in self]).sum()
        made: Tensor | None = forward_ad.unpack_dual(loss).tangent  # type: ignore[no-untyped-call]
        factor = _quotient(torch.zeros_like(values_sum) if made is None else made.float(), values_sum)
        terms = [(_of_samples(each.terms.float(), num), _of_samples(each.weights, num)) for each in self]
        if self.is_over_one_set:
            means = [_quotient(total, each.count) for (total, _), each in zip(terms, self, strict=True)]
            weights = torch.stack([weight for _, weight in terms]).mean(0)
            return factor * self.divisor * torch.stack(means).sum(0), weights
        scale = torch.where(factor == 1, 1, num)  # the model divides sums by a number of its own, unless they are plain
        means = [
            total * scale if each.is_sum else _quotient(total, weight)
            for (total, weight), each in zip(terms, self, strict=True)
        ]
        totals = factor * torch.stack(means).sum(0)
        return totals, torch.ones_like(totals)

    def right_of_samples(self, num: int) -> tuple[Tensor, Tensor] | None:
        """How many classes are right, and how many there are, of each of ``num`` samples; None without classes."""
        of_classes = [(each.right.float(), (each.weights != 0).float()) for each in self if each.right is not None]
        if not of_classes:
            return None
        right, counted = (
            torch.stack([_of_samples(part, num) for part in parts]).sum(0) for parts in zip(*of_classes, strict=True)
        )
        return right, counted

    def why_whole(self, loss: Tensor) -> str:
        """Why ``loss`` is no quotient of two sums over samples, judged by its terms alone; empty if it may be one."""
        if not self:
            return "calls no loss function of torch, so nobody can tell by what its loss is divided"
        if any(comparison.is_sum for comparison in self):
            return "has a loss that is a sum over samples"
        if not self.is_over_one_set:
            return "has a loss of several terms, each divided by another number"
        if _has_others(loss, [comparison.value for comparison in self]):
            return "has a term in its loss that compares no labels, such as one that balances experts"
        return ""


@contextmanager
def noted_comparisons(*, measured: bool = False) -> Iterator[Comparisons]:
    """Yield a list that gets each comparison that this thread makes meanwhile.

    ``measured``: their values carry tangents, by which their part of a loss is known without a graph.
    """
    comparisons = Comparisons()
    with _noting_functions(), _tangents() if measured else nullcontext():
        _noted.listening = (comparisons, measured)
        try:
            yield comparisons
        finally:
            _noted.listening = None


def num_noted() -> int:
    """How many comparisons of this thread have been noted, by the innermost ``noted_comparisons``."""
    return len(_noted.listening[0]) if _noted.listening is not None else 0


def forget_after(num: int) -> None:
    """Forget all of them but the first ``num``."""
    if _noted.listening is not None:
        del _noted.listening[0][num:]


@dataclass(frozen=True, slots=True)
class Later:
    """A comparison of a batch that consists of those of several trainings: each makes its own of it."""

    function: Callable[..., Tensor]
    args: Any
    keywords: Any

    def compute(self) -> Tensor:
        """The number for what is compared in the arguments."""
        return self.function(*self.args, **self.keywords)


@contextmanager
def comparing_later() -> Iterator[None]:
    """Let comparisons of this thread that make one number of a batch return ``Later`` meanwhile."""
    with _noting_functions():
        before, _noted.puts_off = _noted.puts_off, True
        try:
            yield
        finally:
            _noted.puts_off = before


class _Noted(threading.local):
    """The list of this thread, and whether values carry tangents; and whether comparisons are made later."""

    listening: tuple[Comparisons, bool] | None = None
    puts_off = False


_noted, _functions, _lock = _Noted(), dict[str, Any](), threading.Lock()
_num_listening = _num_measuring = 0


@contextmanager
def _noting_functions() -> Iterator[None]:
    """Replace torch's loss functions as long as any thread listens: several may, in any order."""
    global _num_listening
    with _lock:
        if not _num_listening:
            _functions.update({name: getattr(functional, name) for name in _FUNCTIONS})
            for name in _functions:
                setattr(functional, name, partial(_note, name))
        _num_listening += 1
    try:
        yield
    finally:
        with _lock:
            _num_listening -= 1
            if not _num_listening:
                for name, function in _functions.items():
                    setattr(functional, name, function)


@contextmanager
def _tangents() -> Iterator[None]:
    """The level of tangents, of which torch has one for all threads: it is there as long as any of them measures."""
    global _num_measuring
    with _lock:
        if not _num_measuring:
            forward_ad.enter_dual_level()  # type: ignore[no-untyped-call]
        _num_measuring += 1
    try:
        yield
    finally:
        with _lock:
            _num_measuring -= 1
            if not _num_measuring:
                forward_ad.exit_dual_level()  # type: ignore[no-untyped-call]


def _note(name: str, *args: Any, **kwargs: Any) -> Tensor:
    function = _functions[name]
    bound = signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    if _noted.puts_off and _makes_one_number(name, bound.arguments):
        return Later(getattr(functional, name), args, kwargs)  # type: ignore[return-value]
    if _noted.listening is None or not _makes_one_number(name, bound.arguments):
        result: Tensor = function(*args, **kwargs)
        return result
    comparisons, measured = _noted.listening
    terms = function(**{**bound.arguments, "reduction": "none"})
    if name == "ctc_loss" and bound.arguments["reduction"] == "mean":
        terms = terms / bound.arguments["target_lengths"].to(terms.device).clamp(min=1)
    comparisons.append(comparison := Comparison(name, bound.arguments, terms))
    value = comparison.value.clone()  # models add other terms to it in place
    return _with_tangent(value, comparison.value.clone()) if measured else value


def _with_tangent(value: Tensor, tangent: Tensor) -> Tensor:
    """As ``forward_ad.make_dual``, which compiles formulas for other functions first: 0.3 s and 27 MiB (torch 2.13)."""
    dual: Tensor = torch._VF._make_dual(value, tangent, level=0)
    return dual


def _makes_one_number(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call sums up or averages terms, with weights that are known here."""
    is_old = arguments.get("size_average") is not None or arguments.get("reduce") is not None
    has_weights = name in _OF_ERRORS and arguments.get("weight") is not None
    return arguments["reduction"] in ("mean", "sum") and not is_old and not has_weights


def _quotient(total: Tensor, count: Tensor) -> Tensor:
    """``total / count``, which is ``total`` where the count is 0, and so is the total."""
    return total / torch.where(count == 0, 1.0, count).to(total.dtype)


def _of_samples(terms: Tensor, num: int) -> Tensor:
    """The sum of the terms of each sample; even parts of all terms where a model has left some of them out."""
    return terms.reshape(num, -1).sum(-1) if terms.numel() % num == 0 else (terms.sum() / num).expand(num)


def _has_others(loss: Tensor, values: Sequence[Tensor]) -> bool:
    """Whether trained parameters change the loss other than by these values."""
    seen: set[Any] = {value.grad_fn for value in values}
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if hasattr(node, "variable"):  # it adds up the gradients of a parameter
            return True
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
    return False
