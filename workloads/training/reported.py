"""The door through which metrics leave a rank: plain text and numbers, whatever users' code returns.

What passes it can be stored, drawn and exported. The sink checks reports by the same rules when it reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scamp.shown import PREDICTED

LONGEST_NAME = 200
MOST_METRICS = 1000
TRAIN_LOSS = "train_loss"


class Unreportable(ValueError):
    """A metric cannot be reported; ``problem`` continues a sentence about the method that returned it."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}: {advice}")
        self.problem, self.advice = problem, advice


def plain_metrics(metrics: Mapping[Any, Any]) -> dict[str, float]:
    """The metrics as plain text and numbers. Raises ``Unreportable``."""
    return {name: plain_number(name, value) for name, value in with_plain_names(metrics).items()}


def with_plain_names(metrics: Mapping[Any, Any]) -> dict[str, Any]:
    """The metrics by names that are plain text. Raises ``Unreportable`` for too many, and names that cannot be used."""
    if len(metrics) > MOST_METRICS:
        raise Unreportable(f"returns {len(metrics):,} metrics", f"return at most {MOST_METRICS:,}")
    plain: dict[str, Any] = {}
    for key, value in metrics.items():
        name = plain_name(key)
        if name in plain:
            raise Unreportable(f"names two metrics {name!r}", "give each a name of its own")
        plain[name] = value
    return plain


def plain_name(name: Any) -> str:
    """The name of a metric as plain text, without a class of its own. Raises ``Unreportable``."""
    if not isinstance(name, str):
        raise Unreportable(f"names a metric {name!r}"[:LONGEST_NAME], "name metrics by text")
    plain = str.__str__(name)
    if len(plain) > LONGEST_NAME:
        problem = f"names a metric by {len(plain):,} characters, which begin with {plain[:40]!a}"
        raise Unreportable(problem, f"use at most {LONGEST_NAME}")
    if not plain.isprintable() or not plain.strip():
        raise Unreportable(f"names a metric {plain!a}", "use characters that can be printed on one line")
    if plain.startswith(PREDICTED):
        raise Unreportable(f"names a metric {plain!r}", f"names of predicted quantities begin with {PREDICTED}")
    return plain


def plain_number(name: str, value: Any) -> float:
    """The value of a metric: of any kind of real number, also a tensor or an array with one. Raises ``Unreportable``.

    Text is no number, and a complex number would lose its imaginary part.
    """
    is_complex = isinstance(value, complex) or "complex" in str(getattr(value, "dtype", ""))
    if is_complex:
        raise Unreportable(f"gives a complex number as metric {name!r}", "return its real part or its absolute value")
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise Unreportable(f"gives {_kind_of(value)} as metric {name!r}", "make it one number") from None


def joined(metrics: Mapping[str, float], further: Mapping[str, float]) -> dict[str, float]:
    """All of these metrics. Raises ``Unreportable`` if two have the same name: one of them would be lost."""
    if both := sorted(metrics.keys() & further.keys()):
        raise Unreportable(f"names two metrics {both[0]!r}", "give each a name of its own")
    return {**metrics, **further}


def expect_own_names(metrics: Iterable[str], phases: Iterable[str]) -> None:
    """Raise ``Unreportable`` if a metric of the workload has the name of a loss that ScaMP reports itself."""
    losses = {TRAIN_LOSS: "the mean training loss", **{f"{phase}_loss": f"that of phase {phase!r}" for phase in phases}}
    for name in metrics:
        if name in losses:
            problem = f"names a metric {name!r}, under which ScaMP reports {losses[name]}"
            raise Unreportable(problem, f"give it another name, such as {f'held_out_{name}'!r}")


def _kind_of(value: Any) -> str:
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    return f"a {kind}" if shape is None else f"a {kind} of shape {list(shape)}"
