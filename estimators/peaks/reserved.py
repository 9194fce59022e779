"""Peak memory of one rank on a GPU as a function of the micro-batch: what the caching allocator needs, not what tensors
hold. It needs a step log, and is exact by replay, which takes a few milliseconds for each micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from estimators.model import PeakCurve
from estimators.peaks.allocator import replay, smallest_capacity
from estimators.peaks.step_log import StepLog


@dataclass(frozen=True, slots=True)
class ReservedCurve:
    """A ``PeakCurve`` of the memory that the caching allocator needs.

    ``curve`` has the peaks of tensors. The category ``slack`` is what the allocator needs beyond them, because it
    rounds sizes up and because its free memory is in pieces.
    """

    curve: PeakCurve
    log: StepLog
    expandable: bool = False
    _peaks: dict[int, int] = field(default_factory=dict, compare=False, repr=False)
    _largest: dict[int, int] = field(default_factory=dict, compare=False, repr=False)

    def peak_bytes(self, micro_batch: int) -> int:
        """The smallest capacity, in bytes, with which two steps run."""
        if micro_batch not in self._peaks:
            run, streams = self.log.run(micro_batch), self.log.streams(micro_batch)
            least = smallest_capacity(run, streams=streams, expandable=self.expandable)
            self._peaks[micro_batch] = max(least, self.curve.peak_bytes(micro_batch))
        return self._peaks[micro_batch]

    def parts(self, micro_batch: int) -> dict[str, int]:
        """Bytes of the peak by category: those of the tensors, and ``slack``."""
        slack = self.peak_bytes(micro_batch) - self.curve.peak_bytes(micro_batch)
        return {**self.curve.parts(micro_batch), "slack": slack}

    def largest_batch(self, capacity_bytes: int) -> int:
        """Largest micro-batch found to run with ``capacity_bytes``; 0 when not even one sample does.

        The tensors alone give an upper bound. From there the search goes down in doubling steps until a micro-batch
        fits, and then bisects.
        """
        if capacity_bytes not in self._largest:
            self._largest[capacity_bytes] = self._search(capacity_bytes)
        return self._largest[capacity_bytes]

    def _search(self, capacity_bytes: int) -> int:
        too_large = self.curve.largest_batch(capacity_bytes) + 1
        fitting, step = too_large - 1, 1
        while fitting > 0 and not self._fits(fitting, capacity_bytes):
            too_large, fitting, step = fitting, max(0, fitting - step), step * 2
        while too_large - fitting > 1:
            middle = (fitting + too_large) // 2
            if self._fits(middle, capacity_bytes):
                fitting = middle
            else:
                too_large = middle
        return fitting

    def _fits(self, micro_batch: int, capacity_bytes: int) -> bool:
        run, streams = self.log.run(micro_batch), self.log.streams(micro_batch)
        return replay(run, streams=streams, capacity_bytes=capacity_bytes, expandable=self.expandable).fits
