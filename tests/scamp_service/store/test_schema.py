"""Each type of column gives back what it got."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest
import sqlalchemy as sa

from estimators.model import Plan, Prediction
from scamp_service.lifecycle import TrialState
from scamp_service.model import Choice, Sized
from scamp_service.store import schema
from scamp_service.store.schema import (
    AsJson,
    Floats,
    JsonText,
    Real,
    Text,
    Word,
    dump_json,
    load_json,
)

CHOICES = (
    Choice(Plan(8), Prediction(20, 4, 3, 1, 2, evaluation_bytes=21, shares_mib=(3, 2)), 0.5, 1.5, 0.0),
    Choice(Plan(2, 2, pp=2, recompute=True), Prediction(20, 0, 3, 1, 2)),
)
COLUMNS: dict[str, tuple[Any, list[Any]]] = {  # name → (type, values that are read back as they were)
    "number": (Real, [None, 0.0, -1e300, 0.1, math.inf, -math.inf]),
    "text": (Text, [None, "", "naïve 😀\n\t\x1b[2J", "'; DROP TABLE x; --"]),
    "json": (JsonText, [None, {"a": [1, 2.5, "b", True, None], "ü": {}}, [], "", 0, False]),
    "choice": (AsJson(Choice.from_json), [None, *CHOICES]),
    "sized": (AsJson(Sized.from_json), [None, Sized("s", CHOICES[0], "fits", 3, num_params=9, flops_per_sample=0.5)]),
    "choices": (schema.trials.c.choices.type, [None, CHOICES]),
    "names": (schema.attempts.c.devices.type, [None, (), ("n/0", "ü", "a,b")]),
    "offer": (schema.trials.c.offer.type, [None, (), (("H100", 80_000, 2), ("virtual", 96, 4))]),
    "floats": (Floats, [None, {}, {"loss": 0.1, "ü": -2.5e-300}, {"loss": math.inf, "b": -math.inf}]),
    "state": (Word(TrialState), [None, *TrialState]),
}


@pytest.fixture(scope="module")
def table() -> Iterator[tuple[sa.Connection, sa.Table]]:
    columns = [sa.Column(name, kind) for name, (kind, _) in COLUMNS.items()]
    new_table = sa.Table("x", sa.MetaData(), sa.Column("id", schema.Key, primary_key=True), *columns)
    engine = sa.create_engine("sqlite://")
    new_table.create(engine)
    with engine.connect() as connection:
        yield connection, new_table
    engine.dispose()


def stored(table: tuple[sa.Connection, sa.Table], name: str, value: Any) -> Any:
    """The value as it is read back."""
    connection, new_table = table
    key = connection.execute(new_table.insert().values({name: value})).inserted_primary_key
    assert key is not None
    (row,) = key
    return connection.execute(sa.select(new_table.c[name]).where(new_table.c.id == row)).scalar_one()


@pytest.mark.parametrize("name", COLUMNS)
def test_a_value_is_read_back_as_it_was_stored(name: str, table: tuple[sa.Connection, sa.Table]) -> None:
    for value in COLUMNS[name][1]:
        value_read = stored(table, name, value)
        assert (type(value_read), value_read) == (type(value), value)


def test_nan_is_kept_and_sorts_above_all_numbers(table: tuple[sa.Connection, sa.Table]) -> None:
    connection, new_table = table
    assert math.isnan(stored(table, "number", math.nan)) and math.isnan(stored(table, "floats", {"a": math.nan})["a"])
    is_known = new_table.c.number.is_not(None)
    numbers = list(
        connection.execute(sa.select(new_table.c.number).where(is_known).order_by(new_table.c.number)).scalars()
    )
    assert math.isnan(numbers[-1])
    assert numbers[:-1] == sorted(numbers[:-1])
    assert numbers[-2] == math.inf
    assert connection.execute(sa.select(sa.func.count()).where(new_table.c.number > math.inf)).scalar_one() == 1


@pytest.mark.parametrize(
    ("text", "mended"), [("a\0b", "a\ufffdb"), ("\ud800", "?"), ("\0\udfffü", "\ufffd?ü")], ids=ascii
)
def test_characters_that_a_database_would_refuse_are_replaced(
    text: str, mended: str, table: tuple[sa.Connection, sa.Table]
) -> None:
    assert stored(table, "text", text) == mended


def test_json_is_read_without_halves_of_characters() -> None:
    stored = dump_json({"half \ud800": ["\udfff", "🙂", "\\ud800"], "é": 1.5})
    assert load_json(stored) == {"half ?": ["?", "🙂", "\\ud800"], "é": 1.5}


def test_json_is_compact_ascii_and_never_has_nan() -> None:
    assert dump_json(MappingProxyType({"a": (1, 2), "ü": MappingProxyType({})})) == '{"a":[1,2],"\\u00fc":{}}'
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError):
            dump_json({"a": [value]})


def test_every_state_and_outcome_fits_into_its_column() -> None:
    words = [column.type for table in schema.metadata.tables.values() for column in table.c]
    kinds = [kind for kind in words if isinstance(kind, Word)]
    assert len(kinds) >= 4
    for kind in kinds:
        assert isinstance(kind.impl, sa.String) and kind.impl.length is not None
        assert max(map(len, kind.words)) <= kind.impl.length
