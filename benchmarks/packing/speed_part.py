"""The time to find devices for one gang and to reserve them, on clusters of up to ten thousand GPUs."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from placement.model import Cluster, Device, Gang
from placement.packing.ledger import Ledger

PER_NODE, MIB = 8, 80_000
NUM_PLACED = 20_000
WIDTHS, WEIGHTS = (1, 2, 4, 8), (8, 4, 2, 1)

TITLE = "Placing one gang"
HEADER = ("p50 µs", "p99 µs", "gangs", "GPUs, gangs per GPU")
ABOUT = f"""\
Microseconds of processor time to find devices for one gang of 1 to 8 ranks in the ledger and to reserve them, over
{NUM_PLACED} gangs on a cluster that stays nearly full: where a gang does not fit, gangs that were drawn end first. The
time to end them is not counted. The quickest of three runs counts, as other processes slow this one."""


@dataclass(frozen=True)
class Case:
    """A cluster, and how many gangs may share one of its devices."""

    num_devices: int
    max_gangs: int

    def __str__(self) -> str:
        return f"{self.num_devices}, {self.max_gangs}"


@dataclass(frozen=True, slots=True)
class Result:
    """Microseconds of one placement."""

    p50_us: float
    p99_us: float
    num_devices: int

    def row(self) -> list[str]:
        return [f"{self.p50_us:.1f}", f"{self.p99_us:.1f}", str(NUM_PLACED)]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    return [Case(10_000, 1), Case(10_000, 4)] if quick else [Case(64, 4), Case(10_000, 1), Case(10_000, 4)]


def measure(case: Case, seconds: float) -> Result:
    """The quickest of three runs, as other processes slow this one; ``seconds`` is not used."""
    return min((_run(case) for _ in range(3)), key=lambda result: result.p99_us)


def _run(case: Case) -> Result:
    source = random.Random(0)
    devices = (Device(f"d{n}", f"n{n // PER_NODE}", n % PER_NODE, "gpu", MIB) for n in range(case.num_devices))
    ledger = Ledger(Cluster(tuple(devices)), case.max_gangs)
    held: list[str] = []
    times: list[float] = []
    gc.collect()
    gc.disable()
    try:
        for number in range(NUM_PLACED):
            num_ranks = source.choices(WIDTHS, WEIGHTS)[0]
            gang = Gang(str(number), num_ranks, source.randint(1_000, MIB))
            while True:
                began = time.thread_time()
                gang_devices = ledger.find(gang.num_ranks, gang.mib_per_rank)
                if gang_devices is not None:
                    ledger.place(gang, gang_devices)
                    times.append(time.thread_time() - began)
                    held.append(gang.id)
                    break
                place = source.randrange(len(held))
                held[place], held[-1] = held[-1], held[place]
                ledger.release(held.pop())
    finally:
        gc.enable()
    times.sort()
    return Result(1e6 * median(times), 1e6 * times[int(0.99 * len(times))], case.num_devices)


def figures(results: Sequence[Result]) -> dict[str, float]:
    return {"place_p99_us": max(result.p99_us for result in results if result.num_devices == 10_000)}
