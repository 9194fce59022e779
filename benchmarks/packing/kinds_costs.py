"""The costs of transformer candidates on a cluster of three kinds of GPUs, by our estimators and planner.

``python -m benchmarks.packing.kinds_costs`` traces the first candidates of ``costs`` and writes ``kinds_costs.json``;
started again, it traces those that are missing, some minutes for each. The table is committed, so every run of the
benchmark has the same costs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any

from benchmarks.packing.costs import candidates
from estimators.devices.catalogue import gpu
from estimators.devices.kind import DeviceKind
from estimators.model import MIB
from placement.model import Cluster, Device

TABLE = Path(__file__).with_name("kinds_costs.json")
NODES: Mapping[str, int] = {"A100-40": 2, "V100-16": 4, "T4": 6}
"""Nodes of each kind, the fastest first."""
PER_NODE = 4
WIDEST = 8
"""Most ranks of a trial: wider plans would take hours to trace."""
NUM_CANDIDATES = 16


@cache
def table() -> Sequence[Mapping[str, Any]]:
    """The committed candidates: parameters, and the costs of a step by two rules.

    ``fastest`` are options for the fastest kind on any devices that hold them, each as [ranks, MiB, seconds by kind];
    ``kinds`` are those for each kind, as [ranks, MiB, seconds].
    """
    rows: Sequence[Mapping[str, Any]] = json.loads(TABLE.read_text())
    return [row for row in rows if row["fastest"]]


@cache
def cluster() -> Cluster:
    """The nodes of the benchmark: all memory of each GPU is for one rank, with its context."""
    devices = []
    for name, num_nodes in NODES.items():
        memory = gpu(name).memory
        assert memory is not None
        mib = int(memory.total.value - memory.context.value) // MIB
        places = product(range(num_nodes), range(PER_NODE))
        devices += [Device(f"{name}/{node}/{index}", f"{name}/{node}", index, name, mib) for node, index in places]
    return Cluster(tuple(devices))


def main() -> None:
    """Trace the candidates that the table does not have yet, and write the costs of each."""
    from scamp_service.settings import Settings
    from scamp_service.sizing.estimate import Estimator
    from scamp_service.sizing.tracing.options import Tracing

    rows = json.loads(TABLE.read_text()) if TABLE.exists() else []
    traced = [row["params"] for row in rows]
    fastest = next(iter(NODES))
    with Estimator("stdlib_gpt", None, Tracing(Settings().data_dir / "profiles"), gpu(fastest)) as estimator:
        for params in islice(candidates(), NUM_CANDIDATES):
            if params not in traced:
                rows.append({"params": params, **_costs(estimator, params)})
                TABLE.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)


def _costs(estimator: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    from placement.option import Option
    from placement.planning.answers import ChosenPlan, Untraced
    from placement.planning.planner import choose
    from placement.planning.question import Question
    from placement.planning.step_seconds import predicted_step
    from scamp_service.sizing.plan_search import Missing

    kinds = {name: gpu(name) for name in NODES}
    of_kinds = {name: Cluster(devices.devices[:WIDEST]) for name, devices in cluster().by_kind.items()}
    together = Cluster(tuple(device for devices in of_kinds.values() for device in devices.devices))

    def ask(profile: Any, batch: int) -> dict[str, Any] | Missing:
        def seconds(option: Option, kind: DeviceKind) -> float:
            step = predicted_step(profile, option.plan, kind)
            assert step is not None
            return step.seconds

        def faster(devices: Cluster, kind: DeviceKind) -> Iterator[Option] | Missing:
            answer = choose(Question(profile, batch, devices, kind, WIDEST))
            if isinstance(answer, Untraced):
                return Missing([answer.layout])
            if not isinstance(answer, ChosenPlan):
                return iter(())
            chosen = next(option for option in answer.options if option.plan == answer.plan)
            return iter((chosen, *answer.wider))

        costs_of_kinds: dict[str, Any] = {"kinds": {}}
        for name, devices in of_kinds.items():
            options = faster(devices, kinds[name])
            if isinstance(options, Missing):
                return options
            costs_of_kinds["kinds"][name] = [
                [option.plan.world_size, option.prediction.reserved_mib, seconds(option, kinds[name])]
                for option in options
            ]
        options = faster(together, kinds[next(iter(NODES))])
        if isinstance(options, Missing):
            return options
        costs_of_kinds["fastest"] = [
            [option.plan.world_size, option.prediction.reserved_mib, {n: seconds(option, k) for n, k in kinds.items()}]
            for option in options
        ]
        return costs_of_kinds

    costs: dict[str, Any] = estimator.ask(params, ask)
    return costs


if __name__ == "__main__":
    main()
