"""Numbers about studies."""

from __future__ import annotations

from placement.packing.device_time import DeviceTime
from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.model import Totals
from scamp_service.store.store import Store
from tests.scamp_service.store.trials import hold, new_family, new_study


def test_totals_count_all_studies(store: Store) -> None:
    assert store.counts.totals() == Totals({}, {}, 0)
    first, second = new_study(store, 2), new_study(store, 1)
    hold(store, first[0], "a", 1.0)
    hold(store, second[0], "a", 1.0, ended=2.0)
    assert store.studies.move(2, [StudyState.RUNNING], StudyState.COMPLETED, now=3.0)
    states = {StudyState.RUNNING: 1, StudyState.COMPLETED: 1}
    assert store.counts.totals() == Totals(states, {TrialState.RUNNING: 1, TrialState.QUEUED: 2}, 1)


def test_device_seconds_are_held_devices_times_time(store: Store) -> None:
    first, second = new_study(store, 2)
    other = new_study(store, 1)[0]
    assert store.counts.device_seconds(1, now=100.0) == 0.0
    hold(store, first, "ab", 10.0, 15.0)
    hold(store, first, "abcd", 20.0, attempt=2)
    hold(store, second, "c", 20.0, 21.5)
    hold(store, other, "a", 0.0, 1000.0)
    assert store.counts.device_seconds(1, now=22.0) == 2 * 5.0 + 4 * 2.0 + 1.5
    mib = store.attempts.of_study(1)[0].mib_per_rank
    assert mib and store.usage.of_holders(1000.0) == {
        name: DeviceTime(2 * 5.0 + 1.5 + 1000.0, mib * (2 * 5.0 + 1.5 + 1000.0)) for name in ("", "user ")
    }, "of attempts that have ended"
    assert store.studies.project(1) == store.studies.get(1).spec.get("project", "") and store.studies.project(77) == ""


def test_the_families_of_a_study_begin_with_the_largest(store: Store) -> None:
    new_family(store, "a")
    new_family(store, "baab")
    new_family(store, "bcc")
    assert [store.counts.counted(study).families for study in (2, 3)] == [["a", "b"], ["c", "b"]]
    new_study(store, 1)
    assert store.counts.counted(4).families == [], "not planned yet, or by a version that knew no families"
