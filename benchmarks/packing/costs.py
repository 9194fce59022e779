"""The costs of transformer candidates on V100-16, by our estimators and planner, and studies that are drawn from them.

``python -m benchmarks.packing.costs`` traces the candidates and writes ``costs.json``; started again, it traces those
that are missing, a minute or more for each. Nothing else here needs torch. The table is committed, so every run of the
benchmark has the same costs.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from estimators.devices.catalogue import gpu
from estimators.devices.kind import DeviceKind, Figure, Link
from estimators.model import MIB
from estimators.profile import ModelProfile
from placement.model import Cluster, Device, Shape
from placement.option import NoPlan, Option
from placement.planning.answers import Untraced
from placement.planning.planner import PlanChoice
from placement.planning.question import Question
from tests.shapes import pareto

TABLE = Path(__file__).with_name("costs.json")
STATIC = 8
"""GPUs of every trial under the static policy."""
DEGREES = (1, 2, 4, 8)
"""Ranks of the shapes that a trial offers: pipelines over more than two nodes would take hours to trace."""
KIND = "V100-16"
NUM_NODES, PER_NODE = 8, 4
NUM_CANDIDATES = 40
SEED = 20230501
"""Seed of the candidates, which were drawn once, before any of them had been traced."""
DEPTHS, WIDTHS = (6, 8, 12, 16, 24), (512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2304, 2560)
"""Blocks and width, with 64 dimensions for each head: from half of GPT-2 to GPT-3 XL (Brown et al., 2020)."""
PARAMETERS = (20e6, 1.6e9)
"""Fewest and most parameters of the blocks: 12 × depth × width². Those with more than about 0.9e9 need several GPUs."""
CONTEXTS, BATCHES = (128, 256, 512, 1024), (8, 16, 32, 64)
"""Tokens of a sample up to those of GPT-2 (Radford et al., 2019), and samples of a step: half and twice the batches of
BERT's fine-tuning (16 and 32; Devlin et al., NAACL 2019, appendix A.3), and those."""
STEPS = (500, 8000)
"""Fewest and most steps of a trial; their logarithms are drawn evenly, as under a rule that stops trials early."""


@dataclass(frozen=True, slots=True)
class Training:
    """One trial of a drawn study: the seconds of its shapes are those of its whole training.

    ``apart`` has for each of the ``options`` the seconds and the share of communication where its ranks are on a node
    of their own each. ``batch`` has the samples of a step.
    """

    options: tuple[Shape, ...]
    apart: tuple[tuple[float, float], ...]
    static: Shape
    static_apart: tuple[float, float]
    batch: int


def draw(seed: int, num_trials: int, *, to_choose: bool = False, among: int | None = None) -> list[Training]:
    """The trials of a study: candidates of the table (the first ``among``), each with its own number of steps.

    Every third candidate is only in studies on which rules may be chosen (``to_choose``); the others are in those that
    judge them.
    """
    source = random.Random(seed)
    candidates = [candidate for index, candidate in enumerate(table()[:among]) if (index % 3 == 0) == to_choose]
    low, high = map(math.log, STEPS)
    return [_training(source.choice(candidates), round(math.exp(source.uniform(low, high)))) for _ in range(num_trials)]


def _training(candidate: Mapping[str, Any], steps: int) -> Training:
    costs = {
        _shape(option, steps): (option[4] * steps, option[5]) for option in [*candidate["options"], candidate["static"]]
    }
    options = pareto(_shape(option, steps) for option in candidate["options"])
    static = _shape(candidate["static"], steps)
    apart = tuple(costs[shape] for shape in options)
    return Training(options, apart, static, costs[static], candidate["params"]["batch"])


def _shape(costs: Sequence[float], steps: int) -> Shape:
    return Shape(int(costs[0]), int(costs[1]), costs[2] * steps, costs[3])


@cache
def table() -> Sequence[Mapping[str, Any]]:
    """The committed candidates that have a plan: parameters, and costs of a step in each shape as [ranks, MiB, seconds,
    communication share, seconds apart, communication share apart]."""
    rows: Sequence[Mapping[str, Any]] = json.loads(TABLE.read_text())
    return [row for row in rows if row["options"] and row["static"]]


