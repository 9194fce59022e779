"""Writes who leads: a lease has one holder, and every write of a controller that has lost it is refused."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any, Self

from scamp_service.model import Lease
from scamp_service.store import schema
from scamp_service.store import statements as sql
from scamp_service.store.writes.transactions import Transactions


class Leases(Transactions):
    """The methods of the store that take, renew and release leases."""

    def take_lease(self, name: str, holder: str, seen: Lease | None, *, now: float) -> Lease | None:
        """Make ``holder`` the holder of a lease, unless it was taken or renewed since it was ``seen``: then None."""
        with self._database.write() as connection:
            if seen is None:
                row = {"name": name, "holder": holder, "term": 1, "renewals": 0, "renewed_at": now}
                term = connection.execute(self._insert_new(schema.leases, "name", returns="term"), row).scalar()
            else:
                values = {"_name": name, "_term": seen.term, "_renewals": seen.renewals}
                term = connection.execute(sql.TAKE_LEASE, {**values, "_taker": holder, "_now": now}).scalar()
        return Lease(holder, term, 0) if term is not None else None

    def renew_lease(self, name: str, lease: Lease, *, now: float) -> Lease | None:
        """The lease, renewed; None if its holder has lost it."""
        with self._database.write() as connection:
            renewals = connection.execute(sql.RENEW_LEASE, {**_lease_params(name, lease), "_now": now}).scalar()
        return replace(lease, renewals=renewals) if renewals is not None else None

    def release_lease(self, name: str, lease: Lease) -> None:
        """Give up a lease; no effect when its holder has lost it."""
        with self._database.write() as connection:
            connection.execute(sql.RELEASE_LEASE, _lease_params(name, lease))

    def fenced(self, name: str, lease: Lease) -> Self:
        """This store for the holder of a lease: each of its writes raises ``Deposed`` once another one has taken it."""
        fenced = copy(self)
        fenced._fence = _lease_params(name, lease)
        return fenced


def _lease_params(name: str, lease: Lease) -> dict[str, Any]:
    return {"_name": name, "_term": lease.term, "_holder": lease.holder}
