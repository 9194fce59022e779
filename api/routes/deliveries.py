"""Deliveries: what receivers of notices were told, and tests of them; those of a study, or of the whole service."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from api.access.allowed import TheAccess, expect_to_manage
from api.routes.answers import page_of, problems
from api.routes.parameters import After, StudyId, TheSettings, TheStore, Whole
from api.views.deliveries import DeliveryView, delivery_view
from api.views.view import Page
from scamp_service.errors import InvalidInput
from scamp_service.notices.notifier import add_tests
from scamp_service.store.store import Store

router = APIRouter(prefix="/v1", tags=["deliveries"])

Limit = Annotated[Whole, Query(ge=1, le=1000)]
NewestFirst = Annotated[bool, Query(description="order by descending id")]


@router.get("/studies/{study_id}/deliveries", responses=problems(404, 422))
def list_study_deliveries(
    request: Request,
    response: Response,
    study_id: StudyId,
    store: TheStore,
    after: After = 0,
    limit: Limit = 100,
    newest_first: NewestFirst = False,
) -> Page[DeliveryView]:
    """List what receivers were told of a study, or will be, by ascending id. Those that have ended stay for 30 days."""
    store.studies.get(study_id)
    return _page(request, response, store, limit, after=after, study_id=study_id, newest_first=newest_first)


@router.post("/studies/{study_id}/deliveries:test", status_code=201, responses=problems(404, 422))
def test_study_receivers(study_id: StudyId, store: TheStore, settings: TheSettings) -> list[DeliveryView]:
    """Send a test to each receiver that a study names. The controller does so within seconds: list deliveries to see
    what came of it."""
    study = store.studies.get(study_id)
    return _tests(add_tests(store, settings, study), f"study {study_id} names no receivers (notify)")


@router.get("/deliveries", responses=problems(422))
def list_deliveries(
    request: Request,
    response: Response,
    store: TheStore,
    access: TheAccess,
    after: After = 0,
    limit: Limit = 100,
    newest_first: NewestFirst = False,
) -> Page[DeliveryView]:
    """List what receivers were told of all studies and of the service, by ascending id. For admins of the service."""
    expect_to_manage(access)
    return _page(request, response, store, limit, after=after, newest_first=newest_first)


@router.post("/deliveries:test", status_code=201, responses=problems(422))
def test_receivers(store: TheStore, access: TheAccess, settings: TheSettings) -> list[DeliveryView]:
    """Send a test to each receiver of SCAMP_NOTIFY. For admins of the service."""
    expect_to_manage(access)
    return _tests(add_tests(store, settings, None), "SCAMP_NOTIFY of the service names no receivers")


def _page(request: Request, response: Response, store: Store, limit: int, **choice: Any) -> Page[DeliveryView]:
    rows = store.deliveries.page(limit=limit + 1, **choice)
    return page_of(request, response, rows, limit, lambda delivery: delivery.id, delivery_view)


def _tests(deliveries: list[Any], nobody: str) -> list[DeliveryView]:
    if not deliveries:
        raise InvalidInput(f"there is nobody to test: {nobody}")
    return [delivery_view(delivery) for delivery in deliveries]
