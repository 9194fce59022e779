"""Checks the search for the fastest plan against two others, and measures how long it takes for large models.

Small random questions are answered by trying every plan, and by a mixed-integer program. Large ones have the costs of
GPT models (``gpt.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isclose
from time import perf_counter

from benchmarks.planning.gpt import Model, capacity_bytes, costs_of, unlike, ways_of
from benchmarks.planning.oracle import Question, by_programming, by_trying, draw, price
from benchmarks.running.results import Finding, listed
from estimators.axes import Spread
from estimators.devices.catalogue import gpu
from placement.exact.search import StagedPlan, search
from placement.exact.shares import Member, Shares, best_shares
from placement.exact.ways import Devices

NUM_TRIED, NUM_PROGRAMMED = 1000, 100
TITLE = "Search for the fastest plan"
HEADER = ("seconds", "result", "case")
ABOUT = f"""\
{NUM_TRIED} small random questions are answered by trying all plans, with one or two kinds of devices, and
{NUM_PROGRAMMED} by a mixed-integer program (HiGHS). It is a mismatch if the search finds another time, or a plan that
does not fit or does not cost what it says. Large questions are GPT models with costs by formulas. In questions with
unequal blocks ("unlike" in the table), each block is drawn with 70 to 130 % of the time and of the memory. Seconds
include computing the costs of all ways: all products of pipeline, data and tensor parallelism in powers of two, with
and without shards and sequence parallelism, and five micro-batches. Each time is the median of three. `mixed_ratio` is
the time of even shares on 8 V100 and 8 P100 (PCIe) divided by that of the best shares, by FLOP/s in fp32 alone;
`mixed_half_ratio` by all costs, in half precision, with the rates of the catalogue, which are assumed."""

_FP32 = {"V100-32": 15.7e12, "P100": 9.3e12}
"""FLOP/s by the datasheets of Tesla V100 (SXM2) and Tesla P100 (PCIe), the GPUs of Whale's experiments."""


@dataclass(frozen=True)
class RandomQuestions:
    """So many random questions, from a seed on."""

    num: int
    seed: int
    is_programmed: bool

    def __str__(self) -> str:
        others = "HiGHS" if self.is_programmed else "all plans"
        return f"{self.num} random questions from seed {self.seed} against {others}"


@dataclass(frozen=True)
class Large:
    """A GPT of this many blocks on devices of these kinds, equally many of each."""

    figure: str
    num_blocks: int
    width: int
    kinds: tuple[str, ...]
    num_devices: int
    batch: int
    is_unlike: bool = False

    def __str__(self) -> str:
        devices = " and ".join(f"{self.num_devices // len(self.kinds)} {kind}" for kind in self.kinds)
        blocks = f"{self.num_blocks} {'unlike ' if self.is_unlike else ''}blocks"
        return f"{blocks} of width {self.width}, {devices}, batch {self.batch}"


@dataclass(frozen=True)
class Mixed:
    """Shares of a batch on 8 V100-32 and 8 P100 with 16 GB, for a BERT-large."""

    figure: str
    batch: int
    is_half: bool

    def __str__(self) -> str:
        return f"shares of a batch of {self.batch} on 8 V100-32 and 8 P100, {'half' if self.is_half else 'fp32'}"


Case = RandomQuestions | Large | Mixed


