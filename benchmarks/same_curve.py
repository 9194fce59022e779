"""Trains many model idioms, each a user's file, under many plans, and compares every curve with that of one rank.

An idiom is traced under the plan's layouts first, as a study does: what the trace refuses is not trained. Three steps
run, then two more in a new training that resumes from the checkpoint. Losses and metrics after each step must be those
of one rank. Where an idiom legitimately depends on how a batch is divided (batch statistics), one rank divides its
batch equally. Prints what is wrong and what is refused, with the reason, and last the figures as one line of JSON.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.curves.forks import CRASHED, HANGS, in_forks
from benchmarks.curves.running import BATCH, Idiom, trace_layout, train_rank
from estimators.axes import Spread
from estimators.constraints import Constraints
from estimators.model import Divisions, Layout, Plan
from placement.planning.transformation import list_ways
from workloads.protocol import Workload

FOLDERS = tuple(Path(__file__).parent / "curves" / name for name in ("idioms", "unseen"))
DEPENDS = "depends_on_division"
TOLERANCE = 1e-5
"""Largest difference of a loss or metric, relative to its value (at least 1): rounding in fp32 over five steps."""
SECONDS = 120.0
NUM_WIDE = 2
"""Plans on four ranks, of each idiom, that are drawn from all."""
DIVIDED = 0.3
"""Share of the plans with two micro-batches."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an idiom fared under a plan: ``kind`` is equal, wrong, hangs, refused or failed, with the details."""

    kind: str
    detail: str = ""
    difference: float = 0.0


