"""Asks studies for plans of models that are called in unusual ways, on devices on which some listed plan fits."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.same_curve import idioms
from placement.model import Cluster
from placement.option import NoPlan, Option
from placement.planning.answers import ChosenPlan
from scamp_service.sizing.candidates import candidates_of
from scamp_service.sizing.estimate import Estimator, equal_devices
from scamp_service.sizing.estimated import ANY_MIB
from scamp_service.sizing.tracing.options import Tracing

FOLDER = Path(__file__).parents[2] / "curves" / "calling"
NUM_DEVICES = 4
SHARES = (0.0, 0.02, 0.1, 0.3, 0.6, 0.95)
"""Sizes of devices, from the least that a listed plan needs (0) to what a single rank needs (1)."""
TOO_SMALL = (0.6, 0.95)
"""Sizes of devices as shares of the least that a listed plan needs."""
SEED = 32
WIDTH, DEPTH = 192, 6

TITLE = "Plans of models that are called in unusual ways"
HEADER = ("units", "sizes", "refused", "worse", "plans", "unseen", "case")
ABOUT = f"""\
Each form is a user's file in which the loss or the model calls the model or its blocks in a way of its own; the same
forms are trained by `benchmarks.same_curve`. A study is asked for a plan on {NUM_DEVICES} devices of {len(SHARES)}
sizes, from the least that a plan listed by `scamp estimate` needs to almost what a single rank needs, and of
{len(TOO_SMALL)} sizes that are too small. *Refused* counts the sizes where a listed plan fits and the study, or the
estimate, has none. *Worse* counts the refusals that name more MiB than a row of the table that
was traced. *Plans* is how many plans
differ. Where the chosen plans are
few, FSDP has no plan, or little use, which `scamp estimate` says with the user's line: `PartsOfBlocks` and
`FrozenTeacher` call parts of the model past the modules that FSDP gathers, so they train on one rank or with ZeRO-1;
`ForwardDirectly` calls `block.forward`, past the hooks of its blocks, which are gathered together as one unit.
Half of the forms were drawn by the seed {SEED} and had not been run before all changes for the others were made."""


@dataclass(frozen=True)
class Called:
    """A form of calling a model, by its name as a workload of ``FOLDER``."""

    workload: str
    is_unseen: bool

    def __str__(self) -> str:
        return self.workload


@dataclass(frozen=True, slots=True)
class Result:
    """How a form fared at ``num_sizes`` sizes of devices: how often nothing was found though a listed plan fits, how
    often a refusal named more than a row of the table needs, and the plans that were chosen."""

    num_units: int
    num_sizes: int
    refused: int
    worse: int
    plans: list[str]
    is_unseen: bool

    def row(self) -> list[str]:
        """The cells of the table under ``HEADER``, without the case."""
        numbers = (self.num_units, self.num_sizes, self.refused, self.worse, len(set(self.plans)))
        return [*map(str, numbers), "yes" if self.is_unseen else ""]


def cases(quick: bool, seed: int) -> Sequence[Called]:
    """Every form, or one; ``seed`` is not used."""
    names = [str(idiom) for idiom, _ in idioms([FOLDER])]
    drawn_from = _in_order_of_writing(names)
    unseen = set(random.Random(SEED).sample(drawn_from, len(drawn_from) // 2))
    every = [Called(name, name in unseen) for name in names]
    return every[:1] if quick else every


def _in_order_of_writing(names: Sequence[str]) -> list[str]:
    """Forms of the first files; those of later ones were written with the others in sight."""
    files = [name.partition(":")[0] for name in names]
    return [
        name
        for first in ("base.py", "losses.py", "blocks.py")
        for name, file in zip(names, files, strict=True)
        if file == first
    ]


def measure(case: Called, seconds: float) -> Result:
    """The result of one form; nothing is run for real, so ``seconds`` is not used."""
    params = {"width": WIDTH, "depth": DEPTH}
    candidates = candidates_of(case.workload, params, working_dir=FOLDER)
    plans: list[str] = []
    refused = worse = 0
    with tempfile.TemporaryDirectory() as cache:
        with Estimator(candidates.workload, candidates.code, Tracing(Path(cache))) as estimator:
            everything = estimator.estimate(params, equal_devices(NUM_DEVICES, ANY_MIB))
            needs = [option.prediction.reserved_mib for option in everything.options]
            least, alone = min(needs), needs[0]
            sizes = [round(least + share * (alone - least)) for share in SHARES]
            sizes += [round(least * share) for share in TOO_SMALL]
            for mib in sorted(set(sizes)):
                answers, rows = _asked(estimator, params, equal_devices(NUM_DEVICES, mib))
                fits = any(row.fits for row in rows)
                for answer in answers:
                    if isinstance(answer, ChosenPlan):
                        plans.append(str(answer.plan))
                    elif fits:
                        refused += 1
                    elif traced := [row.prediction.reserved_mib for row in rows if row.is_traced]:
                        worse += _named_mib(answer) > min(traced)
    return Result(len(everything.units), len(set(sizes)), refused, worse, plans, case.is_unseen)


def _asked(
    estimator: Estimator, params: dict[str, int], cluster: Cluster
) -> tuple[list[ChosenPlan | NoPlan], Sequence[Option]]:
    """The answers of a study and of ``scamp estimate``, and the rows of the latter's table."""
    estimate = estimator.estimate(params, cluster)
    return [estimator.plan(params, cluster), estimate.choice], estimate.options


def _named_mib(refusal: NoPlan) -> int:
    """MiB that a refusal says its best plan needs."""
    match = re.search(r"(\d+) MiB per device", refusal.reason)
    assert match is not None, refusal.reason
    return int(match[1])


def figures(results: Sequence[Result]) -> dict[str, float]:
    """The number of forms, and how many were refused though a listed plan fits, or by a plan that is not the best."""
    return {
        "calling_forms": len(results),
        "refused_though_fits": sum(result.refused > 0 for result in results),
        "refusals_worse_than_listed": sum(result.worse > 0 for result in results),
    }
