"""The batch of a candidate, the samples of one optimizer step over all ranks: what its parameters ask for.

Everything that needs a candidate's batch before it has a plan reads it here; afterwards it is ``Plan.batch``. Which
batch fits is decided elsewhere, by ``scamp_service.sizing.batches``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LARGEST = "largest"
"""The value of ``batch`` with which ScaMP chooses the largest one that fits."""
MOST_SAMPLES = 1024
"""The largest batch that is chosen where ``largest_batch`` is not given."""
BOUNDS = ("smallest_batch", "largest_batch")
_DIGITS = 4  # binary ones


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """The batch that a candidate asks for.

    ``samples`` is its number, None for the workload's default, or where ScaMP chooses the largest that fits
    (``takes_largest``). A batch that is chosen, or that changes while the candidate trains, has at least ``smallest``
    samples and at most ``largest``. The learning rate is meant for a batch of ``base``, if that is given. It ``scales``
    with the batch by AdaScale, and so does the number of steps.
    """

    samples: int | None = None
    takes_largest: bool = False
    smallest: int | None = None
    largest: int | None = None
    base: int | None = None
    scales: bool = False

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> BatchRequest:
        """The request in a candidate's parameters. Raises ``ValueError`` for a batch that is none."""
        batch = params.get("batch")
        if "batch" in params and (complaint := wrong_batch(batch)):
            raise ValueError(complaint)
        return cls(
            samples=None if batch == LARGEST else batch,
            takes_largest=batch == LARGEST,
            smallest=params.get("smallest_batch"),
            largest=params.get("largest_batch"),
            base=params.get("base_batch"),
            scales=params.get("scale_lr") == "adascale",
        )

    @property
    def changes(self) -> bool:
        """Whether a training may continue with another batch on another number of devices."""
        return self.scales and not self.takes_largest and (self.smallest or self.largest) is not None

    @property
    def least(self) -> int:
        """Samples of the smallest batch that may be chosen."""
        return max(self.smallest or 1, self.base or 1)

    @property
    def most(self) -> int:
        """Samples of the largest batch that may be chosen, where the training set has as many."""
        return max(self.largest or MOST_SAMPLES, self.least)

    def choose(self, at_once: int, num_shares: int, most: int) -> int:
        """The largest batch, up to ``most``, that ``num_shares`` ranks compute without micro-batches.

        A rank computes ``at_once`` samples at most. Beyond four binary digits the number is rounded down, by less than
        an eighth, so that more ranks and smaller micro-batches divide the batch as well.
        """
        share = min(at_once, most // num_shares)
        rest = max(0, share.bit_length() - _DIGITS)
        return most if share * num_shares == most else max(self.least, (share >> rest << rest) * num_shares)

    def others(self, batch: int) -> list[int]:
        """Batches with which a training that begins with ``batch`` may continue: halves and doubles, ascending."""
        if not self.changes:
            return []
        halves = [batch >> n for n in range(1, batch.bit_length()) if batch % (1 << n) == 0]
        doubles = [batch << n for n in range(1, ((self.largest or batch) // batch).bit_length())]
        return [half for half in halves if half >= (self.smallest or batch)][::-1] + doubles


def wrong_batch(value: object) -> str:
    """The reason why ``batch`` cannot have this value, in words; empty if it can."""
    if value == LARGEST or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return ""
    words = "batch is the number of samples per optimizer step, an integer of at least 1, or largest"
    return f"{words}; got {value!r}"


def with_batch(params: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """The parameters of a candidate that has been given this batch, for good."""
    return {name: value for name, value in params.items() if name not in BOUNDS} | {"batch": batch}


def to_try(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters with a number of samples as the batch, the largest that may be chosen."""
    request = BatchRequest.of(params)
    return with_batch(params, request.most) if request.takes_largest else params
