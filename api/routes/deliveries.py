"""Deliveries: what receivers of notices were told, and a test of them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api.routes.answers import page_of, problems
from api.routes.parameters import LARGEST_ID, After, TheSettings, TheStore, Whole
from api.views.deliveries import DeliveryView, Tested, delivery_view
from api.views.view import Page
from scamp_service.errors import InvalidInput
from scamp_service.notices.notifier import add_tests

router = APIRouter(prefix="/v1", tags=["deliveries"])


@router.get("/deliveries", responses=problems(422))
def list_deliveries(
    request: Request,
    response: Response,
    store: TheStore,
    after: After = 0,
    limit: Annotated[Whole, Query(ge=1, le=1000)] = 100,
    study_id: Annotated[Whole | None, Query(ge=1, le=LARGEST_ID, description="only those about this study")] = None,
    newest_first: Annotated[bool, Query(description="order by descending id")] = False,
) -> Page[DeliveryView]:
    """List what receivers were told, or will be, by ascending id. Those that have ended stay for 30 days."""
    rows = store.deliveries.page(after=after, limit=limit + 1, study_id=study_id, newest_first=newest_first)
    return page_of(request, response, rows, limit, lambda delivery: delivery.id, delivery_view)


@router.post("/deliveries:test", status_code=201, responses=problems(404, 422))
def test_receivers(body: Tested, store: TheStore, settings: TheSettings) -> list[DeliveryView]:
    """Send a test to each receiver that a study names, or else to those of SCAMP_NOTIFY. The controller does so within
    seconds: list deliveries to see what came of it."""
    study = None if body.study_id is None else store.studies.get(body.study_id)
    tests = add_tests(store, settings, study)
    if not tests:
        who = (
            f"study {study.id} names no receivers (notify)"
            if study
            else "SCAMP_NOTIFY of the service names no receivers"
        )
        raise InvalidInput(f"there is nobody to test: {who}")
    return [delivery_view(delivery) for delivery in tests]
