"""The makespan of drawn studies on two kinds of GPUs, where the policy knows their speeds and where it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean

from benchmarks.packing.costs import draw
from estimators.devices.catalogue import gpu
from estimators.model import MIB
from placement.model import Cluster, Device
from placement.packing.kinds import speeds_of
from placement.packing.packer import pack
from placement.simulation.progress import Domains
from placement.simulation.schedule import Job, Schedule, ScheduleOptions, schedule

KINDS = ("V100-16", "T4")
NODES_OF_KIND, PER_NODE = 4, 4
NUM_TRIALS = 200
SPEEDS: Mapping[str, float] = speeds_of(frozenset(KINDS))

TITLE = "A study of 200 transformers on 16 V100-16 and 16 T4"
HEADER = ("alike h", "ours h", "bound h", "ratio", "seed")
ABOUT = f"""\
The studies of the first table, on 4 nodes of 4 V100-16 and 4 nodes of 4 T4. A T4 is {SPEEDS["T4"]:.2f} times as fast by
the matrix products of data sheets, and a gang is as fast as its slowest rank. "Ours" is `pack`, which knows the kinds
(`placement/packing/kinds.py`); "alike" is the same policy on devices that it takes to be of one kind. "Bound" is the
time of the fewest device-seconds, where a T4 counts as {SPEEDS["T4"]:.2f} devices. Plans are those for V100-16."""


@dataclass(frozen=True, slots=True)
class Result:
    """Hours of the makespans and of the bound."""

    alike_hours: float
    hours: float
    bound_hours: float

    @property
    def ratio(self) -> float:
        """Our makespan over that of equal devices."""
        return self.hours / self.alike_hours

    def row(self) -> list[str]:
        return [f"{hours:.2f}" for hours in (self.alike_hours, self.hours, self.bound_hours)] + [f"{self.ratio:.3f}"]


def cases(quick: bool, seed: int) -> Sequence[int]:
    return range(seed, seed + (1 if quick else 10))


def measure(case: int, seconds: float) -> Result:
    """Simulate one study with and without knowing the kinds; ``seconds`` is not used."""
    jobs = [Job(f"{n}", trial.options) for n, trial in enumerate(draw(case, NUM_TRIALS))]
    ours, alike = run(jobs, knows=True), run(jobs, knows=False)
    work = sum(min(shape.device_seconds or 0.0 for shape in job.shapes) for job in jobs)
    bound = work / (NODES_OF_KIND * PER_NODE * sum(SPEEDS.values()))
    return Result(alike.makespan / 3600, ours.makespan / 3600, bound / 3600)


def run(jobs: Sequence[Job], *, knows: bool) -> Schedule:
    """The jobs under ``pack``, which either knows the kinds or takes all devices to be of the first one."""
    devices = devices_of(NODES_OF_KIND, PER_NODE)
    speeds = {device.id: SPEEDS[device.kind] for device in devices}
    seen = devices if knows else [replace(device, kind=KINDS[0]) for device in devices]
    return schedule(jobs, Cluster(tuple(seen)), pack, ScheduleOptions(domains=Domains({}, speeds)))


def devices_of(num_nodes: int, per_node: int) -> list[Device]:
    """The devices of so many nodes of each kind."""
    return [
        Device(f"{kind}/{node}/{n}", f"{kind}/{node}", n, kind, _mib(kind))
        for kind, node, n in product(KINDS, range(num_nodes), range(per_node))
    ]


def _mib(kind: str) -> int:
    memory = gpu(kind).memory
    assert memory is not None
    return int(memory.total.value - memory.context.value) // MIB


def figures(results: Sequence[Result]) -> dict[str, float]:
    return {"mixed_ratio": fmean(result.ratio for result in results)}
