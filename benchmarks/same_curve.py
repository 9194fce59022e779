"""Trains many model idioms, each a user's file, under many plans, and compares every curve with that of one rank.

An idiom is traced under the plan's layouts first, as a study does: what the trace refuses is not trained. Three steps
run, then two more in a new training that resumes from the checkpoint. Losses and metrics after each step must be those
of one rank. Where an idiom legitimately depends on how a batch is divided (batch statistics), one rank divides its
batch equally. Prints what is wrong and what is refused, with the reason, and last the figures as one line of JSON.

With ``--drawn`` programs are drawn from a grammar instead (see ``curves.drawn``); with ``--complete`` workloads that
are right train with checks (see ``curves.complete``).
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
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.curves import complete, drawn
from benchmarks.curves.forks import CRASHED, HANGS, in_forks
from benchmarks.curves.running import BATCH, Idiom, trace_layout, train_rank
from benchmarks.running.results import head_commit, setting_words
from estimators.axes import Spread
from estimators.constraints import PlanConstraints
from estimators.model import Divisions, Layout, Plan
from placement.planning.ways import list_ways
from workloads.protocol import BATCHES, Workload

FOLDERS = tuple(Path(__file__).parent / "curves" / name for name in ("idioms", "unseen", "calling"))
DEPENDS = "depends_on_division"
TOLERANCE = 1e-5
"""Largest relative difference of a loss or metric, relative to its value (at least 1): rounding in fp32 over five
steps."""
ROUNDS = "rounds_to_bf16"
ROUNDING = 1e-4
"""The tolerance of idioms that round hidden values to bf16, where rounding may go either way."""
SECONDS = 120.0
KINDS = ("equal", "wrong", "hangs", "failed", "refused", "alarm", "false alarm")
COMMAND = "python -m benchmarks.same_curve --results FILE --write PAGE"
ABOUT = """\
Each idiom is a workload in a file of a user, re-made from a public bug report of another system or from a repository.
It is traced and trained for five steps, the last two after a resume, under all kinds of plans on one and two ranks and
two on four; every loss and metric is compared with that of one rank. *Equal*: the largest relative difference is at
most 1e-5, and 1e-4 where hidden values are rounded to bf16. *Wrong*: it is larger, and nothing was said. *Refused*: the
trace, by which studies choose, or the attempt says why not; another kind of plan is chosen then. *Failed*: it ended
without a cause in words. *Alarm*: the training itself has found that its curve depends on how a batch is divided, and
would continue under another plan; *false alarm*: unguarded, its curve is that of one rank.

The idioms in `unseen` came last. Somebody who did not know the runtime wrote them, and we changed nothing until all had
run once. 14 of them are left. That first time, of 200 plans 139 were equal, 44 refused, 6 failed (2
idioms) and 11 wrong (4 idioms): attributes of parameters were lost, gradients depended on the scale of the loss, state
within a pass was not recomputed, weights merged for evaluation were not restored. Both kinds were mended, and the
figures below are of now.
"""
EXPLAINED = ("failed", "refused", "alarm", "false alarm")
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
    """All runs of one idiom; traces of layouts and references of one rank are kept."""

    idiom: Idiom
    members: Set[str]
    """Names that its class and the classes before it define."""
    folder: Path
    num_runs: int = 0
    references: dict[int, Any] = field(default_factory=dict)
    traces: dict[Layout, Any] = field(default_factory=dict)

    def traced(self, *layouts: Layout) -> list[dict[str, Any]]:
        """The answers of the traces (see ``running.trace_layout``)."""
        new = [layout for layout in dict.fromkeys(layouts) if layout not in self.traces]
        answers = in_forks([partial(trace_layout, self.idiom, layout) for layout in new], SECONDS)
        self.traces.update(zip(new, answers, strict=True))
        of_layouts = [self.traces[layout] for layout in layouts]
        return [answer if isinstance(answer, dict) else {"refused": answer} for answer in of_layouts]

    def trained(self, plan: Plan, *, guard: bool = True) -> list[Any]:
        """The report of each rank."""
        self.num_runs += 1
        folder = self.folder / str(self.num_runs)
        folder.mkdir()
        ranks = [partial(train_rank, self.idiom, plan, rank, folder, guard) for rank in range(plan.world_size)]
        answers = in_forks(ranks, SECONDS)
        shutil.rmtree(folder)
        return answers

    def reference(self, plan: Plan) -> Any:
        """The report of one rank that trains the same model."""
        divisions = plan.num_shares * plan.num_micro_batches if DEPENDS in self.members else 1
        if divisions not in self.references:
            (self.references[divisions],) = self.trained(Plan(BATCH // divisions, divisions), guard=False)
        return self.references[divisions]

    def outcome(self, plan: Plan) -> Outcome:
        """Trace the plan's layouts, train it, and compare it with one rank."""
        for traced in self.traced(*plan.layouts):
            if "refused" in traced:
                return Outcome("refused", traced["refused"])
        tolerance = ROUNDING if ROUNDS in self.members else TOLERANCE
        outcome = compared(self.trained(plan), self.reference(plan), tolerance)
        if outcome.kind == "alarm":
            unguarded = compared(self.trained(plan, guard=False), self.reference(plan), tolerance)
            return replace(outcome, kind="false alarm") if unguarded.kind == "equal" else outcome
        return outcome


