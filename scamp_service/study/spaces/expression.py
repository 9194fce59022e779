"""Expressions in a study, such as ``width % heads == 0``: Google's Common Expression Language (CEL).

CEL cannot run code, loop without end, or read anything but the values that it is given. What takes long in spite of
that is refused: long expressions, and macros over lists inside each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

MAX_LENGTH = 500
MAX_MACROS = 2
_MACRO = re.compile(r"\.\s*(all|exists|exists_one|map|filter)\s*\(")
_BOUND = re.compile(_MACRO.pattern + r"\s*(\w+)\s*,")


class Expression:
    """A compiled expression. Beside CEL's own functions it may call ``min``, ``max``, ``sum`` and ``abs``."""

    def __init__(self, source: str) -> None:
        """Raises ``ValueError``, in one line, if it is not an expression or may take long."""
        import cel  # here, as it takes 0.3 s, and few studies have expressions

        if len(source) > MAX_LENGTH:
            raise ValueError(f"is longer than {MAX_LENGTH} characters; make several of it")
        if len(_MACRO.findall(source)) > MAX_MACROS:
            raise ValueError(f"has more than {MAX_MACROS} of all, exists, map and filter; make several of it")
        self.source = source
        try:
            self._program = cel.compile(source)
        except ValueError as error:
            raise ValueError(f"is not an expression: {_in_a_line(error)}") from None
        self.names = frozenset(self._program.variables()) - {bound for _, bound in _BOUND.findall(source)}
        """The variables that it reads, without those of its macros."""

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Its value for those of its ``names``. Raises ``ValueError``, in one line, if it has none, as for a division
        by zero."""
        return self.for_many(values)(values)

    def for_many(self, variables: Iterable[str]) -> Callable[[Mapping[str, Any]], Any]:
        """A function that one thread calls like this expression, in a third of the time, with these names each time."""
        import cel

        # A name that has no value now is looked up among the variables.
        context = cel.Context(variables=dict.fromkeys(self.names.intersection(variables)), functions=dict(_FUNCTIONS))
        execute = self._program.execute

        def value_of(values: Mapping[str, Any]) -> Any:
            context.set_variable_resolver(values.get)
            try:
                return execute(context)
            except (ValueError, TypeError, KeyError, IndexError, ArithmeticError, RuntimeError) as error:
                raise ValueError(_in_a_line(error)) from None

        return value_of


def _smallest(*values: Any) -> Any:
    return min(values[0] if len(values) == 1 else values)


def _largest(*values: Any) -> Any:
    return max(values[0] if len(values) == 1 else values)


_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": _smallest, "max": _largest, "sum": sum, "abs": abs}


def _in_a_line(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"there is no {error}"
    if "does not coerce between types" in str(error):
        return "it mixes types; if these are whole numbers and floats, convert one: double(width) * lr"
    text = re.sub(r"^Failed to parse expression '.*?': ERROR: <input>:1:(\d+):", r"column \1:", str(error), flags=re.S)
    return _plain(" ".join(text.partition("\n")[0].partition(" expecting {")[0].split()))[:200]


def _plain(text: str) -> str:
    """The words of the parser without its ``<EOF>``, the end of the text."""
    text = text.replace("mismatched input '<EOF>'", "it ends where a value is missing")
    return text.replace(" expecting <EOF>", " after the end of it").replace("'<EOF>'", "its end")
