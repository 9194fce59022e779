"""Proves the optima of small instances by CP-SAT of OR-Tools, which the environment of ScaMP does not have.

``PYTHONPATH=DIR:. python -m benchmarks.packing.solving`` writes ``optima.json`` (see ``optimum_part``).
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from benchmarks.packing.instances import NUM_INSTANCES, Instance, instance
from benchmarks.packing.optimum_part import OPTIMA

SECONDS = 60.0


def main() -> None:
    """Solve every instance, and write those that are proven."""
    cp_model = importlib.import_module("ortools.sat.python.cp_model")
    solutions = {}
    for number in range(NUM_INSTANCES):
        problem = instance(number)
        optimum = solve(cp_model, problem)
        print(number, len(problem.tasks), problem.num_devices, optimum, file=sys.stderr, flush=True)
        if optimum is not None:
            solutions[number] = {"instance": problem.key, "optimum": optimum}
        OPTIMA.write_text(json.dumps(solutions, indent=1) + "\n")


def solve(cp_model: Any, instance_: Instance) -> int | None:
    """The least makespan in seconds; None without a proof."""
    model = cp_model.CpModel()
    horizon = int(sum(max(shape.seconds or 0.0 for shape in shapes) for shapes in instance_.tasks))
    makespan = model.new_int_var(0, horizon, "makespan")
    intervals, demands, areas = [], [], []
    for n, shapes in enumerate(instance_.tasks):
        chosen = [model.new_bool_var(f"c{n}.{m}") for m in range(len(shapes))]
        model.add_exactly_one(chosen)
        start = model.new_int_var(0, horizon, f"s{n}")
        for shape, is_chosen in zip(shapes, chosen, strict=True):
            seconds = int(shape.seconds or 0.0)
            interval = model.new_optional_fixed_size_interval_var(start, seconds, is_chosen, f"i{n}.{shape.num_ranks}")
            intervals.append(interval)
            demands.append(shape.num_ranks)
            areas.append(seconds * shape.num_ranks * is_chosen)
            model.add(start + seconds <= makespan).only_enforce_if(is_chosen)
    model.add_cumulative(intervals, demands, instance_.num_devices)
    model.add(sum(areas) <= instance_.num_devices * makespan)  # follows from the others, and speeds up the proof
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = SECONDS
    solver.parameters.num_workers = 2
    solver.parameters.random_seed = 0
    status = solver.solve(model)
    return int(solver.objective_value) if status == cp_model.OPTIMAL else None


if __name__ == "__main__":
    main()
