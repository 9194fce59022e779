"""Series for charts and the order of the table."""

from __future__ import annotations

import pytest

from scamp_service.store.table.order import By
from tests.services.serving import InProcess, fill, fill_several, report

FIRST = "/v1/studies/1"


def test_the_history_has_trials_that_have_begun_and_names_those_worth_a_curve(api: InProcess) -> None:
    fill(api.store)
    history = api.get(f"{FIRST}/history").json()
    assert (history["number"], history["state"], history["step"]) == ([0, 1], ["COMPLETED", "RUNNING"], [30, 0])
    assert history["value"] == [0.53, None]
    assert history["leading"] == [1, 0], "a running trial comes first"
    assert history["last_event_id"] == api.store.events.last_id()


def test_the_history_may_be_of_chosen_trials(api: InProcess) -> None:
    fill(api.store)
    history = api.get(f"{FIRST}/history", params={"where": "lr > 0.015"}).json()
    assert (history["number"], history["leading"], history["num_trials"]) == ([1], [1], 1)
    assert api.get(f"{FIRST}/history?state=COMPLETED").json()["number"] == [0]
    assert api.get(f"{FIRST}/history", params={"where": "lr >"}).status_code == 422


def test_the_front_has_the_values_of_all_objectives_and_says_who_is_on_it(api: InProcess) -> None:
    fill_several(api.store)
    front = api.get(f"{FIRST}/front").json()
    assert (front["metrics"], front["directions"]) == (["accuracy", "predicted.peak_mib"], ["maximize", "minimize"])
    assert (front["number"], front["values"]) == ([0, 1, 2], [[0.3, 30.0], [0.2, 20.0], [0.1, 10.0]])
    assert (front["on_front"], front["state"][2]) == ([True, True, False], "RUNNING")
    summary = api.get(FIRST).json()["summary"]
    assert [(entry["trial"], entry["values"]) for entry in summary["front"]] == [(0, [0.3, 30.0]), (1, [0.2, 20.0])]
    assert summary["best"] is None
    trials = api.get(f"{FIRST}/trials").json()["items"]
    assert [trial["values"] for trial in trials] == [[0.3, 30.0], [0.2, 20.0], [0.1, 10.0], [None, None]]
    fill(api.store)
    assert api.get("/v1/studies/2/front").json()["number"] == []


def test_a_curve_is_thinned_and_keeps_its_ends(api: InProcess) -> None:
    fill(api.store)
    running = api.store.trials.page(1)[1].id
    report(api.store, running, steps=list(range(1, 101)))
    (curve,) = api.get(f"{FIRST}/curves?number=1&points=10").json()["items"]
    assert (curve["number"], curve["metric"], curve["resumed"]) == (1, "accuracy", [])
    assert len(curve["step"]) == len(curve["value"]) == 10
    assert (curve["step"][0], curve["step"][-1]) == (1, 100)


def test_curves_are_of_the_trials_and_the_metric_that_were_asked_for(api: InProcess) -> None:
    fill(api.store)
    curves = api.get(f"{FIRST}/curves?number=0&number=1&number=99").json()
    assert [curve["number"] for curve in curves["items"]] == [0] and curves["next"] is None
    assert api.get(f"{FIRST}/curves?number=0&metric=loss").json()["items"] == []
    assert api.get(f"{FIRST}/curves?number=0&after=0").json()["items"] == []


def test_a_page_of_curves_ends_before_too_many_evaluations(api: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(api.store)
    report(api.store, api.store.trials.page(1)[1].id, steps=[10, 20])
    monkeypatch.setattr("api.routes.charts.MOST_ROWS", 4)  # the trials have 3 and 2
    first = api.get(f"{FIRST}/curves?number=0&number=1").json()
    assert ([curve["number"] for curve in first["items"]], first["next"]) == ([0], 0)
    second = api.get(f"{FIRST}/curves?number=0&number=1&after=0").json()
    assert ([curve["number"] for curve in second["items"]], second["next"]) == ([1], None)


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("by=number", [0, 1, 2]),
        ("by=number&descending=true", [2, 1, 0]),
        ("by=value", [0, 1, 2]),
        ("by=params&descending=true", [2, 1, 0]),
        ("by=state", [2, 1, 0]),
        ("by=measured&descending=true", [0, 1, 2]),
        ("by=ranks&state=RUNNING&state=WAITING", [1, 2]),
    ],
)
def test_trials_are_ordered_by_a_column_and_those_without_a_value_come_last(
    api: InProcess, query: str, numbers: list[int]
) -> None:
    fill(api.store)
    assert api.get(f"{FIRST}/order?{query}").json() == {"number": numbers, "num_trials": len(numbers)}
    assert api.get(f"{FIRST}/order?{query}&limit=1").json() == {"number": numbers[:1], "num_trials": len(numbers)}


