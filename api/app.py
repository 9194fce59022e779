"""Assembles the API: the store, the routes, the dashboard and the middleware. It decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial

from fastapi import FastAPI, Response

from api import dashboard, problems
from api.access.allowed import TheAccess
from api.access.guard import Guard
from api.access.login import login_router
from api.access.sessions import COOKIE
from api.admission import Admission
from api.forecasts import Forecasts
from api.head_requests import Head
from api.importance_cache import ImportanceCache
from api.metrics import CONTENT_TYPE_LATEST, Measure, Metrics
from api.openapi import describe
from api.ready_probe import ReadyProbe
from api.routes import router
from api.routes.screenings import Screenings
from api.sse import EventHub
from scamp import __version__
from scamp_service.errors import Forbidden, ScampError
from scamp_service.processes.heartbeat import Heartbeat
from scamp_service.settings import Settings
from scamp_service.store.store import Store


def create_app(settings: Settings) -> FastAPI:
    """The application, with its database open.

    Raises ``Refused`` for unsafe settings and ``Unavailable`` when the database cannot be opened.
    """
    store = Store(settings.url)
    try:
        has_users = store.users.exist()
        settings.expect_access(has_users=has_users)
    except ScampError:
        store.close()
        raise
    hub, admission = EventHub(store.events, store.studies), Admission(store, settings)
    metrics = Metrics(store)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        beats = asyncio.create_task(_beat())
        yield
        beats.cancel()
        hub.close()
        admission.close()
        store.close()

    app = FastAPI(title="ScaMP", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.has_users = has_users
    app.state.store, app.state.settings, app.state.hub, app.state.admission = store, settings, hub, admission
    app.state.ready_probe, app.state.importances = ReadyProbe(store, settings), ImportanceCache(store)
    app.state.forecasts, app.state.screenings = Forecasts(store, settings), Screenings(store, settings)
    metrics.event_clients.set_function(lambda: hub.num_clients)

    @app.get("/metrics", include_in_schema=False)
    def prometheus(access: TheAccess) -> Response:
        if not access.sees_all:
            raise Forbidden("counts of all projects are for those who may read all: take a token of an admin")
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app.router.routes += router.routes  # included, they would be built again for each app
    app.include_router(login_router(settings, store))
    app.router.routes += dashboard.router.routes
    app.openapi = cache(partial(describe, app, COOKIE, needs_token=bool(settings.api_token) or has_users))  # type: ignore[method-assign]
    problems.install_problem_handlers(app, dashboard.missing_page)
    # The middleware added last runs first.
    app.add_middleware(Head)
    app.add_middleware(problems.Unexpected)
    app.add_middleware(Guard, settings=settings, store=store)
    app.add_middleware(Measure, metrics=metrics)
    return app


async def _beat() -> None:
    """Tell the supervisor that the event loop turns."""
    heartbeat = Heartbeat()
    while True:
        heartbeat.beat()
        await asyncio.sleep(1.0)
