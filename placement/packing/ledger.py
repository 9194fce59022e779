"""The MiB of each device that gangs have reserved. Placements are checked against this ledger alone.

It asserts that no device is over-subscribed and that a gang holds all its devices or none. It finds devices for a gang
in microseconds, but decides nothing about which gang comes first, and measures nothing. A reservation lasts until it is
released, even if its device has vanished. It also knows where idle ranks are ready.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType

from placement.model import NONE_READY, Cluster, Device, Gang, Ready, Shape
from placement.packing.index import ABSENT, FreeIndex

_NOTHING: Mapping[str, int] = MappingProxyType({})
_NO_SPEEDS: Mapping[str, float] = MappingProxyType({})
_NO_RANKS: frozenset[str | None] = frozenset()


@dataclass(slots=True)
class _Account:
    """The gangs on one device, with the MiB of each; ``position`` is None for a device that has vanished."""

    device: Device | None = None
    position: int | None = None
    gangs: dict[str, int] = field(default_factory=dict)
    held_mib: int = 0

    @property
    def free_mib(self) -> int:
        return max(0, self.device.capacity_mib - self.held_mib) if self.device else 0


class Ledger:
    """The reservations on one snapshot of the cluster; at most ``max_gangs_per_device`` gangs share a device.

    ``version`` grows with every change: what was found at an older version may be outdated. ``ready`` says where idle
    ranks were before any gang was placed.
    """

    def __init__(self, cluster: Cluster, max_gangs_per_device: int, ready: Ready = NONE_READY) -> None:
        if max_gangs_per_device < 1:
            raise ValueError(f"max_gangs_per_device must be at least 1, got {max_gangs_per_device}")
        self.max_gangs_per_device = max_gangs_per_device
        self.version = 0
        self.devices: Sequence[Device] = cluster.devices
        """The devices that can be used now, in the cluster's order."""
        self.capacities = sorted(device.capacity_mib for device in cluster.devices)
        """MiB of each device, in ascending order."""
        self.kinds = frozenset(device.kind for device in cluster.devices)
        """The kinds of the devices that can be used now."""
        self._accounts = {device.id: _Account(device, n) for n, device in enumerate(cluster.devices)}
        self._held: dict[str, tuple[Gang, tuple[str, ...]]] = {}  # gang id → gang and the devices of its ranks
        self._kept: dict[str, int | None] = {}  # devices that are kept for a gang: the MiB of its rank, see ``keep``
        self._ready = ready
        self._ready_of_node: dict[str, list[str]] = {}
        for device in cluster.devices if ready else ():
            if device.id in ready:
                self._ready_of_node.setdefault(device.node, []).append(device.id)
        self._placed: set[str] = set()  # gangs that were placed, not restored: each takes an idle rank
        nodes: dict[str, int] = {}
        node_of = [nodes.setdefault(device.node, len(nodes)) for device in cluster.devices]
        self._node_of = node_of
        self._fewest_nodes: dict[tuple[int, int], int] = {}
        self._idle_index: FreeIndex | None = None
        self._open = FreeIndex(node_of)  # devices below their limit of gangs
        self._enter(self._accounts.values())

    # --- queries ---------------------------------------------------------------------------------------------------
    @property
    def gangs(self) -> tuple[Gang, ...]:
        """Every gang that holds memory."""
        return tuple(gang for gang, _ in self._held.values())

    def holds(self, gang_id: str) -> bool:
        """Whether the gang holds memory."""
        return gang_id in self._held

    def devices_of(self, gang_id: str) -> tuple[str, ...]:
        """Devices of a gang that holds memory, in rank order."""
        return self._held[gang_id][1]

    def has(self, device_id: str) -> bool:
        """Whether the device can be used now."""
        account = self._accounts.get(device_id)
        return account is not None and account.device is not None

    def device(self, device_id: str) -> Device:
        """A device that can be used now."""
        device = self._accounts[device_id].device
        assert device is not None, f"device {device_id} has vanished"
        return device

    def free_mib(self, device_id: str) -> int:
        """MiB not reserved; 0 for a device that has vanished, or that now offers less than is reserved on it."""
        account = self._accounts.get(device_id)
        return account.free_mib if account else 0

    def gangs_on(self, device_id: str) -> Mapping[str, int]:
        """MiB reserved on the device by gang id; the device may have vanished."""
        account = self._accounts.get(device_id)
        return MappingProxyType(account.gangs) if account else _NOTHING

    def is_open(self, device_id: str) -> bool:
        """Whether the device can be used and is below its limit of gangs, whatever memory is free."""
        account = self._accounts.get(device_id)
        return account is not None and account.device is not None and len(account.gangs) < self.max_gangs_per_device

    def fits(self, gang: Gang, device_id: str) -> bool:
        """Whether one rank of the gang can start on the device now."""
        account = self._accounts.get(device_id)
        if account is None or account.device is None:
            return False
        gangs = account.gangs
        has_room = len(gangs) < self.max_gangs_per_device and gang.id not in gangs
        return has_room and gang.mib_per_rank <= account.free_mib

    @property
    def is_any_ready(self) -> bool:
        """Whether any idle rank is known."""
        return bool(self._ready_of_node)

    def ready_on(self, device_id: str) -> frozenset[str | None]:
        """Archives of user code that idle ranks of the device have run (see ``Ready``); none once a gang was placed
        there."""
        ready = self._ready.get(device_id, _NO_RANKS)
        return ready if not ready or self._placed.isdisjoint(self._accounts[device_id].gangs) else _NO_RANKS

    def ready_beside(self, device_id: str) -> Sequence[str]:
        """Devices with idle ranks on the node of this one."""
        return self._ready_of_node.get(self.device(device_id).node, ())

    def are_equal(self, device_id: str, other_id: str) -> bool:
        """Whether no policy prefers one of two open devices of a node: they have one kind and size, as much memory free
        and as many gangs. False if the other one is kept for a gang."""
        account, other = self._accounts[device_id], self._accounts[other_id]
        device, other_device = self.device(device_id), self.device(other_id)
        is_same_kind = (device.kind, device.capacity_mib) == (other_device.kind, other_device.capacity_mib)
        is_as_full = (account.held_mib, len(account.gangs)) == (other.held_mib, len(other.gangs))
        return is_same_kind and is_as_full and other_id not in self._kept

    def num_offering(self, mib: int) -> int:
        """Number of devices in the cluster with such a capacity, whatever is free of it."""
        return len(self.capacities) - bisect_left(self.capacities, mib)

    def could_hold(self, shape: Shape) -> bool:
        """Whether the empty cluster has devices for such a gang."""
        if not shape.mibs:
            return self.num_offering(shape.mib_per_rank) >= shape.num_ranks
        return all(self.num_offering(mib) > rank for rank, mib in enumerate(sorted(shape.mibs, reverse=True)))

    def fewest_nodes(self, num_ranks: int, mib: int) -> int:
        """The fewest nodes of the empty cluster that have such devices; 0 if all have too few."""
        demand = num_ranks, self.num_offering(mib)  # few values, unlike MiB
        if demand not in self._fewest_nodes:
            sizes = Counter(device.node for device in self.devices if device.capacity_mib >= mib).values()
            wholes = accumulate(sorted(sizes, reverse=True))
            num_nodes = next((n for n, devices in enumerate(wholes, 1) if devices >= num_ranks), 0)
            self._fewest_nodes[demand] = num_nodes
        return self._fewest_nodes[demand]

    def num_nodes(self, devices: Iterable[str]) -> int:
        """Number of nodes of these devices, none of which has vanished."""
        return len({self.device(device).node for device in devices})

    def num_idle(self) -> int:
        """Number of devices without any gang that are kept for none."""
        return self._idle.num_with(0)

    def with_room(self, mib: int) -> set[str]:
        """The devices with so much free on which a gang may start, without those that are kept for one."""
        return {self.devices[position].id for position in self._open.devices_with(mib)}

    def free_mibs(self) -> list[int]:
        """Free MiB of each device where a gang may start, also of those kept for one; in ascending order."""
        free_mibs = self._open.free_mibs()
        for device in filter(self.is_open, self._kept):
            position = self._accounts[device].position
            assert position is not None
            if (beside_mib := self._open.free(position)) != ABSENT:
                free_mibs.remove(beside_mib)
            free_mibs.append(self.free_mib(device))
        return sorted(free_mibs)

    def fewest_ends(self, num_ranks: int, mib: int) -> tuple[str, ...]:
        """The devices on which the fewest gangs must end before such a gang can start, whenever they end.

        Empty if even the empty cluster is too small. Ties are broken by the cluster's order: with free MiB the choice
        would change each time that another gang ends.
        """
        if self.num_offering(mib) < num_ranks:
            return ()
        at_once = set(self._open.devices_with(mib))
        later: dict[int, list[int]] = {}
        left = num_ranks - len(at_once)
        for position, device in enumerate(self.devices):
            if left <= len(later.get(1, ())):
                break  # no other device is better than these
            if device.capacity_mib >= mib and position not in at_once:
                later.setdefault(self._ends_needed(device, mib), []).append(position)
        by_ends = [sorted(at_once), *(later[ends] for ends in sorted(later))]
        devices = self._named([position for positions in by_ends for position in positions][:num_ranks])
        assert devices is not None
        return devices

    def _ends_needed(self, device: Device, mib: int) -> int:
        """The fewest gangs that must end before ``mib`` are free and a gang may start; the largest end first."""
        account = self._accounts[device.id]
        free, slots, ends = account.free_mib, self.max_gangs_per_device - len(account.gangs), 0
        for held_mib in sorted(account.gangs.values(), reverse=True):
            if free >= mib and slots > 0:
                break
            free, slots, ends = free + held_mib, slots + 1, ends + 1
        return ends

    def _beside_mib(self, device: Device, mib: int | None) -> int:
        """MiB that may be given away on a device that is kept for a rank that needs ``mib``."""
        if mib is None:
            return ABSENT
        account = self._accounts[device.id]
        ends = self._ends_needed(device, mib)
        largest = sorted(account.gangs.values(), reverse=True)[:ends]
        free_mib = device.capacity_mib - account.held_mib + sum(largest) - mib
        has_slot = len(account.gangs) - ends + 2 <= self.max_gangs_per_device
        return free_mib if has_slot and free_mib > 0 else ABSENT

    def find(self, num_ranks: int, mib: int) -> tuple[str, ...] | None:
        """The fullest devices that have room for such a gang, on one node if possible; None if there are too few."""
        return self._named(self._open.find(num_ranks, mib))

    def find_for(self, shape: Shape) -> tuple[str, ...] | None:
        """The fullest devices that have room for such a gang, in rank order; None if there are too few."""
        return self.find_uneven(shape) if shape.mibs else self.find(shape.num_ranks, shape.mib_per_rank)

    def find_uneven(
        self, shape: Shape, speeds: Mapping[str, float] = _NO_SPEEDS, *, idle: bool = False
    ) -> tuple[str, ...] | None:
        """Devices for ranks that take unlike shares, in rank order; None if there are too few.

        The rank that needs most MiB, which has the largest share, gets the fastest device with room for it by the
        ``speeds`` of kinds; then the rank that needs most of the others gets the slowest one on which it ends no later,
        and so on. Of equally fast devices the fullest is taken. With ``idle`` devices have no gangs. A device for a
        rank has room for all ranks that come later, so this finds devices wherever there are any.
        """
        index = self._idle if idle else self._open
        free = {position: index.free(position) for position in index.devices_with(min(shape.mibs))}
        return self._by_need(shape, free, speeds)

    def find_uneven_later(self, shape: Shape, speeds: Mapping[str, float]) -> tuple[str, ...]:
        """The devices that ``find_uneven`` finds in the empty cluster; empty if it is too small."""
        return self._by_need(shape, {n: device.capacity_mib for n, device in enumerate(self.devices)}, speeds) or ()

    def _by_need(self, shape: Shape, free: dict[int, int], speeds: Mapping[str, float]) -> tuple[str, ...] | None:
        mibs, chosen, least_seconds = shape.mibs, dict[int, str](), 0.0
        for rank in sorted(range(len(mibs)), key=lambda rank: (-mibs[rank], -shape.samples[rank])):
            able = [position for position, mib in free.items() if mib >= mibs[rank]]
            if not able:
                return None
            seconds = {n: shape.samples[rank] / speeds.get(self.devices[n].kind, 1.0) for n in able}
            in_time = {n: seconds[n] for n in able if seconds[n] <= least_seconds}
            best = min(able, key=lambda n: (-in_time.get(n, 0.0), seconds[n], free[n], n))
            least_seconds = max(least_seconds, seconds[best])
            chosen[rank] = self.devices[best].id
            del free[best]
        return tuple(chosen[rank] for rank in range(len(mibs)))

    def find_idle(self, num_ranks: int, mib: int) -> tuple[str, ...] | None:
        """Devices without gangs, on one node if possible; None if there are too few."""
        return self._named(self._idle.find(num_ranks, mib))

    def find_least_shared(self, num_ranks: int, mib: int) -> tuple[str, ...] | None:
        """The devices with the fewest gangs that have room, on one node if possible; None if there are too few."""
        positions = self._idle.find(num_ranks, mib)
        if positions is not None and self._on_one_node(positions):
            return self._named(positions)
        able = self._open.devices_with(mib)
        if len(able) < num_ranks:
            return None
        able.sort(key=self._num_gangs)  # stable: then the fullest
        return self._named(self._near_each_other(able, num_ranks))

    def _near_each_other(self, able: Sequence[int], num_ranks: int) -> Sequence[int]:
        """``num_ranks`` devices on the node where they share the least, or else on as few nodes as possible."""
        nodes: dict[str, list[int]] = {}
        for position in able:
            nodes.setdefault(self.devices[position].node, []).append(position)
        large_enough = [node[:num_ranks] for node in nodes.values() if len(node) >= num_ranks]
        if large_enough:
            return min(
                large_enough, key=lambda node: (sum(map(self._num_gangs, node)), sum(map(self._open.free, node)), node)
            )
        by_size = sorted(nodes.values(), key=lambda node: (-len(node), self._open.free(node[0]), node[0]))
        return [position for node in by_size for position in node][:num_ranks]

    def _on_one_node(self, positions: Sequence[int]) -> bool:
        return len({self.devices[position].node for position in positions}) == 1

    def _num_gangs(self, position: int) -> int:
        return len(self._accounts[self.devices[position].id].gangs)

    def _named(self, positions: Sequence[int] | None) -> tuple[str, ...] | None:
        return None if positions is None else tuple(self.devices[position].id for position in positions)

    @property
    def _idle(self) -> FreeIndex:
        """The devices without gangs. Most rounds ask for none, so it is made when it is first needed."""
        if self.max_gangs_per_device == 1:
            return self._open
        if self._idle_index is None:
            self._idle_index = FreeIndex(self._node_of)
            self._enter(self._accounts.values())
        return self._idle_index

    # --- changes ---------------------------------------------------------------------------------------------------
    def place(self, gang: Gang, devices: Sequence[str]) -> None:
        """Reserve memory for every rank, ``devices`` in rank order. Asserts that every rank fits."""
        assert len(devices) == gang.num_ranks, f"gang {gang.id} has {gang.num_ranks} ranks, got devices {devices}"
        accounts = [self._accounts.get(device_id) for device_id in devices]
        most = self.max_gangs_per_device
        for account, device_id, mib in zip(accounts, devices, gang.mib_of_ranks, strict=True):
            assert (
                account is not None
                and account.device is not None
                and len(account.gangs) < most
                and gang.id not in account.gangs
                and account.held_mib + mib <= account.device.capacity_mib
            ), (
                f"gang {gang.id} needs {mib} MiB on {device_id}, which has "
                f"{self.free_mib(device_id)} MiB free and {len(self.gangs_on(device_id))} gangs"
            )
        self._reserve(gang, devices)
        self._placed.add(gang.id)

    def restore(self, gang: Gang, devices: Sequence[str]) -> None:
        """Enter a gang that already holds its memory, such as an open attempt after a restart.

        This records a fact, so nothing must fit: the devices may have vanished or shrunk, or may allow fewer gangs now.
        """
        self._reserve(gang, devices)

    def release(self, *gang_ids: str) -> None:
        """Release all memory that the gangs hold. Their processes must be known to be gone."""
        accounts: list[_Account] = []
        for gang_id in gang_ids:
            assert gang_id in self._held, f"gang {gang_id} holds nothing"
            self.version += 1
            self._placed.discard(gang_id)
            for device_id in self._held.pop(gang_id)[1]:
                account = self._accounts[device_id]
                account.held_mib -= account.gangs.pop(gang_id)
                accounts.append(account)
        self._enter(accounts)

    def keep(self, devices: Iterable[str], mib: int | None = None) -> None:
        """Let no ``find`` return these devices, until ``give_back``.

        With ``mib``, what the gang needs that they are kept for, gangs may start there that fit beside it: those for
        which no more of the present gangs must end before it can start.
        """
        kept = list(devices)
        self._kept.update(dict.fromkeys(kept, mib))
        self._enter(self._accounts[device_id] for device_id in kept)

    def give_back(self, devices: Iterable[str]) -> None:
        """Undo ``keep``."""
        free = list(devices)
        for device_id in free:
            self._kept.pop(device_id, None)
        self._enter(self._accounts[device_id] for device_id in free)

    def _reserve(self, gang: Gang, devices: Sequence[str]) -> None:
        assert gang.id not in self._held, f"gang {gang.id} is already placed"
        assert len(devices) == gang.num_ranks, f"gang {gang.id} has {gang.num_ranks} ranks, got devices {devices}"
        assert len(set(devices)) == len(devices), f"the ranks of gang {gang.id} need different devices, got {devices}"
        self.version += 1
        self._held[gang.id] = (gang, tuple(devices))
        accounts = [self._accounts.get(name) or self._accounts.setdefault(name, _Account()) for name in devices]
        for account, mib in zip(accounts, gang.mib_of_ranks, strict=True):
            account.gangs[gang.id] = mib
            account.held_mib += mib
        self._enter(accounts)

    def _enter(self, accounts: Iterable[_Account]) -> None:
        """Bring the indexes up to date for these devices; those that have vanished are in none."""
        opened: list[tuple[int, int]] = []
        idle: list[tuple[int, int]] = []
        most, kept = self.max_gangs_per_device, self._kept
        for account in accounts:
            device, position = account.device, account.position
            if device is None or position is None:
                continue
            num_gangs = len(account.gangs)
            free_mib = device.capacity_mib - account.held_mib
            if num_gangs >= most:
                free_mib = ABSENT
            elif device.id in kept:
                free_mib = max(ABSENT, min(free_mib, self._beside_mib(device, kept[device.id])))
            elif free_mib < 0:
                free_mib = 0
            opened.append((position, free_mib))
            idle.append((position, ABSENT if num_gangs or device.id in kept else free_mib))
        self._open.set(opened)
        if self._idle_index is not None:
            self._idle_index.set(idle)
