"""Who leads: a lease has one holder, and every write of a controller that has lost it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scamp_service.model import Lease
from scamp_service.store import queries, schema
from scamp_service.store import statements as sql
from scamp_service.store.parts.part import WritingPart


class Leases(WritingPart):
    """Leases by name."""

    def take(self, name: str, holder: str, seen: Lease | None, *, now: float) -> Lease | None:
        """Make ``holder`` the holder of a lease, unless it was taken or renewed since it was ``seen``: then None."""
        with self._database.write() as connection:
            if seen is None:
                row = {"name": name, "holder": holder, "term": 1, "renewals": 0, "renewed_at": now}
                term = connection.execute(self._insert_new(schema.leases, "name", returns="term"), row).scalar()
            else:
                values = {"_name": name, "_term": seen.term, "_renewals": seen.renewals}
                term = connection.execute(sql.TAKE_LEASE, {**values, "_taker": holder, "_now": now}).scalar()
        return Lease(holder, term, 0) if term is not None else None

    def renew(self, name: str, lease: Lease, *, now: float) -> Lease | None:
        """The lease, renewed; None if its holder has lost it."""
        with self._database.write() as connection:
            renewals = connection.execute(sql.RENEW_LEASE, {**lease_params(name, lease), "_now": now}).scalar()
        return replace(lease, renewals=renewals) if renewals is not None else None

    def release(self, name: str, lease: Lease) -> None:
        """Give up a lease; no effect when its holder has lost it."""
        with self._database.write() as connection:
            connection.execute(sql.RELEASE_LEASE, lease_params(name, lease))

    def get(self, name: str) -> Lease | None:
        """The lease, which may have no holder; None if there never was one."""
        return self._first(Lease, queries.LEASE, name=name)

    def age(self, name: str) -> float | None:
        """Seconds since the lease was last renewed; None when nobody has it.

        It is for people to read, and for health checks: clocks jump.
        """
        renewed_at = self._value(queries.LEASE_RENEWED_AT, name=name)
        return None if renewed_at is None else max(0.0, self._database.now() - renewed_at)


def lease_params(name: str, lease: Lease) -> dict[str, Any]:
    return {"_name": name, "_term": lease.term, "_holder": lease.holder}
