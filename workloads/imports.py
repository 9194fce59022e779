"""Finds imports inside a user's functions.

``check_imports`` finds those that will fail, so that a study is refused before its trials fail one by one. It refuses
only imports that every candidate would run, and ignores one that may never run: under an ``if``, in a ``try`` with
handlers, after an early ``return``, or in a function without a visible call.

``import_early`` runs them all, before a memory budget is enforced. A library that is imported under a limit may fail
in many ways, and OpenBLAS, which SciPy and scikit-learn load, does not even fail: it asks again for ever. The source is
read instead of trying an evaluation: that would take as long as one, need the memory of one while nothing is limited,
and change what a workload keeps. What libraries themselves import late is not found.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from workloads.loading import can_import, module_not_found
from workloads.protocol import Chain, Workload

_CALLED = sorted({*dir(Workload), *dir(Chain)} - set(dir(object)) | {"__init__"})
"""Methods of a workload or a model that ScaMP and torch call."""
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_WITHOUT_IMPORTS: set[tuple[Path, str]] = set()  # workloads whose functions import nothing
_CONDITIONAL = (ast.If, ast.Match, ast.IfExp, ast.BoolOp)


def check_imports(workload: type[Workload]) -> None:
    """Raise ``WorkloadError`` if the user's functions are certain to import a module that cannot be found."""
    for function, nodes in _reached(workload, _certain):
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                _check(node, function)


def import_early(workload: type[Workload], code_dir: Path) -> None:
    """Run every import inside the user's functions that ScaMP may call. One that fails is left to the user's code.

    ``code_dir`` has the user's files, which do not change: they are not read again if there is no such import.
    """
    key = (code_dir, workload.__qualname__)
    if key in _WITHOUT_IMPORTS:
        return
    has_any = False
    for function, nodes in _reached(workload, _everything):
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                has_any = True
                module = ast.Module([node], [])
                with suppress(Exception, SystemExit):
                    exec(compile(module, function.__code__.co_filename, "exec"), dict(function.__globals__))
    if not has_any:
        _WITHOUT_IMPORTS.add(key)


def _reached(
    workload: type[Workload], nodes_of: Callable[[Sequence[ast.stmt]], Iterator[ast.AST]]
) -> Iterator[tuple[FunctionType, list[ast.AST]]]:
    """Yield the user's functions that ScaMP calls, and those that their ``nodes_of`` call, each with its nodes."""
    root = workload.__module__.partition(".")[0]
    called: list[tuple[Any, type | None]] = [(workload, None)]
    seen: list[FunctionType] = []
    while called:
        for function, owner in _functions(*called.pop()):
            if function in seen or not str(function.__module__).startswith(f"{root}."):
                continue
            seen.append(function)
            nodes = list(nodes_of(_body(function)))
            yield function, nodes
            called += [(_resolve(node.func, function, owner), owner) for node in nodes if isinstance(node, ast.Call)]


def _functions(called: Any, owner: type | None) -> Iterator[tuple[FunctionType, type | None]]:
    """The functions that run when ``called`` is called: itself or, for a class, the methods in ``_CALLED``."""
    if isinstance(called, type):
        for name in _CALLED:
            yield from _functions(inspect.getattr_static(called, name, None), called)
    elif isinstance(called, property):
        yield from _functions(called.fget, owner)
    elif isinstance(called, staticmethod | classmethod):
        yield from _functions(called.__func__, owner)
    elif isinstance(called, FunctionType) and isinstance(function := inspect.unwrap(called), FunctionType):
        yield function, owner


def _body(function: FunctionType) -> list[ast.stmt]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):  # made by exec, or a string literal in it breaks the indentation
        return []
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    statement = tree.body[0]
    return statement.body if isinstance(statement, ast.FunctionDef) else []


def _everything(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes of ``body``."""
    for statement in body:
        yield from ast.walk(statement)


def _certain(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes of ``body`` that run whenever ``body`` runs without an exception."""
    for statement in body:
        if isinstance(statement, ast.If | ast.Match | ast.Try | ast.While | ast.For):
            if isinstance(statement, ast.For) or (isinstance(statement, ast.Try) and not statement.handlers):
                yield from _certain(statement.body)
        elif isinstance(statement, ast.With):
            yield from _certain(statement.body)
        else:
            yield from _parts(statement)
        if any(isinstance(node, ast.Return) for node in _inside(statement)):
            return


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """``node`` and everything in it, except for parts that may not be evaluated."""
    if not isinstance(node, (*_NESTED, *_CONDITIONAL)):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _parts(child)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """``node`` and everything in it, except for functions and classes that are only defined there."""
    if not isinstance(node, _NESTED):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _inside(child)


def _resolve(called: ast.expr, function: FunctionType, owner: type | None) -> Any:
    """The function or class that an expression names; None where the source does not show it."""
    if isinstance(called, ast.Name):
        return owner if called.id == "self" else function.__globals__.get(called.id)
    if isinstance(called, ast.Attribute):
        holder = _resolve(called.value, function, owner)
        if isinstance(holder, type | ModuleType):
            return inspect.getattr_static(holder, called.attr, None)
    return None


def _check(node: ast.Import | ast.ImportFrom, function: FunctionType) -> None:
    level = node.level if isinstance(node, ast.ImportFrom) else 0
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    for name in names:
        if name and not can_import(name, level, function.__globals__):
            file = Path(function.__code__.co_filename).name
            raise module_not_found("." * level + name, f"{file}, line {node.lineno},")
