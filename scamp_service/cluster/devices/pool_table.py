"""Names the pools of placement groups by their owner, so that several ScaMPs on one Ray cluster leave each other alone.

Placement groups of all namespaces are in one table. The name of a pool has the name of the owner's study database.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ray._raylet import PlacementGroupID
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

_PREFIX = "pool"


@dataclass(frozen=True, slots=True)
class ListedPool:
    """A pool in the cluster's table: the database and the node that it belongs to, and whether it holds its devices."""

    identity: str
    node: str
    is_created: bool
    group: PlacementGroup


def pool_name(identity: str, node_id: str) -> str:
    """Name of the pool of a node."""
    return f"{_PREFIX}/{identity}/{node_id[:8]}"


def list_pools() -> Iterator[ListedPool]:
    """All pools of the cluster, also those of other databases."""
    table: dict[str, dict[str, Any]] = placement_group_table()
    for key, entry in table.items():
        prefix, identity, node = [*entry["name"].split("/"), "", ""][:3]
        if prefix == _PREFIX and node and entry["state"] != "REMOVED":
            group = PlacementGroup(PlacementGroupID(bytes.fromhex(key)))
            yield ListedPool(identity, node, entry["state"] == "CREATED", group)


def remove_pools(identity: str) -> None:
    """Remove all pools of a database."""
    for pool in list_pools():
        if pool.identity == identity:
            remove_placement_group(pool.group)
