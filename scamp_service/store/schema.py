"""The tables of the study database, in SQLAlchemy Core. Rows of ``model`` have a column for each of their fields.

JSON is stored as compact text, and an enumeration as its value. Three types hide differences between the databases:
``Real`` (SQLite turns NaN into NULL), ``Text`` (PostgreSQL refuses the NUL character, both refuse lone surrogates) and
``Key`` (autoincrement). An empty database gets the tables below; ``migrations`` change those of older versions.
Tables and indexes have a prefix, because other programs may keep theirs in the same database: Optuna's are called
``studies``, ``trials`` and ``alembic_version``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from enum import StrEnum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, ForeignKey, ForeignKeyConstraint, Index, Table, UniqueConstraint

from placement.model import Offer
from placement.packing.device_time import DeviceTime, Watch
from scamp_service.access.model import AuditEntry, Role, Token, User
from scamp_service.model import Attempt, Choice, Delivery, Event, Json, LogLine, Metric, Sized, Study, Trial
from scamp_service.store.tallies import Measurements

REVISION = "0.1.0"
"""The newest migration, which leads to the tables below. ``VERSION_TABLE`` holds it in an up-to-date database."""

VERSION_TABLE = "scamp_alembic_version"

Key = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # only INTEGER PRIMARY KEY autoincrements in SQLite


class Real(sa.Double[float]):
    """A double that keeps NaN. SQLite stores NaN as the text 'nan', which sorts above all numbers as in PostgreSQL."""

    def bind_processor(self, dialect: sa.Dialect) -> Any:
        return _nan_to_text if dialect.name == "sqlite" else None

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Any:
        return _to_float if dialect.name == "sqlite" else None


def _nan_to_text(value: float | None) -> float | str | None:
    return value if value is None or value == value else "nan"


def _to_float(value: float | str | None) -> float | None:
    return None if value is None else float(value)


class Text(sa.types.TypeDecorator[str]):
    """Text from any source, such as a rank's output. Characters that a database would refuse are replaced."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None or (value.isascii() and "\0" not in value):
            return value
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


class JsonText(sa.types.TypeDecorator[Any]):
    """Any JSON value, stored as compact text."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else dump_json(value)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:
        return None if value is None else load_json(value)


class AttributeText(sa.types.TypeDecorator[Any]):
    """Any value of Python's JSON, which also has NaN and infinity: attributes that other programs have set."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str:
        return json.dumps(value)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:
        return None if value is None else load_json(value)


