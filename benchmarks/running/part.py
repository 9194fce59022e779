"""A part of a benchmark: a module that lists cases of one kind, measures each, and sums up their results.

``Part`` is what every part has. The other protocols are what a part may have besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from benchmarks.running.results import Finding


class Measured(Protocol):
    """The result of a case: a dataclass whose fields are kept as JSON."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def row(self) -> list[str]:
        """The cells of the table under ``HEADER``, without the case."""
        ...


class Part(Protocol):
    """A module. ``HEADER`` has the heads of the table's columns, the case last."""

    TITLE: str
    ABOUT: str

    @property
    def HEADER(self) -> Sequence[str]: ...

    @property
    def Result(self) -> type[Measured]: ...

    def cases(self, quick: bool, seed: int, /) -> Sequence[Any]:
        """All cases, or a few small ones; ``str(case)`` is the name of a case."""
        ...

    def measure(self, case: Any, seconds: float, /) -> Measured:
        """The result of a case, whose real run is limited to ``seconds``."""
        ...

    def figures(self, results: Sequence[Any], /) -> Mapping[str, Any]:
        """Numbers by name over the results of all cases that did not fail."""
        ...


@runtime_checkable
class HasOptions(Protocol):
    """A part that needs folders of the user.

    ``OPTIONS`` has the help of each by name. ``--NAME DIR`` is given to ``cases`` as an argument of this name, and None
    without it.
    """

    OPTIONS: Mapping[str, str]


@runtime_checkable
class HasOrder(Protocol):
    """A part whose page has an order of its own."""

    def in_order(self, findings: Sequence[Finding], /) -> list[Finding]:
        """The findings in the order of the page."""
        ...


@runtime_checkable
class HasNotes(Protocol):
    """A part with more to say after the last case."""

    def notes(self, findings: Sequence[Finding], /) -> list[str]:
        """Lines to print at the end about the findings that have a result."""
        ...