_LARGE = [
    Large("plan_96_64_seconds", 96, 12_288, ("H100",), 64, 512),
    Large("plan_96_512_seconds", 96, 12_288, ("H100",), 512, 512),
    Large("plan_192_1024_seconds", 192, 16_384, ("H100",), 1024, 1024),
    Large("plan_96_64_small_seconds", 96, 4_096, ("V100-16",), 64, 512),
    Large("plan_96_512_small_seconds", 96, 12_288, ("T4",), 512, 512),
    Large("plan_192_1024_small_seconds", 192, 16_384, ("T4",), 1024, 1024),
    Large("plan_96_64_unlike_seconds", 96, 12_288, ("H100",), 64, 512, is_unlike=True),
    Large("plan_96_512_unlike_seconds", 96, 12_288, ("T4",), 512, 512, is_unlike=True),
    Large("plan_192_1024_unlike_seconds", 192, 16_384, ("T4",), 1024, 1024, is_unlike=True),
    Large("plan_96_64_mixed_seconds", 96, 4_096, ("V100-32", "P100"), 64, 512),
    Large("plan_96_512_mixed_seconds", 96, 12_288, ("H100", "A100-40"), 512, 512),
    Large("plan_192_1024_mixed_seconds", 192, 16_384, ("A100-40", "V100-16"), 1024, 1024),
]
_MIXED = [Mixed("mixed_ratio", 512, False), Mixed("mixed_half_ratio", 256, True)]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    """All cases, or small ones; random questions are drawn by ``seed``."""
    if quick:
        return [RandomQuestions(40, seed, False), RandomQuestions(5, seed, True), *_LARGE[:1], *_MIXED]
    tried = [RandomQuestions(100, seed + 100 * index, False) for index in range(NUM_TRIED // 100)]
    return [*tried, RandomQuestions(NUM_PROGRAMMED, seed + 100_000, True), *_LARGE, *_MIXED]


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds that the search took, and the plan that it found. ``value`` belongs to ``figure``, if there is one."""

    seconds: float
    plan: str
    instances: int = 0
    mismatches: int = 0
    figure: str = ""
    value: float = 0.0

    def row(self) -> list[str]:
        return [f"{self.seconds:.3f}", self.plan]


def figures(results: Sequence[Result]) -> dict[str, float]:
    counts: dict[str, float] = {
        "search_instances": sum(result.instances for result in results),
        "search_mismatches": sum(result.mismatches for result in results),
    }
    return counts | {result.figure: result.value for result in results if result.figure}


def notes(findings: Sequence[Finding]) -> list[str]:
    """Every case with a mismatch."""
    return listed(findings, lambda finding: finding.values["plan"] if finding.values["mismatches"] else "")


def measure(case: Case, seconds: float) -> Result:
    if isinstance(case, RandomQuestions):
        return _compared(case)
    return _searched(case) if isinstance(case, Large) else _shared(case)


def _compared(case: RandomQuestions) -> Result:
    begun, wrong = perf_counter(), []
    for seed in range(case.seed, case.seed + case.num):
        question = draw(seed, num_kinds=1 if case.is_programmed else 1 + seed % 2)
        ours = search(question.ways, question.devices, batch=question.batch)
        best = by_programming(question) if case.is_programmed else by_trying(question)
        if not _agrees(question, ours, best):
            wrong.append(seed)
    text = f"other answers for seeds {wrong}" if wrong else f"{case.num} equal answers"
    return Result(perf_counter() - begun, text, case.num, len(wrong))


def _agrees(question: Question, plan: StagedPlan | None, best: float) -> bool:
    if plan is None:
        return best == inf
    seconds, sizes = price(question, plan)
    capacity = {device.name: device.capacity_bytes for device in question.devices}
    fits = all(size <= capacity[name] for size, name in zip(sizes, plan.devices, strict=True))
    return fits and isclose(seconds, plan.seconds, rel_tol=1e-6) and isclose(best, plan.seconds, rel_tol=1e-6)


def _searched(case: Large) -> Result:
    kinds = [gpu(name) for name in case.kinds]
    devices = [Devices(kind.name, case.num_devices // len(kinds), capacity_bytes(kind)) for kind in kinds]
    times = []
    for _ in range(3):
        begun = perf_counter()
        ways = list(ways_of(Model(case.num_blocks, case.width), kinds, case.num_devices))
        ways = unlike(ways, seed=0) if case.is_unlike else ways
        answer = search(ways, devices, batch=case.batch)
        times.append(perf_counter() - begun)
    median = sorted(times)[1]
    if answer is None:
        return Result(median, "no plan fits", figure=case.figure, value=median)
    plan = (
        f"{answer.spread.short}, micro-batch {answer.num_micro_batches} × {answer.micro_batch}: {answer.seconds:.2f} s"
    )
    return Result(median, f"{plan} ({len(ways)} ways)", figure=case.figure, value=median)


def _shared(case: Mixed) -> Result:
    members = [member for name in ("V100-32", "P100") for member in [_member(case, name)] * 8]
    begun = perf_counter()
    shares = best_shares(members, case.batch)
    seconds = perf_counter() - begun
    assert isinstance(shares, Shares)
    even = f"even: {shares.even_seconds:.2f} s"
    text = f"{shares.samples[0]} and {shares.samples[-1]} samples, {shares.seconds:.2f} s; {even}"
    return Result(seconds, text, figure=case.figure, value=shares.even_seconds / shares.seconds)


def _member(case: Mixed, name: str) -> Member:
    """A rank with a replica of the model; its costs are affine in its samples."""
    model, kind = Model(24, 1024, length=128, vocabulary=30_522, is_half=case.is_half), gpu(name)
    few, many = (costs_of(model, kind, Spread(dp_replicate=16), num, 1) for num in (8, 16))
    times = [float(way.pass_seconds.sum() + way.update_seconds.sum()) for way in (few, many)]
    sizes = [float(way.kept_bytes.sum()) + way.transient_bytes for way in (few, many)]
    per_sample, bytes_per_sample = (times[1] - times[0]) / 8, (sizes[1] - sizes[0]) / 8
    fixed_bytes = float(few.state_bytes.sum()) + sizes[0] - 8 * bytes_per_sample
    member = Member(
        per_sample, int(bytes_per_sample), capacity_bytes(kind), times[0] - 8 * per_sample, int(fixed_bytes)
    )
    if case.is_half:
        return member
    flops = 3 * 24 * model.length * model.num_blocks * model.width**2
    return replace(member, seconds_per_sample=flops / _FP32[name], fixed_seconds=0.0)
