"""Finds out whether a workload's ``on_step`` may train parameters that are frozen when the model is built.

A trace runs the first steps only, so it cannot see what a later step unfreezes. The code of ``on_step`` is searched for
``requires_grad``, with the functions and methods that it names, as far as they are not torch's or Python's own. Names
are enough: that code may also freeze, or only look, costs memory that is predicted and not needed; a schedule of
learning rates costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import unwrap
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from workloads.protocol import Workload

_SWITCHES = {"requires_grad", "requires_grad_"}
_MOST_FUNCTIONS = 500


def unfreezes(workload: Workload) -> str:
    """The assumption that ``on_step`` trains all that the optimizer has, with its place; empty if it unfreezes nothing.

    Frozen parameters that the optimizer does not have stay frozen, whatever ``on_step`` does.
    """
    on_step = unwrap(type(workload).on_step)
    if on_step is Workload.on_step or not isinstance(on_step, FunctionType):
        return ""
    codes = [function.__code__ for function in reached(on_step, type(workload))]
    # As an attribute, or as in setattr(parameter, "requires_grad", True).
    if not any(_SWITCHES & {*names_in(code), *texts_in(code)} for code in codes):
        return ""
    code = on_step.__code__
    place = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    return f"all parameters of the optimizer train, as on_step may unfreeze them ({place})"


def reached(function: FunctionType, workload: type) -> Iterator[FunctionType]:
    """The function, and those whose names it mentions, again and again: globals, and methods of classes next to it.

    Those of torch and of Python itself are left out.
    """
    waiting, seen = [function], {function}
    while waiting:
        yield (next_function := waiting.pop())
        for name in [*names_in(next_function.__code__), *texts_in(next_function.__code__)]:
            for callable_ in _named(name, next_function.__globals__, workload):
                if callable_ not in seen and len(seen) < _MOST_FUNCTIONS and not _is_library(callable_):
                    seen.add(callable_)
                    waiting.append(callable_)


def names_in(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes in ``code``, and in functions that are defined there."""
    for part in _parts(code):
        yield from part.co_names


def texts_in(code: CodeType) -> Iterator[str]:
    """The texts in quotes in ``code``, and in functions that are defined there."""
    for part in _parts(code):
        yield from (constant for constant in part.co_consts if isinstance(constant, str))


def _parts(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)


def _named(name: str, around: dict[str, Any], workload: type) -> Iterator[FunctionType]:
    classes = [workload, *(value for value in around.values() if isinstance(value, type))]
    for value in [around.get(name), *(getattr(class_, name, None) for class_ in classes)]:
        value = unwrap(value) if callable(value) else value
        if isinstance(value, FunctionType):
            yield value


def _is_library(function: FunctionType) -> bool:
    package = (function.__module__ or "").partition(".")[0]
    return package == "torch" or package in sys.stdlib_module_names