@pytest.mark.parametrize("column", By)
def test_trials_can_be_ordered_by_every_column(api: InProcess, column: By) -> None:
    fill(api.store)
    answer = api.get(f"{FIRST}/order?by={column}")
    assert answer.status_code == 200
    assert sorted(answer.json()["number"]) == [0, 1, 2]


def test_trials_and_peaks_are_fetched_by_number(api: InProcess) -> None:
    fill(api.store)
    answer = api.get(f"{FIRST}/trials?number=2&number=0&number=7").json()
    assert [trial["number"] for trial in answer["items"]] == [0, 2] and answer["next"] is None
    (peaks,) = api.get(f"{FIRST}/peaks?number=0&number=1").json()["items"]
    assert (peaks["number"], peaks["state"]) == (0, "COMPLETED")
    assert api.get(f"{FIRST}/peaks?points=10").json() == api.get(f"{FIRST}/peaks").json()


def test_series_of_a_study_that_does_not_exist_are_not_found(api: InProcess) -> None:
    for path in ("history", "front", "curves?number=0", "order?by=value"):
        assert api.get(f"/v1/studies/7/{path}").status_code == 404
    fill(api.store)
    assert api.get(f"{FIRST}/order?by=colour").status_code == 422
    unknown = api.get(f"{FIRST}/order?by=params.lrr")
    assert unknown.status_code == 422 and "did you mean lr?" in unknown.text
    assert "has a parameter 'colour'" in api.get(f"{FIRST}/order?by=params.colour").text
    assert api.get(f"{FIRST}/history?points=1").status_code == 422


def test_trials_are_ordered_by_a_parameter_and_chosen_by_an_expression(api: InProcess) -> None:
    fill(api.store)
    answer = api.get(f"{FIRST}/order", params={"by": "params.lr", "descending": True, "where": "lr < 0.025"})
    assert answer.json() == {"number": [1, 0], "num_trials": 2}
    answer = api.get(f"{FIRST}/order", params={"by": "value", "where": "state = COMPLETED and value > 0.5"})
    assert answer.json() == {"number": [0], "num_trials": 1}
    refused = api.get(f"{FIRST}/order", params={"by": "value", "where": "lrr < 1"})
    assert refused.status_code == 422 and "did you mean lr?" in refused.json()["detail"]
    assert api.get(f"{FIRST}/order?by=wrong").status_code == 422


def test_candidates_are_columns_of_places_on_axes(api: InProcess) -> None:
    fill(api.store)
    axes_view = api.get(f"{FIRST}/candidates").json()
    assert (axes_view["num_trials"], axes_view["number"], axes_view["value"], axes_view["names"]) == (
        1,
        [0],
        [0.53],
        ["lr"],
    )
    (axis,) = axes_view["axes"]
    assert (axis["log"], axis["low"], axis["high"], axis["place"]) == (True, 0.001, 0.1, [0.01])
    assert api.get(f"{FIRST}/candidates", params={"where": "lr > 0.5"}).json()["num_trials"] == 0


def test_importances_come_once_enough_trials_have_a_value(api: InProcess) -> None:
    fill(api.store)
    assert api.get(f"{FIRST}/importances").json() == {
        "num_ended": 1,
        "num_trials": 1,
        "is_rough": True,
        "items": [],
    }
    assert api.get("/v1/studies/7/importances").status_code == 404


def test_a_study_without_copies_has_no_lineage(api: InProcess) -> None:
    fill(api.store)
    assert api.get(f"{FIRST}/lineage").json() == {"num_trials": 0, "items": []}
    assert api.get("/v1/studies/7/lineage").status_code == 404


def test_trials_are_ordered_and_chosen_by_one_of_several_objectives(api: InProcess) -> None:
    fill_several(api.store)
    assert api.get(f"{FIRST}/order?by=values.1").json()["number"] == [2, 1, 0, 3], "no value comes last"
    assert api.get(f"{FIRST}/order?by=values.0&descending=true").json()["number"] == [0, 1, 2, 3]
    for where in ("accuracy > 0.15 and predicted_mib < 25", "values[0] > 0.15 and predicted_mib < 25"):
        assert api.get(f"{FIRST}/order", params={"by": "number", "where": where}).json()["number"] == [1]
    assert api.get(f"{FIRST}/order?by=values.2").status_code == 422
    fill(api.store)
    answer = api.get("/v1/studies/2/order", params={"by": "number", "where": "accuracy > 0.5"})
    assert answer.json()["number"] == [0]
