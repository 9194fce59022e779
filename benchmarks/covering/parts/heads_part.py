"""Compares the loss of ``TransformersWorkload`` with that of the library, for heads of many families.

Half of the cases are drawn by the seed, the others by a second one that nobody looks at while the adapter changes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.covering.heads import HEADS, PROBLEMS, LibraryFails, families_of, held_to_library, workload_of
from benchmarks.covering.models.listed import LISTED, UNAFFORDABLE
from benchmarks.running.results import Finding, listed

NUM_OF_HEAD, NUM_MIXTURES, SECOND_SEED = 2, 3, 20261128
TOLERANCE, ROUNDING = 1e-6, 1e-5
"""Largest relative difference of a loss, and of gradients and parts, which some models compute in single precision."""
TITLE = "Heads of transformers"
HEADER = ("loss", "gradients", "divided", "evaluated", "answer", "case")
ABOUT = f"""\
One step of small models through `TransformersWorkload`, of {len(HEADS)} kinds of heads, with another number of labels
that count in each sample: differences of the loss and of its gradients from `model(**batch).loss`, relative to the
largest. "Divided" is the larger one for a batch in parts of one sample, and "evaluated" that of the metric `loss`; both
are empty where a batch may not be divided. Half of the cases are drawn by the seed, half by a second one.
`adapter_silently_wrong` counts cases whose loss differs by more than {TOLERANCE:g}, or whose gradients or parts differ
by more than {ROUNDING:g}, without being refused in words."""


@dataclass(frozen=True, slots=True)
class Head:
    """A head of a family; ``problem`` is the kind of labels of a classification."""

    name: str
    family: str
    problem: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.name, self.family, self.problem)))


@dataclass(frozen=True, slots=True)
class Result:
    """Differences, -1 where there is none; ``refusal`` are the adapter's words, ``library`` an error of the library."""

    error: float
    gradients: float
    divided: float
    evaluated: float
    refusal: str
    library: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether another loss is trained or measured."""
        return max(self.error, self.evaluated) > TOLERANCE or max(self.gradients, self.divided) > ROUNDING

    def row(self) -> list[str]:
        if self.library or self.refusal:
            return ["", "", "", "", "the library fails" if self.library else "refused"]
        values = self.error, self.gradients, self.divided, self.evaluated
        answer = "wrong" if self.is_wrong else "equal" if self.divided >= 0 else "whole"
        return [*("" if value < 0 else f"{value:.0e}" for value in values), answer]


def cases(quick: bool, seed: int) -> Sequence[Head]:
    drawn = dict.fromkeys(case for number in (seed, SECOND_SEED) for case in _drawn(number))
    return [Head("CausalLM", "gpt2"), Head("SequenceClassification", "bert")] if quick else list(drawn)


def _drawn(seed: int) -> list[Head]:
    source = random.Random(seed)
    affordable = sorted(set(LISTED) - UNAFFORDABLE)
    every = []
    for name in HEADS:
        families = [family for family in families_of(name) if family in affordable]
        for family in source.sample(families, min(NUM_OF_HEAD, len(families))):
            every.append(Head(name, family, source.choice(PROBLEMS) if name == "SequenceClassification" else ""))
    mixtures = [family for family in families_of("CausalLM") if family in affordable and "moe" in family]
    return every + [Head("CausalLM", family) for family in source.sample(mixtures, NUM_MIXTURES)]


def measure(case: Head, seconds: float) -> Result:
    try:
        held = held_to_library(workload_of(case.name, case.family, case.problem))
    except LibraryFails as error:
        return Result(0.0, 0.0, -1.0, -1.0, "", str(error))
    return Result(held.error, held.gradients, held.divided, held.evaluated, held.refusal)


def figures(results: Sequence[Result]) -> dict[str, float]:
    tried = [result for result in results if not result.library]
    compared = [result for result in tried if not result.refusal]
    values: dict[str, float] = {"adapter_heads": len(tried), "adapter_refused": len(tried) - len(compared)}
    if compared:
        values["adapter_loss_max_error"] = max(result.error for result in compared)
        values["adapter_gradients_max_error"] = max(result.gradients for result in compared)
        values["adapter_divided"] = sum(result.divided >= 0 for result in compared)
        values["adapter_divided_max_error"] = max(result.divided for result in compared)
        values["adapter_evaluated_max_error"] = max(result.evaluated for result in compared)
    values["adapter_silently_wrong"] = sum(result.is_wrong for result in compared)
    return values


def notes(findings: Sequence[Finding]) -> list[str]:
    """Every refusal, and every case in which the library fails."""
    return listed(findings, lambda finding: finding.values["refusal"] or finding.values["library"])
