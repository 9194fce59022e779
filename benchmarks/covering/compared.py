"""A predicted peak compared with what a real run takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from estimators.model import MIB


@dataclass(frozen=True, slots=True)
class Compared:
    """Bytes that are predicted and measured; ``refusal`` says why there is no prediction."""

    predicted: int
    measured: int
    refusal: str

    @property
    def error_pct(self) -> float:
        """Error of the prediction in percent of the measured bytes; negative: too low."""
        return 100 * (self.predicted / self.measured - 1)

    def cells(self, sizes: Sequence[int]) -> list[str]:
        """Cells of a table: these bytes in MiB, and the error."""
        return [*(f"{num_bytes / MIB:.1f}" for num_bytes in sizes), f"{self.error_pct:+.2f} %"]