class AsJson(JsonText):
    """A frozen value as JSON, which ``read`` turns back into it. Equal texts are read once: many trials share a few."""

    cache_ok = True

    def __init__(self, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.read = read

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:
        return None if value is None else _read(self.read, value)


@lru_cache(maxsize=8192)
def _read(read: Callable[[Any], Any], text: str) -> Any:
    return read(load_json(text))


def _choices(data: Sequence[Json]) -> tuple[Choice, ...]:
    return tuple(map(Choice.from_json, data))


def _rows(data: Sequence[Sequence[float | None]]) -> tuple[tuple[float | None, ...], ...]:
    return tuple(map(tuple, data))


def _offer(data: Sequence[Sequence[Any]]) -> Offer:
    return tuple((kind, mib, number) for kind, mib, number in data)


def _load(data: Sequence[Sequence[float]]) -> tuple[Watch, ...]:
    return tuple(map(Watch.from_json, data))


class Floats(sa.types.TypeDecorator[Mapping[str, float]]):
    """A mapping of names to floats. NaN and infinity are stored as strings, because JSON has neither."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Mapping[str, float] | None, dialect: sa.Dialect) -> str | None:
        if value is None:
            return None
        return dump_json({name: x if math.isfinite(x) else str(float(x)) for name, x in value.items()})

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> dict[str, float] | None:
        return None if value is None else {name: float(x) for name, x in load_json(value).items()}


class FloatList(sa.types.TypeDecorator[tuple[float | None, ...]]):
    """A list of floats, some of which may be missing. NaN and infinity are stored as strings."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Sequence[float | None] | None, dialect: sa.Dialect) -> str | None:
        if value is None:
            return None
        return dump_json([x if x is None or math.isfinite(x) else str(float(x)) for x in value])

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> tuple[float | None, ...] | None:
        return None if value is None else tuple(None if x is None else float(x) for x in load_json(value))


class Word(sa.types.TypeDecorator[Any]):
    """A member of the enumeration ``words``, stored as its value."""

    impl = sa.String(20)
    cache_ok = True

    def __init__(self, words: type[StrEnum]) -> None:
        super().__init__()
        self.words = words
        self._members: dict[str, StrEnum] = {word.value: word for word in words}  # a tenth of the time of words(value)

    def process_bind_param(self, value: StrEnum | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else value.value

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> StrEnum | None:
        return None if value is None else self._members[value]


def _plain(value: Any) -> Any:
    return value.to_json() if hasattr(value, "to_json") else dict(value)


_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain)


def dump_json(value: Any) -> str:
    """Compact, strictly valid JSON in ASCII; any mapping becomes an object, as does a value with ``to_json``."""
    return _encoder.encode(value)


def load_json(text: str) -> Any:
    """The value of a JSON text. Halves of characters, which a user's code may report, become ``?``."""
    value = json.loads(text)
    if "\\ud" in text:  # half of a character, or a whole one beyond U+FFFF
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def one_of(column: sa.Column[Any], *words: StrEnum) -> sa.ColumnElement[bool]:
    """``column IN words``, compiled once. SQLAlchemy would expand the list of an IN again at every execution."""
    return sa.or_(*(column == word for word in words))


_TYPES: Mapping[Any, Any] = {
    str: Text,
    int: sa.BigInteger,
    float: Real,
    bool: sa.Boolean,
    Json: JsonText,
    Choice: AsJson(Choice.from_json),
    Sized: AsJson(Sized.from_json),
    Offer: AsJson(_offer),
    Mapping[str, float]: Floats,
    tuple[str, ...]: AsJson(tuple),
    tuple[Watch, ...]: AsJson(_load),
    tuple[float | None, ...]: FloatList,
    tuple[tuple[float | None, ...], ...]: AsJson(_rows),
}
"""The type of a column by that of the field which it holds."""


def _columns(kind: type[Any], *others: Column[Any]) -> list[Column[Any]]:
    """``others``, and a column for each other field of ``kind``, with its default."""
    hints, names = get_type_hints(kind), {column.name for column in others}
    return [*others, *(_column(field, hints[field.name]) for field in fields(kind) if field.name not in names)]


def _column(field: Field[Any], hint: Any) -> Column[Any]:
    parts = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kind = next(part for part in parts if part is not NoneType)
    column_type = Word(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else _TYPES[kind]
    default = None if field.default is MISSING else field.default
    return Column(field.name, column_type, nullable=NoneType in parts, default=default)


metadata = sa.MetaData()

version = Table(
    VERSION_TABLE,
    sa.MetaData(),  # Alembic's own table, with its name of the primary key
    Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)

blobs = Table(
    "scamp_blobs",
    metadata,
    Column("sha256", sa.String(64), primary_key=True),
    Column("data", sa.LargeBinary, nullable=False),
)

studies = Table(
    "scamp_studies",
    metadata,
    *_columns(
        Study,
        Column("id", Key, primary_key=True),
        Column("code", sa.String(64), ForeignKey("scamp_blobs.sha256")),
        Column("idempotency_key", Text, unique=True),
        Column("body_sha256", sa.String(64), nullable=False),
    ),
)

_is_completed, _is_repeat = sa.text("state = 'COMPLETED'"), sa.text("origin = 'REPEAT'")
trials = Table(
    "scamp_trials",
    metadata,
    *_columns(
        Trial,
        Column("id", Key, primary_key=True),
        Column("study_id", Key, ForeignKey("scamp_studies.id"), nullable=False),
        Column("choices", AsJson(_choices)),  # those of ``sized``
    ),
    UniqueConstraint("study_id", "number", name="uq_trials_study_number"),
    Index("ix_scamp_trials_offer", "study_id", "state", "offer", "once_fit", "finished_at"),
    Index("ix_scamp_trials_state", "state"),
    Index("ix_scamp_trials_family", "family", "id"),
    Index("ix_scamp_trials_repeats", "parent_id", sqlite_where=_is_repeat, postgresql_where=_is_repeat),
    Index(
        "ix_scamp_trials_best",
        "study_id",
        "value",
        "number",
        sqlite_where=_is_completed,
        postgresql_where=_is_completed,
    ),
)

external_trials = Table(
    "scamp_external_trials",
    metadata,
    Column("trial_id", Key, ForeignKey("scamp_trials.id"), primary_key=True, autoincrement=False),
    Column("searched", AttributeText, nullable=False),  # parameter → [Optuna's number for its value, distribution]
    Column("values", AttributeText),  # one for each objective
    Column("heartbeat_at", Real),
)

external_reports = Table(
    "scamp_external_reports",
    metadata,
    Column("trial_id", Key, ForeignKey("scamp_trials.id"), primary_key=True, autoincrement=False),
    Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
    Column("value", Real, nullable=False),
    Column("time", Real, nullable=False),
)

study_attributes = Table(
    "scamp_study_attributes",
    metadata,
    Column("study_id", Key, ForeignKey("scamp_studies.id"), primary_key=True, autoincrement=False),
    Column("is_system", sa.Boolean, primary_key=True, autoincrement=False),
    Column("name", Text, primary_key=True),
    Column("value", AttributeText, nullable=False),
)

trial_attributes = Table(
    "scamp_trial_attributes",
    metadata,
    Column("trial_id", Key, ForeignKey("scamp_trials.id"), primary_key=True, autoincrement=False),
    Column("is_system", sa.Boolean, primary_key=True, autoincrement=False),
    Column("name", Text, primary_key=True),
    Column("value", AttributeText, nullable=False),
)

tallies = Table(
    "scamp_tallies",
    metadata,
    Column("study_id", Key, ForeignKey("scamp_studies.id"), primary_key=True, autoincrement=False),
    Column("name", sa.String(40), primary_key=True),
    Column("num", Real, nullable=False),
)

measured = Table(
    "scamp_measured",
    metadata,
    Column("trial_id", Key, ForeignKey("scamp_trials.id"), primary_key=True, autoincrement=False),
    *_columns(Measurements, Column("study_id", Key, ForeignKey("scamp_studies.id"), nullable=False)),
    Index("ix_scamp_measured_peak_error_pct", "study_id", "peak_error_pct"),
    Index("ix_scamp_measured_step_error_pct", "study_id", "step_error_pct"),
    Index("ix_scamp_measured_least_excess_pct", "study_id", "least_excess_pct"),
)

comparisons = Table(
    "scamp_comparisons",
    metadata,
    Column("trial_id", Key, ForeignKey("scamp_trials.id"), primary_key=True, autoincrement=False),
    Column("options", JsonText, nullable=False),
    Column("pipeline", JsonText),
)

attempts = Table(
    "scamp_attempts",
    metadata,
    *_columns(
        Attempt,
        Column("trial_id", Key, ForeignKey("scamp_trials.id"), primary_key=True, autoincrement=False),
        Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        Column("objective_seq", sa.BigInteger, nullable=False, default=-1),  # of the metrics that trial.value is from
    ),
    Index("ix_scamp_attempts_state", "state"),
)

_OF_ATTEMPT = ["scamp_attempts.trial_id", "scamp_attempts.attempt"]

metrics = Table(
    "scamp_metrics",
    metadata,
    *_columns(
        Metric,
        Column("trial_id", Key, primary_key=True, autoincrement=False),
        Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    ),
    ForeignKeyConstraint(["trial_id", "attempt"], _OF_ATTEMPT, name="fk_metrics_attempt"),
    Index("ix_scamp_metrics_trial_step", "trial_id", "step"),
)

logs = Table(
    "scamp_logs",
    metadata,
    *_columns(LogLine, Column("id", Key, primary_key=True)),
    ForeignKeyConstraint(["trial_id", "attempt"], _OF_ATTEMPT, name="fk_logs_attempt"),
    UniqueConstraint("trial_id", "attempt", "rank", "seq", name="uq_logs_line"),
    Index("ix_scamp_logs_trial", "trial_id", "id"),
)

DEVICE_TIME = tuple(field.name for field in fields(DeviceTime))
usage = Table(
    "scamp_usage",
    metadata,
    Column("day", sa.Date, primary_key=True),  # in UTC
    Column("owner", Text, primary_key=True),
    Column("project", Text, primary_key=True),
    *_columns(DeviceTime),
)

users = Table(
    "scamp_users",
    metadata,
    *_columns(
        User,
        Column("id", Key, primary_key=True),
        Column("name", sa.String(100), nullable=False, unique=True),
        Column("password", sa.Text),  # its Argon2 hash
        Column("subject", sa.String(500), unique=True),  # of an OpenID Connect provider: issuer and sub
    ),
)

members = Table(
    "scamp_members",
    metadata,
    Column("user_id", Key, ForeignKey("scamp_users.id"), primary_key=True, autoincrement=False),
    Column("project", sa.String(200), primary_key=True),
    Column("role", Word(Role), nullable=False),
)

tokens = Table(
    "scamp_tokens",
    metadata,
    *[column for column in _columns(Token, Column("id", Key, primary_key=True)) if column.name != "user"],
    Column("user_id", Key, ForeignKey("scamp_users.id"), nullable=False, index=True),
    Column("sha256", sa.String(64), nullable=False, unique=True),
    Column("parent_id", Key),  # of the token with which a session began
)

audit = Table(
    "scamp_audit",
    metadata,
    *_columns(AuditEntry, Column("id", Key, primary_key=True)),
    Index("ix_scamp_audit_study", "study_id", "id"),
    Index("ix_scamp_audit_actor", "actor", "id"),
)

events = Table(
    "scamp_events",
    metadata,
    *_columns(Event, Column("id", Key, primary_key=True)),
    Index("ix_scamp_events_study", "study_id", "id"),
)

notifier = Table(
    "scamp_notifier",
    metadata,
    Column("id", sa.Integer, CheckConstraint("id = 1", name="ck_notifier_one_row"), primary_key=True),
    Column("secret", sa.String(100), nullable=False),
    Column("cursor", sa.BigInteger, nullable=False),  # the last event that was looked at
)

deliveries = Table(
    "scamp_deliveries",
    metadata,
    *_columns(
        Delivery,
        Column("id", Key, primary_key=True),
        Column("webhook_id", sa.String(40), nullable=False, unique=True),
        Column("study_id", Key, ForeignKey("scamp_studies.id")),
    ),
    Index("ix_scamp_deliveries_state", "state", "next_at"),
    Index("ix_scamp_deliveries_study", "study_id", "id"),
    Index("ix_scamp_deliveries_created", "created_at"),
)

cluster = Table(
    "scamp_cluster",
    metadata,
    Column("id", sa.Integer, CheckConstraint("id = 1", name="ck_cluster_one_row"), primary_key=True),
    Column("state", JsonText, nullable=False),
    Column("confirmed_at", Real, nullable=False),
)

leases = Table(
    "scamp_leases",
    metadata,
    Column("name", sa.String(100), primary_key=True),
    Column("holder", Text, nullable=False),
    Column("term", sa.BigInteger, nullable=False),
    Column("renewals", sa.BigInteger, nullable=False),
    Column("renewed_at", Real, nullable=False),
)

identity = Table(
    "scamp_identity",
    metadata,
    Column("id", sa.Integer, CheckConstraint("id = 1", name="ck_identity_one_row"), primary_key=True),
    Column("name", sa.String(16), nullable=False),
)
