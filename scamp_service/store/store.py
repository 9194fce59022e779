"""The study database: every acknowledged study, trial and metric, and the only truth about what runs.

``Store`` has a part for each thing that it keeps (``parts``), which reads and writes it. Moves are compare-and-set: a
lost race returns ``False``, raises nothing and changes nothing. Each method is one transaction, which also writes the
events about its changes. Many processes and threads may use it at once. Lists come in pages by ascending id: the last
id of a page leads to the next one. A database that cannot be used now raises ``Unavailable``.
"""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager
from copy import copy

from scamp_service.access.model import Actor
from scamp_service.model import Json, Lease
from scamp_service.store import queries, schema
from scamp_service.store import statements as sql
from scamp_service.store.access.audit import Audit
from scamp_service.store.access.tokens import Tokens
from scamp_service.store.access.usage import Usage
from scamp_service.store.access.users import Users
from scamp_service.store.database import Database
from scamp_service.store.parts.attempts import Attempts
from scamp_service.store.parts.blobs import Blobs
from scamp_service.store.parts.cluster import Cluster
from scamp_service.store.parts.counts import Counts
from scamp_service.store.parts.deliveries import Deliveries
from scamp_service.store.parts.events import Events
from scamp_service.store.parts.external import External
from scamp_service.store.parts.leases import Leases, lease_params
from scamp_service.store.parts.removals import Removals
from scamp_service.store.parts.reports import Reports
from scamp_service.store.parts.requests import Requests
from scamp_service.store.parts.studies import Studies
from scamp_service.store.parts.trials import Trials
from scamp_service.store.table.trial_table import TrialTable


class Store:
    """The parts of the study database.

    - ``studies``, ``trials``, ``attempts``, ``reports``: what users have submitted, and how it runs
    - ``counts``: numbers about studies
    - ``requests``: requests of users about a study that exists
    - ``blobs``: files of users
    - ``events``: changes, for those who follow them
    - ``leases`` and ``cluster``: who leads, and the cluster as the leader sees it
    - ``table``: the table of a study's trials, for the API
    - ``external``: studies and trials that other programs run through Optuna. No lease fences these writes.
    - ``deliveries``: notices on their way to receivers
    - ``removals``: what the sweeper removes
    - ``users``, ``tokens``, ``audit`` and ``usage``: who may do what, did what, and has held which devices
    """

    def __init__(self, url: str) -> None:
        """Open the database, and create or upgrade its schema (Alembic).

        ``url`` is ``sqlite:///path``, ``sqlite://`` (in memory) or a PostgreSQL URL. Raises ``InvalidInput`` for any
        other, and ``Unavailable`` when the database cannot be reached or was written by a newer version of ScaMP.
        """
        database = Database(url)
        self.table = TrialTable(database)  # one for all copies, as it keeps what it has read
        self._compose(database)

    def _compose(self, database: Database, fence: Json | None = None, actor: Actor | None = None) -> None:
        self._database = database
        self.studies = Studies(database, fence, actor)
        self.trials = Trials(database, fence, actor)
        self.attempts = Attempts(database, fence)
        self.reports = Reports(database, fence)
        self.counts = Counts(database)
        self.requests = Requests(database, fence, actor)
        self.blobs = Blobs(database, fence)
        self.events = Events(database)
        self.leases = Leases(database)
        self.cluster = Cluster(database, fence)
        self.external = External(database)
        self.deliveries = Deliveries(database, fence, actor)
        self.removals = Removals(database, fence)
        self.users = Users(database, actor=actor)
        self.tokens = Tokens(database, actor=actor)
        self.audit = Audit(database)
        self.usage = Usage(database)

    def fenced(self, name: str, lease: Lease) -> Store:
        """This store for the holder of a lease: each of its writes raises ``Deposed`` once another one has taken it."""
        fenced = copy(self)
        fenced._compose(self._database, lease_params(name, lease))
        return fenced

    def acting(self, actor: Actor) -> Store:
        """This store for somebody who asks for changes, which the audit log then has with the name and address."""
        acting = copy(self)
        acting._compose(self._database, actor=actor)
        return acting

    def close(self) -> None:
        """Close all connections to the database."""
        self._database.close()

    def now(self) -> float:
        """Seconds since the epoch by the one clock of all hosts: see ``Database.now``."""
        return self._database.now()

    def reading(self) -> AbstractContextManager[None]:
        """A block whose reads, in this thread, share one connection; see ``Database.reading``."""
        return self._database.reading()

    def identity(self) -> str:
        """The name of this database, eight random letters and digits: no other one has it."""
        insert = sql.insert_new(self._database.sqlite, schema.identity, ("id",), "")
        with self._database.write() as connection:
            connection.execute(insert, {"id": 1, "name": secrets.token_hex(4)})
            return str(connection.execute(queries.IDENTITY).scalar_one())

    def write_nothing(self) -> None:
        """Commit a transaction that changes no value. Raises ``Unavailable`` when a study could not be stored now."""
        self.identity()
        with self._database.write() as connection:
            for statement in sql.CHANGE_NOTHING:
                connection.execute(statement)