def cluster() -> Cluster:
    """The nodes of the benchmark: all memory of each GPU is for one rank, with its context."""
    memory = kind().memory
    assert memory is not None
    mib = int(memory.total.value - memory.context.value) // MIB
    names = product(range(NUM_NODES), range(PER_NODE))
    return Cluster(tuple(Device(f"n{node}/{index}", f"n{node}", index, KIND, mib) for node, index in names))


def kind(*, is_split: bool = False) -> DeviceKind:
    """V100-16 in nodes of four with two adapters of 100 Gbit/s, as those of the Lassen cluster.

    If ``is_split``, each rank of a gang is on a node of its own, with half an adapter.
    """
    gpu_kind = gpu(KIND)
    assert gpu_kind.links is not None
    source = "Lassen (LLNL): a node of four V100-16 has two adapters of 100 Gbit/s"
    speed = Figure(2 * 12e9 / (PER_NODE if is_split else 1), "datasheet", source)
    across = Link(gpu_kind.links.across.latency_seconds, speed)
    domain = Figure(1 if is_split else PER_NODE, "datasheet", source)
    links = replace(gpu_kind.links, domain_size=domain, across=across)
    return replace(gpu_kind, links=links)


def candidates() -> Iterator[Mapping[str, Any]]:
    """Parameters of all candidates, each different, in the order in which they are drawn."""
    source = random.Random(SEED)
    shapes: set[tuple[int, ...]] = set()
    while len(shapes) < NUM_CANDIDATES:
        depth, width, context, batch = map(source.choice, (DEPTHS, WIDTHS, CONTEXTS, BATCHES))
        drawn = depth, width, context, batch
        if drawn in shapes or not PARAMETERS[0] <= 12 * depth * width**2 <= PARAMETERS[1]:
            continue
        shapes.add(drawn)
        fixed = {"depth": depth, "width": width, "heads": width // 64, "precision": "fp16"}
        yield {**fixed, "context": context, "batch": batch}


def main() -> None:
    """Trace the candidates that the table (or a given file) does not have yet, and write the costs of each."""
    from scamp_service.settings import Settings
    from scamp_service.sizing.estimate import Estimator
    from scamp_service.sizing.tracing.options import Tracing

    path = Path(sys.argv[1]) if len(sys.argv) > 1 else TABLE
    costs_by_params = {
        json.dumps(load["params"]): load for load in (json.loads(path.read_text()) if path.exists() else [])
    }
    with Estimator("stdlib_gpt", None, Tracing(Settings().data_dir / "profiles"), kind()) as estimator:
        for params in candidates():
            key = json.dumps(params)
            if key not in costs_by_params:
                costs_by_params[key] = _costs(estimator, params)
                path.write_text("[\n" + ",\n".join(json.dumps(costs) for costs in costs_by_params.values()) + "\n]\n")
            print(json.dumps(costs_by_params[key]), flush=True)


def _costs(estimator: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    from placement.planning.step_seconds import predicted_step
    from scamp_service.sizing.plan_search import Missing

    devices, speed, split = cluster(), kind(), kind(is_split=True)

    def ask(profile: ModelProfile, batch: int) -> dict[int, list[float]] | Missing:
        search = PlanChoice(Question(profile, batch, devices, speed))
        chosen = search.ask()
        if isinstance(chosen, Untraced):
            return Missing([chosen.layout])
        if isinstance(chosen, NoPlan):
            return {}
        best: dict[int, Option] = {chosen.plan.world_size: chosen.options[-1]}
        for num_ranks in DEGREES:
            option = None if num_ranks in best else search.fastest_on(num_ranks)
            if isinstance(option, Untraced):
                return Missing([option.layout])
            if option is not None:
                best[num_ranks] = option
        shapes = {}
        for num_ranks, option in sorted(best.items()):
            step = predicted_step(profile, option.plan, speed)
            assert step is not None
            apart = predicted_step(profile, option.plan, split)
            assert apart is not None
            costs = [step.seconds, step.communication_share, apart.seconds, apart.communication_share]
            shapes[num_ranks] = [num_ranks, option.prediction.reserved_mib, *costs]
        return shapes

    shapes = estimator.ask(params, ask)
    return {"params": params, "options": list(shapes.values()), "static": shapes.get(STATIC)}


if __name__ == "__main__":
    main()