@dataclass(slots=True)
class Curves:
    """All runs of one idiom; references of one rank are kept."""

    idiom: Idiom
    depends_on_division: bool
    folder: Path
    num_runs: int = 0
    references: dict[int, Any] = field(default_factory=dict)

    def traced(self, layout: Layout) -> dict[str, Any]:
        """The answer of a trace (see ``running.trace_layout``)."""
        (answer,) = in_forks([partial(trace_layout, self.idiom, layout)], SECONDS)
        return answer if isinstance(answer, dict) else {"refused": answer}

    def trained(self, plan: Plan) -> list[Any]:
        """What each rank says."""
        self.num_runs += 1
        folder = self.folder / str(self.num_runs)
        folder.mkdir()
        ranks = [partial(train_rank, self.idiom, plan, rank, folder) for rank in range(plan.world_size)]
        answers = in_forks(ranks, SECONDS)
        shutil.rmtree(folder)
        return answers

    def reference(self, plan: Plan) -> Any:
        """What one rank says that trains the same."""
        divisions = plan.num_shares * plan.num_micro_batches if self.depends_on_division else 1
        if divisions not in self.references:
            (self.references[divisions],) = self.trained(Plan(BATCH // divisions, divisions))
        return self.references[divisions]

    def outcome(self, plan: Plan) -> Outcome:
        """Trace the plan's layouts, train it, and compare it with one rank."""
        for layout in plan.layouts:
            if "refused" in (traced := self.traced(layout)):
                return Outcome("refused", traced["refused"])
        return compared(self.trained(plan), self.reference(plan))


def compared(answers: Sequence[Any], reference: Any) -> Outcome:
    """How the ranks of a gang compare with a single rank."""
    if HANGS in answers and CRASHED not in answers:
        return Outcome("hangs", str([answer for answer in answers if answer != HANGS]))
    ended = [answer for answer in answers if answer not in (HANGS, CRASHED) and "lost" not in answer]
    for kind, name in (("refused", "refused"), ("error", "failed")):
        if found := [answer[kind] for answer in ended if kind in answer]:
            return Outcome(name, found[0])
    if CRASHED in answers:
        return Outcome("failed", CRASHED)
    if "values" not in reference:
        return Outcome("failed", f"one rank: {reference}")
    (values,) = [answer["values"] for answer in ended if answer.get("values")][:1] or [[]]
    difference = largest_difference(values, reference["values"])
    return Outcome("equal" if difference <= TOLERANCE else "wrong", difference=difference)


def largest_difference(values: Sequence[Mapping[str, float]], wanted: Sequence[Mapping[str, float]]) -> float:
    """The largest relative difference of any value of any report; infinite if there are others."""
    if [sorted(each) for each in values] != [sorted(each) for each in wanted]:
        return math.inf
    pairs = [(one[name], other[name]) for one, other in zip(values, wanted, strict=True) for name in other]
    differences = [abs(one - other) / max(1.0, abs(other)) for one, other in pairs]
    return math.inf if any(map(math.isnan, differences)) else max(differences, default=math.inf)


def plans(divisions: Divisions, seed: str) -> Iterator[Plan]:
    """The plans that an idiom is trained under: all kinds on one and two ranks, and some on four, drawn by ``seed``.

    Also drawn are the kind of recompute on several ranks, and which plans divide a share into two micro-batches.
    """
    draws = random.Random(seed)
    kinds = {num: list_ways(divisions, num) for num in (1, 2, 4)}
    wide = draws.sample(_one_of_each(kinds[4], draws), NUM_WIDE)
    for way in (*kinds[1], *_one_of_each(kinds[2], draws), *wide):
        micro_batches = 2 if way.pp > 1 or way == Spread() or draws.random() < DIVIDED else 1
        share = BATCH // (way.dp_shard * way.dp_replicate)
        yield Plan(share // micro_batches, micro_batches, **way.values)


def _one_of_each(ways: Sequence[Spread], draws: random.Random) -> list[Spread]:
    """Of the ways that differ in how a rank computes its blocks alone, one each."""
    same: dict[Spread, list[Spread]] = {}
    for way in ways:
        same.setdefault(replace(way, recompute=False, selective=False, co_shard=1), []).append(way)
    return [draws.choice(each) for each in same.values()]


def idioms(folders: Sequence[Path]) -> list[tuple[Idiom, bool]]:
    """Every workload of the folders that has a model, and whether it depends on the division of a batch."""
    found = []
    for folder in folders:
        files = {file.name: ast.parse(file.read_text()).body for file in sorted(folder.glob("*.py"))}
        classes = {node.name: node for body in files.values() for node in body if isinstance(node, ast.ClassDef)}
        for name, body in files.items():
            for node in body:
                lineage = _lineage(node, classes) if isinstance(node, ast.ClassDef) else []
                members: dict[str, bool] = {}
                for each in lineage:
                    members = {**dict(_members(each)), **members}
                bases = {base for each in lineage for base in _bases(each)}
                if "Workload" in bases and all(members.get(name) for name in Workload.__abstractmethods__):
                    assert isinstance(node, ast.ClassDef)
                    found.append((Idiom(folder, f"{name}:{node.name}"), DEPENDS in members))
    return found


def _lineage(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """The class and those of the folder that it inherits from."""
    return [node, *(each for base in _bases(node) if base in classes for each in _lineage(classes[base], classes))]


def _bases(node: ast.ClassDef) -> list[str]:
    return [base.id for base in node.bases if isinstance(base, ast.Name)]


def _members(node: ast.ClassDef) -> Iterator[tuple[str, bool]]:
    """Yield (name, whether it is defined here and not abstract)."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef):
            yield one.name, not any(isinstance(by, ast.Name) and by.id == "abstractmethod" for by in one.decorator_list)
        elif isinstance(one, ast.Assign):
            names = [name for target in one.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            yield from ((name.id, True) for name in names)


def figures(outcomes: Sequence[tuple[Idiom, Plan, Outcome]]) -> dict[str, float]:
    """The figures that the benchmark is judged by."""
    kinds = Counter(outcome.kind for _, _, outcome in outcomes)
    refused, failed = kinds["refused"], kinds["failed"]
    return {
        "idioms": len({str(idiom) for idiom, _, _ in outcomes}),
        "idiom_plans": len(outcomes),
        "equal": kinds["equal"],
        "silently_wrong": kinds["wrong"],
        "hangs": kinds["hangs"],
        "refused": refused,
        "refused_with_cause_pct": 100 * refused / (refused + failed) if refused + failed else 100.0,
    }


def main() -> None:
    """Run all idioms, or those that were chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every twentieth idiom")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run only every Nth idiom (1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the plans on four ranks (0)")
    parser.add_argument("--few", type=int, metavar="N", help="only N plans of each idiom, drawn by the seed")
    parser.add_argument("--idioms", default="", metavar="WORDS", help="only idioms with these words in their name")
    parser.add_argument("--plans", default="", metavar="WORDS", help="only plans with these words in their name")
    parser.add_argument("--folder", type=Path, action="append", help="idioms are in this folder (those of ScaMP)")
    options = parser.parse_args()
    _warm_up()
    chosen = [one for one in idioms(options.folder or FOLDERS) if options.idioms in str(one[0])]
    outcomes: list[tuple[Idiom, Plan, Outcome]] = []
    with tempfile.TemporaryDirectory(prefix="scamp-curves-") as folder:
        for number, (idiom, depends) in enumerate(chosen[:: 20 if options.quick else options.every]):
            (own := Path(folder, str(number))).mkdir()
            curves = Curves(idiom, depends, own)
            plain = curves.traced(Layout())
            if "refused" in plain:
                outcomes.append((idiom, Plan(BATCH), Outcome("refused", plain["refused"])))
                print(f"{idiom}: refused: {_line(plain['refused'])}", flush=True)
                continue
            divisions = Divisions(**{**plain["divisions"], "constraints": Constraints()})
            seed = f"{idiom} {options.seed}"
            every = [plan for plan in plans(divisions, seed) if options.plans in str(plan)]
            for plan in random.Random(seed).sample(every, min(options.few or len(every), len(every))):
                outcome = curves.outcome(plan)
                outcomes.append((idiom, plan, outcome))
                detail = _line(outcome.detail)
                print(f"{idiom}: {plan}: {outcome.kind} {outcome.difference:.1e} {detail}", flush=True)
    print(json.dumps(figures(outcomes)))


def _line(text: str) -> str:
    return " | ".join(text.splitlines())


def _warm_up() -> None:
    """Import what forks would otherwise import again and again, and trace a model."""
    import workloads.parallel.pipeline
    import workloads.parallel.zero1  # noqa: F401
    from workloads.sandbox.server import warm_up

    warm_up()


if __name__ == "__main__":
    main()
