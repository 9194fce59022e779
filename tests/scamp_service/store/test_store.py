"""The contract of the study database, the same for SQLite in a file, SQLite in memory and PostgreSQL."""

from __future__ import annotations
