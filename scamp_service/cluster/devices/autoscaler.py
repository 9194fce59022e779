"""Tells Ray's autoscaler how many devices are wanted, and says which idle nodes it may have back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from placement.packing.autoscaling import nodes_to_give_back

IDLE_SECONDS = 60.0
"""A node is given back when it was not needed for so long: the next trials often come right after the last ones."""


def _request(bundles: Sequence[Mapping[str, float]]) -> None:
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[dict(bundle) for bundle in bundles])


class Autoscaler:
    """The wish for a number of devices, of which Ray keeps the last one, and the nodes that are given back.

    Not thread-safe: its owner holds a lock.
    """

    def __init__(
        self,
        request: Callable[[Sequence[Mapping[str, float]]], Any] = _request,
        monotonic: Callable[[], float] = time.monotonic,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._request, self._monotonic, self._idle_seconds = request, monotonic, idle_seconds
        self._asked: tuple[str, int] | None = None
        self._wanted: int | None = None  # not known before the first cycle of the controller
        self._idle_since: dict[str, float] = {}
        self.given_back: frozenset[str] = frozenset()

    def want(self, num_devices: int) -> None:
        """The controller wants this many devices."""
        self._wanted = num_devices

    def follow(self, num_devices: Mapping[str, int], in_use: frozenset[str], unit: str) -> None:
        """Ask for the devices that are wanted, as bundles of one ``unit``, and update ``given_back``.

        ``num_devices`` are those of each living node, also of those that are given back.
        """
        if self._wanted is None:
            return
        if self._asked != (unit, self._wanted):
            self._request([{unit: 1.0}] * self._wanted)
            self._asked = unit, self._wanted
        now = self._monotonic()
        idle = nodes_to_give_back(num_devices, in_use, self._wanted)
        self._idle_since = {node: self._idle_since.get(node, now) for node in idle}
        self.given_back = frozenset(
            node for node, since in self._idle_since.items() if now - since >= self._idle_seconds
        )

    def end(self) -> None:
        """Want nothing any more."""
        self._request([])
