"""Parameters that several routes take: ids and cursors from the address; the store, settings and event hub."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Path, Query, Request
from pydantic import BeforeValidator, Field

from api.access.allowed import store_of
from api.admission import Admission
from api.forecasts import Forecasts
from api.importance_cache import ImportanceCache
from api.ready_probe import ReadyProbe
from api.routes.screenings import Screenings
from api.sse import EventHub
from scamp_service.lifecycle import TrialState
from scamp_service.settings import Settings
from scamp_service.store.store import Store
from scamp_service.store.table.order import By

LARGEST_ID = 2**63 - 1
LARGEST_NUMBER = 2**31 - 1


def _whole(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"-?[0-9]+", value):
        raise ValueError("must be a whole number, in digits")
    return value


Whole = Annotated[int, BeforeValidator(_whole)]
"""A number in an address. Pydantic alone also reads ``1_0``, ``+1`` and ``1.0``."""
StudyId = Annotated[Whole, Path(ge=1, le=LARGEST_ID, description="the study's id")]
Number = Annotated[Whole, Path(ge=0, le=LARGEST_NUMBER, description="the trial's number in its study, from 0")]
After = Annotated[Whole, Query(ge=0, le=LARGEST_ID, description="`next` of the previous page; 0: the first page")]
Numbers = Annotated[
    list[Annotated[Whole, Field(ge=0, le=LARGEST_NUMBER)]] | None,
    Query(description="only trials with this number; repeatable, at most 100 times", max_length=100),
]
NumPoints = Annotated[Whole, Query(ge=10, le=10_000, description="most points that are sent; more are thinned")]
SortColumn = Annotated[
    str,
    Query(
        description=f"column to sort by: {', '.join(By)}, a parameter as `params.lr`, `params.layers.0.width`,"
        " or one of several objectives as `values.0`",
        max_length=300,
    ),
]
Descending = Annotated[bool, Query(description="largest first")]
States = Annotated[list[TrialState] | None, Query(description="only trials in this state; repeatable")]
Where = Annotated[
    str,
    Query(
        description="only trials for which this expression is true, such as `lr < 1e-3 and state == COMPLETED`",
        max_length=600,
    ),
]


async def only_known_parameters(request: Request) -> None:
    """Raise ``HTTPException`` 400 for a query parameter that the route does not have, such as ``limt``."""
    names = sorted(field.alias for field in request.scope["route"].dependant.query_params)
    unknown = next((name for name in request.query_params if name not in names), None)
    if unknown is not None:
        words = f"it knows {', '.join(names)}" if names else "it has none"
        raise HTTPException(400, f"this address has no query parameter {unknown[:100]!r}; {words}")


def _of_app(name: str) -> Any:
    async def of_app(request: Request) -> Any:  # not in a thread: health checks answer also when all threads are busy
        return getattr(request.app.state, name)

    return Depends(of_app)


TheForecasts = Annotated[Forecasts, _of_app("forecasts")]
TheImportances = Annotated[ImportanceCache, _of_app("importances")]


async def _store(request: Request) -> Store:
    return store_of(request)


TheStore = Annotated[Store, Depends(_store)]
TheReadyProbe = Annotated[ReadyProbe, _of_app("ready_probe")]
TheSettings = Annotated[Settings, _of_app("settings")]
TheHub = Annotated[EventHub, _of_app("hub")]
TheAdmission = Annotated[Admission, _of_app("admission")]
TheScreenings = Annotated[Screenings, _of_app("screenings")]
