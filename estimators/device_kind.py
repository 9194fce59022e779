"""How fast a kind of device does work, and how long a step takes on it. Pure; ``workloads.calibrate`` measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from estimators.work import OP_KINDS, Work


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds for one of each of ``estimators.work.AMOUNTS``."""

    per_op: float
    per_flop: float
    per_byte: float
    per_fresh_byte: float = 0.0

    def seconds(self, amounts: Sequence[float]) -> float:
        return sum(amount * rate for amount, rate in zip(amounts, self.to_json(), strict=True))

    def to_json(self) -> list[float]:
        return [self.per_op, self.per_flop, self.per_byte, self.per_fresh_byte]


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """A model of device. ``rates`` are by the kind of operation (``OP_KINDS``); a kind without one takes no time.

    ``provenance`` says where the rates come from, and when.
    """

    name: str
    rates: Mapping[str, Rate]
    provenance: str

    def seconds(self, work: Work) -> float:
        """Of one rank that does ``work`` alone on its device, one operation after another."""
        return sum(rate.seconds(work.of(kind)) for kind, rate in self.rates.items())

    def to_json(self) -> dict[str, Any]:
        rates = {kind: rate.to_json() for kind, rate in self.rates.items()}
        return {"name": self.name, "provenance": self.provenance, "rates": rates}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeviceKind:
        """Raises ValueError, KeyError or TypeError on anything but what ``to_json`` gives."""
        rates = {str(kind): Rate(*map(float, rate)) for kind, rate in data["rates"].items()}
        if unknown := rates.keys() - set(OP_KINDS):
            raise ValueError(f"unknown kinds of operation: {', '.join(sorted(unknown))}")
        return cls(str(data["name"]), rates, str(data["provenance"]))
