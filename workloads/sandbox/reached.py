"""Follows the names in the code of a method to the functions that it may call.

Names are enough for what is asked of them: a function that is named and never called only makes an answer cautious.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any

_MOST_FUNCTIONS = 500


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
