"""Finds out what a line of code does with a value that nobody knows: is it a check that a healthy run passes?"""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache
from types import FrameType


def passing_value(frame: FrameType) -> bool | None:
    """The truth value with which the check that the frame evaluates now passes; None if it is not a check.

    A check is an ``assert``, or an ``if`` whose body ends with ``raise``. For ``if not x: raise`` the value of ``x`` is
    True.
    """
    statement = _statement(frame)
    if isinstance(statement, ast.Assert):
        return not _is_negated(statement.test, frame)
    if isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Raise):
        return _is_negated(statement.test, frame)
    return None


def precedes_constant(frame: FrameType) -> bool:
    """Whether the value that the frame evaluates now stands in ``and`` or ``or`` before constants alone.

    Whatever it is, nothing else is done: ``clip(…) and None`` is a way to return None in a lambda.
    """
    place = _place(frame, frame.f_lasti)
    tests = [node for node in ast.walk(_statement(frame) or ast.Pass()) if isinstance(node, ast.BoolOp)]
    return any(
        (first.lineno, first.col_offset) <= place < (first.end_lineno or 0, first.end_col_offset or 0)
        and all(isinstance(other, ast.Constant) for other in others)
        for first, *others in (node.values for node in tests)
    )


def calls(frame: FrameType, name: str) -> bool:
    """Whether the statement at the frame's current line calls a function of this name."""
    statement = _statement(frame)
    return statement is not None and any(
        isinstance(node, ast.Call) and name in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))
        for node in ast.walk(statement)
    )


def decides(frame: FrameType) -> bool:
    """Whether the frame's current instruction is part of a comparison or of a test."""
    statement, place = _statement(frame), _place(frame, frame.f_lasti)
    if isinstance(statement, ast.If | ast.While | ast.Assert):
        return True
    return statement is not None and any(
        (node.lineno, node.col_offset) <= place < (node.end_lineno or 0, node.end_col_offset or 0)
        for node in ast.walk(statement)
        if isinstance(node, ast.IfExp | ast.Compare | ast.BoolOp)
    )


def _is_negated(node: ast.expr, frame: FrameType) -> bool:
    """Whether the part of a test that the frame evaluates now stands behind an odd number of ``not``."""
    # The jump itself has the position of the whole statement, and the instruction before it that of the part.
    place, negated = _place(frame, frame.f_lasti - 2), False
    while True:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            node, negated = node.operand, not negated
        elif isinstance(node, ast.BoolOp):
            begun = [part for part in node.values if (part.lineno, part.col_offset) <= place]
            node = begun[-1] if begun else node.values[0]
        else:
            return negated


def _statement(frame: FrameType) -> ast.stmt | None:
    """The innermost statement around the current instruction; of an ``if`` only its test counts as around."""
    place, innermost = _place(frame, frame.f_lasti), None
    for statement in _statements(frame.f_code.co_filename):
        last = getattr(statement, "test", statement)
        if (statement.lineno, statement.col_offset) <= place < (last.end_lineno, last.end_col_offset):
            innermost = statement
    return innermost


def _place(frame: FrameType, instruction: int) -> tuple[int, int]:
    """The line and column at which an instruction of the frame's code begins."""
    line, _, column, _ = list(frame.f_code.co_positions())[instruction // 2]
    return line or frame.f_lineno, column or 0


@lru_cache(maxsize=64)
def _statements(file: str) -> tuple[ast.stmt, ...]:
    """All statements of a file in the order of their lines, outer ones before inner ones."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    return tuple(sorted(statements, key=lambda node: (node.lineno, -(node.end_lineno or node.lineno))))