def compared(answers: Sequence[Any], reference: Any, tolerance: float = TOLERANCE) -> Outcome:
    """How the ranks of a gang compare with a single rank."""
    if HANGS in answers and CRASHED not in answers:
        return Outcome("hangs", str([answer for answer in answers if answer != HANGS]))
    ended = [answer for answer in answers if answer not in (HANGS, CRASHED) and "lost" not in answer]
    for kind, name in (("refused", "refused"), ("alarm", "alarm"), ("anew", "alarm"), ("error", "failed")):
        if answers_of_kind := [answer[kind] for answer in ended if kind in answer]:
            return Outcome(name, answers_of_kind[0])
    if CRASHED in answers:
        return Outcome("failed", CRASHED)
    if "values" not in reference:
        return Outcome("failed", f"one rank: {reference}")
    (values,) = [answer["values"] for answer in ended if answer.get("values")][:1] or [[]]
    difference = largest_difference(values, reference["values"])
    return Outcome("equal" if difference <= tolerance else "wrong", difference=difference)


def largest_difference(values: Sequence[Mapping[str, float]], reference: Sequence[Mapping[str, float]]) -> float:
    """The largest relative difference of any value of any report; infinite if there are others."""
    if [sorted(metrics) for metrics in values] != [sorted(metrics) for metrics in reference]:
        return math.inf
    pairs = [(ours[name], other[name]) for ours, other in zip(values, reference, strict=True) for name in other]
    differences = [abs(ours - other) / max(1.0, abs(other)) for ours, other in pairs]
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
        micro_batches = max(micro_batches, way.pp)  # 1F1B needs one for each stage
        share = BATCH // (way.dp_shard * way.dp_replicate)
        yield Plan(share // micro_batches, micro_batches, **way.values)


def _one_of_each(ways: Sequence[Spread], draws: random.Random) -> list[Spread]:
    """Draws one of all ways that differ only in how a rank computes its blocks."""
    same: dict[Spread, list[Spread]] = {}
    for way in ways:
        same.setdefault(replace(way, recompute=False, selective=False, co_shard=1), []).append(way)
    return [draws.choice(alternatives) for alternatives in same.values()]


def idioms(folders: Sequence[Path]) -> list[tuple[Idiom, Set[str]]]:
    """Every workload of the folders that has a model, and the names that its classes define."""
    pairs: list[tuple[Idiom, Set[str]]] = []
    for folder in folders:
        files = {file.name: ast.parse(file.read_text()).body for file in sorted(folder.glob("*.py"))}
        classes = {node.name: node for body in files.values() for node in body if isinstance(node, ast.ClassDef)}
        for name, body in files.items():
            for node in body:
                lineage = _lineage(node, classes) if isinstance(node, ast.ClassDef) else []
                members: dict[str, bool] = {}
                for ancestor in lineage:
                    members = {**dict(_members(ancestor)), **members}
                bases = {base for ancestor in lineage for base in _bases(ancestor)}
                needed = {*Workload.__abstractmethods__, *BATCHES, *(name for c in lineage for name in _declared(c))}
                if "Workload" in bases and all(map(members.get, needed)):
                    assert isinstance(node, ast.ClassDef)
                    pairs.append((Idiom(folder, f"{name}:{node.name}"), members.keys()))
    return pairs


def _lineage(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """The class and those of the folder that it inherits from."""
    bases = [classes[base] for base in _bases(node) if base in classes]
    return [node, *(ancestor for base in bases for ancestor in _lineage(base, classes))]


def _declared(node: ast.ClassDef) -> list[str]:
    """Names that have a type and no value, such as ``block: type``: those of subclasses."""
    declared = [statement for statement in node.body if isinstance(statement, ast.AnnAssign) and not statement.value]
    return [statement.target.id for statement in declared if isinstance(statement.target, ast.Name)]


def _bases(node: ast.ClassDef) -> list[str]:
    return [base.id for base in node.bases if isinstance(base, ast.Name)]


def _members(node: ast.ClassDef) -> Iterator[tuple[str, bool]]:
    """Yield (name, whether it is defined here and not abstract)."""
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef):
            decorators = {by.id for by in statement.decorator_list if isinstance(by, ast.Name)}
            yield statement.name, "abstractmethod" not in decorators
        elif isinstance(statement, ast.Assign):
            names = [name for target in statement.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            yield from ((name.id, True) for name in names)


Finding = tuple[str, str, Outcome]
"""Name of an idiom with its folder, a plan in words, and how it went."""


def figures(findings: Sequence[Finding]) -> dict[str, float]:
    kinds = Counter(outcome.kind for _, _, outcome in findings)
    refused, failed = kinds["refused"], kinds["failed"]
    return {
        "idioms": len({idiom for idiom, _, _ in findings}),
        "idiom_plans": len(findings),
        "equal": kinds["equal"],
        "silently_wrong": kinds["wrong"],
        "hangs": kinds["hangs"],
        "alarms": kinds["alarm"],
        "false_alarms": kinds["false alarm"],
        "refused": refused,
        "refused_with_cause_pct": 100 * refused / (refused + failed) if refused + failed else 100.0,
    }


def page(findings: Sequence[Finding]) -> str:
    """A page of Markdown with a line for each idiom, wrong ones first."""
    where = f"{setting_words()}, at {head_commit() or 'no commit'}"
    lines = ["# One model, one curve", "", f"Measured by `{COMMAND}` on {where}. The command writes this page.", ""]
    lines += [ABOUT, *(f"- `{name}`: {value:g}" for name, value in figures(findings).items()), ""]
    lines += ["| idiom | " + " | ".join(KINDS) + " | largest difference | why refused |"]
    lines += ["| --- " * (len(KINDS) + 3) + "|"]
    by_idiom: dict[str, list[Outcome]] = {}
    for idiom, _, outcome in findings:
        by_idiom.setdefault(idiom, []).append(outcome)
    for idiom, outcomes in sorted(by_idiom.items(), key=lambda item: (_is_good(item[1]), item[0])):
        counts = Counter(outcome.kind for outcome in outcomes)
        largest = max((outcome.difference for outcome in outcomes if outcome.kind in ("equal", "wrong")), default=0.0)
        why = next((_line(outcome.detail) for outcome in outcomes if outcome.kind in EXPLAINED), "")
        cells = [idiom, *(str(counts[kind] or "") for kind in KINDS), f"{largest:.0e}", why.replace("|", "/")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _is_good(outcomes: Sequence[Outcome]) -> bool:
    return all(outcome.kind in ("equal", "refused", "alarm") for outcome in outcomes)


def main() -> None:
    """Run all idioms, or those that were chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one plan of every 48th idiom")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run only every Nth idiom (1)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the plans on four ranks, number of the first program (0)"
    )
    parser.add_argument("--idioms", default="", metavar="WORDS", help="only idioms with these words in their name")
    parser.add_argument("--plans", default="", metavar="WORDS", help="only plans with these words in their name")
    parser.add_argument("--folder", type=Path, action="append", help="idioms are in this folder (those of ScaMP)")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="keep results here; what is in it is not run again"
    )
    parser.add_argument("--drawn", type=int, metavar="N", help="N programs drawn from a grammar, instead of idioms")
    parser.add_argument(
        "--complete", action="store_true", help="false alarms and time of checks of complete workloads, instead"
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write all results to this Markdown page")
    options = parser.parse_args()
    _warm_up()
    if options.drawn:
        _drawn(options)
        return
    if options.complete:
        _complete(options)
        return
    findings = _read(options.results)
    chosen = [entry for entry in idioms(options.folder or FOLDERS) if options.idioms in str(entry[0])]
    with tempfile.TemporaryDirectory(prefix="scamp-curves-") as folder:
        for number, (idiom, members) in enumerate(chosen[:: 48 if options.quick else options.every]):
            name = f"{idiom.folder.name}/{idiom}"
            if any(name == idiom for idiom, _, _ in findings):
                continue
            (path := Path(folder, str(number))).mkdir()
            new_findings = []
            for plan, outcome in _run(Curves(idiom, members, path), options.seed, options.plans, options.quick):
                new_findings.append((name, str(plan), outcome))
                detail = _line(outcome.detail)
                print(f"{name}: {plan}: {outcome.kind} {outcome.difference:.1e} {detail}", flush=True)
            findings += new_findings
            if options.results:
                with options.results.open("a") as file:
                    for idiom_name, words, outcome in new_findings:
                        file.write(json.dumps([idiom_name, words, asdict(outcome)]) + "\n")
    if options.write:
        _write(options.write, page(findings))
    print(json.dumps(figures(findings)))


def _complete(options: argparse.Namespace) -> None:
    """Train the chosen complete workloads, print how each fared, and last the figures."""
    chosen = [case for case in complete.complete() if options.idioms in str(case) and options.plans in str(case)]
    answers = {}
    with tempfile.TemporaryDirectory(prefix="scamp-complete-") as folder:
        for number, case in enumerate(chosen[:: options.every]):
            answers[case] = complete.trained(case, Path(folder, str(number)), 5 * SECONDS)
            print(f"{case}: {_line(str(answers[case]))}", flush=True)
    print(json.dumps(complete.figures(answers)))


def _drawn(options: argparse.Namespace) -> None:
    """Run drawn programs, print how each fared, and last the figures of all that are in the results."""
    numbers = range(options.seed, options.seed + options.drawn)
    outcomes = drawn.read(options.results)
    with tempfile.TemporaryDirectory(prefix="scamp-drawn-") as folder:
        for number in numbers:
            if number in outcomes:
                continue
            outcome = outcomes[number] = drawn.outcome_of(number, Path(folder, str(number)))
            print(f"program {number}: {outcome.kind} {outcome.difference:.1e} {_line(outcome.how)}", flush=True)
            if options.results:
                drawn.keep(options.results, number, outcome)
    if options.write:
        _write(options.write, section=drawn.section(outcomes))
    print(json.dumps(drawn.figures(outcomes)))


def _write(path: Path, text: str = "", section: str = "") -> None:
    """Write the page; the part that is not given stays as it is in the file."""
    old, _, old_section = path.read_text().partition(drawn.HEADING) if path.exists() else ("", "", "")
    path.write_text(f"{(text or old).rstrip()}\n\n{section or drawn.HEADING + old_section}".rstrip() + "\n")


def _read(results: Path | None) -> list[Finding]:
    if results is None or not results.exists():
        return []
    rows = map(json.loads, results.read_text().splitlines())
    return [(idiom, plan, Outcome(**outcome)) for idiom, plan, outcome in rows]


def _run(curves: Curves, seed: int, words: str, is_quick: bool) -> Iterator[tuple[Plan, Outcome]]:
    (plain,) = curves.traced(Layout())
    if "refused" in plain:
        yield Plan(BATCH), Outcome("refused", plain["refused"])
        return
    divisions = Divisions(**{**plain["divisions"], "constraints": PlanConstraints()})
    text = f"{curves.idiom} {seed}"
    every = [plan for plan in plans(divisions, text) if words in str(plan)]
    for plan in random.Random(text).sample(every, 1) if is_quick else every:
        yield plan, curves.outcome(plan)


def _line(text: str) -> str:
    return " | ".join(text.splitlines())


def _warm_up() -> None:
    """Import what forks would otherwise import again and again, trace a model and train one."""
    from workloads.sandbox.server import warm_up_tracing
    from workloads.training import runtime
    from workloads.training.warm_up import prepare_process

    prepare_process()
    vars(runtime)["warm_up"] = lambda *_: None  # of each gang, for its memory: the curve is the same without it
    warm_up_tracing()


if __name__ == "__main__":
    main()
