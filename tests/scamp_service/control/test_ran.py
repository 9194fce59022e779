"""How long studies have run."""

from __future__ import annotations

from scamp_service.control.ran import Ran
from scamp_service.store.store import Store
from tests.quick_store import empty_store
from tests.studies import study


def test_seconds_count_while_a_controller_runs_and_the_next_one_continues_to_count() -> None:
    store: Store = empty_store()
    first, second = (store.studies.create(study(), now=1.0).id for _ in range(2))
    now = 100.0
    ran = Ran(store.studies, lambda: now)
    assert ran.seconds(store.studies.get(first)) == 0.0
    ran.store()
    now = 105.0
    assert (ran.seconds(store.studies.get(first)), ran.seconds(store.studies.get(second))) == (5.0, 0.0)
    ran.store()
    assert store.studies.get(first).ran_seconds == 0.0, "it is not due yet"
    now = 112.0
    ran.store()
    assert [store.studies.get(key).ran_seconds for key in (first, second)] == [12.0, 7.0]
    now = 9000.0
    next_one = Ran(store.studies, lambda: now)
    assert next_one.seconds(store.studies.get(first)) == 12.0
    now = 9003.0
    next_one.store_those([first, second])
    assert [store.studies.get(key).ran_seconds for key in (first, second)] == [15.0, 7.0]
    next_one.forget_ended({second})
    now = 9010.0
    assert next_one.seconds(store.studies.get(first)) == 15.0, "the time in which it had ended does not count"
