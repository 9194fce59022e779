"""The true needs of simulated candidates, whatever the sizer predicts."""

from __future__ import annotations

from scamp_service.control.executor import Order
from scamp_service.model import Json


def truth_mib(params: Json) -> int:
    """MiB that one rank of this candidate really needs; the sizer predicts less for those with a ``spike``, or with a
    ``gang_spike`` that only ranks of a gang have."""
    in_gangs = int(params.get("gang_spike", 0)) if params["ranks"] > 1 else 0
    return tensors_mib(params) + int(params.get("spike", 0)) + in_gangs


def grown_mib(params: Json, num_ranks: int) -> int:
    """MiB that ranks need besides after half of the steps, such as states of parameters that are trained then: this
    many times what one rank of the trace needs, divided over the ranks."""
    return -(-int(params.get("grows", 0)) * int(params["mib"]) // num_ranks)


def fits_when_grown(params: Json, num_devices: int) -> bool:
    """Whether ranks that a candidate may have are enough for all that it will ever need."""
    ranks = max(4, params["ranks"])
    return ranks <= num_devices and truth_mib(params) + grown_mib(params, ranks) <= 96


def tensors_mib(params: Json) -> int:
    """MiB measured in an early step; the sizer predicts less where the trace has ``missed`` some."""
    return int(params["mib"]) + int(params.get("missed", 0))


def step_seconds(order: Order) -> float:
    """Reported seconds of a step; the sizer predicts a second for one rank. Steps of the world take half a second."""
    return float(order.candidate.params.get("slow", 1.0)) / order.plan.world_size


def objective(trial_id: int, attempt: int, step: int) -> float:
    """Tells which attempt reported it, so that a value of a stale attempt is recognised."""
    return step + attempt / 1_000 + (trial_id % 7) / 100_000


SLOW = 1000
"""Makes trials so long that it is worth while to interrupt them for a wider plan."""
