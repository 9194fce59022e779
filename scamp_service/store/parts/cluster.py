"""The cluster as its controller has recorded it last."""

from __future__ import annotations

from scamp_service.store import queries, schema
from scamp_service.store.events import ClusterState
from scamp_service.store.parts.part import WritingPart
from scamp_service.store.recorded_cluster import RecordedCluster


class Cluster(WritingPart):
    """Reads and writes of the recorded cluster."""

    def record(self, state: RecordedCluster, *, now: float) -> None:
        """Store the state of the cluster, with an event if it has changed.

        An unchanged state is written at most once a second, so that an idle controller spares the disk.
        """
        recorded, as_json = self.recorded(), state.to_json()
        changed = recorded is None or recorded[0] != state
        if recorded and not changed and abs(now - recorded[1]) < 1.0:
            return
        with self._write() as connection:
            row = {"id": 1, "state": as_json, "confirmed_at": now}
            connection.execute(self._replace(schema.cluster, "id"), row)
            if changed:
                self._emit(connection, ClusterState(**as_json), now)

    def recorded(self) -> tuple[RecordedCluster, float] | None:
        """The last recorded state of the cluster, and when the controller last confirmed it (to the second).

        None before the first record.
        """
        row = self._row(queries.CLUSTER)
        return (RecordedCluster.from_json(row.state), row.confirmed_at) if row else None
