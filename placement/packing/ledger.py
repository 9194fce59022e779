"""The MiB of each device that gangs have reserved. Placements are checked against this ledger alone.

It asserts that no device is over-subscribed and that a gang holds all its devices or none. It decides nothing and
measures nothing. A reservation lasts until it is released, even if its device has vanished.
"""

from __future__ import annotations

from collections.abc import Sequence

from placement.model import Cluster, Device, Gang


class Ledger:
    """The reservations on one snapshot of the cluster; at most ``max_gangs_per_device`` gangs share a device."""

    def __init__(self, cluster: Cluster, max_gangs_per_device: int) -> None:
        if max_gangs_per_device < 1:
            raise ValueError(f"max_gangs_per_device must be at least 1, got {max_gangs_per_device}")
        self.max_gangs_per_device = max_gangs_per_device
        self._devices = {device.id: device for device in cluster.devices}
        self._held: dict[str, tuple[Gang, tuple[str, ...]]] = {}  # gang id → gang and the devices of its ranks
        self._on: dict[str, dict[str, int]] = {}  # device id → gang id → MiB; includes devices that have vanished

    # --- queries ---------------------------------------------------------------------------------------------------
    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that can be used now, in the cluster's order."""
        return tuple(self._devices.values())

    @property
    def gangs(self) -> tuple[Gang, ...]:
        """Every gang that holds memory."""
        return tuple(gang for gang, _ in self._held.values())

    def free_mib(self, device_id: str) -> int:
        """MiB not reserved; 0 for a device that has vanished, or that now offers less than is reserved on it."""
        device = self._devices.get(device_id)
        return max(0, device.capacity_mib - sum(self._on.get(device_id, {}).values())) if device else 0

    def gangs_on(self, device_id: str) -> dict[str, int]:
        """MiB reserved on the device by gang id; the device may have vanished."""
        return dict(self._on.get(device_id, {}))

    def is_open(self, device_id: str) -> bool:
        """Whether the device can be used and is below its limit of gangs, whatever memory is free."""
        return device_id in self._devices and len(self._on.get(device_id, {})) < self.max_gangs_per_device

    def fits(self, gang: Gang, device_id: str) -> bool:
        """Whether one rank of the gang can start on the device now."""
        return (
            self.is_open(device_id)
            and gang.id not in self._on.get(device_id, {})
            and gang.mib_per_rank <= self.free_mib(device_id)
        )

    # --- changes ---------------------------------------------------------------------------------------------------
    def place(self, gang: Gang, devices: Sequence[str]) -> None:
        """Reserve memory for every rank, ``devices`` in rank order. Asserts that every rank fits."""
        for device_id in devices:
            assert self.fits(gang, device_id), (
                f"gang {gang.id} needs {gang.mib_per_rank} MiB on {device_id}, which has "
                f"{self.free_mib(device_id)} MiB free and {len(self.gangs_on(device_id))} gangs"
            )
        self._reserve(gang, devices)

    def restore(self, gang: Gang, devices: Sequence[str]) -> None:
        """Enter a gang that already holds its memory, such as an open attempt after a restart.

        This records a fact, so nothing must fit: the devices may have vanished or shrunk, or may allow fewer gangs now.
        """
        self._reserve(gang, devices)

    def release(self, gang_id: str) -> None:
        """Release all memory that the gang holds. Its processes must be known to be gone."""
        assert gang_id in self._held, f"gang {gang_id} holds nothing"
        _, devices = self._held.pop(gang_id)
        for device_id in devices:
            del self._on[device_id][gang_id]

    def _reserve(self, gang: Gang, devices: Sequence[str]) -> None:
        assert gang.id not in self._held, f"gang {gang.id} is already placed"
        assert len(devices) == gang.num_ranks, f"gang {gang.id} has {gang.num_ranks} ranks, got devices {devices}"
        assert len(set(devices)) == len(devices), f"the ranks of gang {gang.id} need different devices, got {devices}"
        self._held[gang.id] = (gang, tuple(devices))
        for device_id in devices:
            self._on.setdefault(device_id, {})[gang.id] = gang.mib_per_rank
