"""Assembles the API: the store, the routes, the dashboard and the middleware. It decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi

from api import problems
from api.auth import Guard, check_settings, login_router
from api.metrics import CONTENT_TYPE_LATEST, Measure, Metrics
from api.routes import router
from api.sse import EventHub
from api.views.events import EventView
from api.views.studies import NewStudy
from api.views.view import Problem
from scamp_service.processes.heartbeat import Heartbeat
from scamp_service.settings import Settings
from scamp_service.store.store import Store

VERSION = "0.1.0"
REFERENCE = "#/components/schemas/{model}"


def create_app(settings: Settings) -> FastAPI:
    """The application, with its database open.

    Raises ``Refused`` for unsafe settings and ``Unavailable`` when the database cannot be opened.
    """
    check_settings(settings)
    store = Store(settings.url)
    hub = EventHub(store)
    metrics = Metrics(store)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        beats = asyncio.create_task(_beat())
        yield
        beats.cancel()
        hub.close()
        store.close()

    app = FastAPI(title="ScaMP", version=VERSION, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.store, app.state.settings, app.state.hub = store, settings, hub
    metrics.event_clients.set_function(lambda: hub.num_clients)

    @app.get("/metrics", include_in_schema=False)
    def prometheus() -> Response:
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app.include_router(router)
    app.include_router(login_router(settings))
    app.include_router(_dashboard())
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    problems.install(app)
    # The middleware added last runs first.
    app.add_middleware(problems.Unexpected)
    app.add_middleware(Guard, settings=settings)
    app.add_middleware(Measure, metrics=metrics)
    return app


async def _beat() -> None:
    """Tell the supervisor that the event loop turns."""
    heartbeat = Heartbeat()
    while True:
        heartbeat.beat()
        await asyncio.sleep(1.0)


def _dashboard() -> Any:
    from api.dashboard import router as pages

    return pages


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's schema, plus the models that it cannot find: the body that we parse ourselves, events and problems."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title="ScaMP",
            version=VERSION,
            description="Tune models that may not fit on one GPU. Errors are application/problem+json (RFC 9457).",
            routes=app.routes,
        )
        components = schema["components"]["schemas"]
        for operation in (operation for path in schema["paths"].values() for operation in path.values()):
            if "application/json" in operation["responses"].get("422", {}).get("content", {}):
                del operation["responses"]["422"]  # FastAPI's answer to an invalid path, for which ours is 404
        for name in ("HTTPValidationError", "ValidationError"):
            components.pop(name, None)
        for model in (NewStudy, EventView, Problem):
            own = model.model_json_schema(ref_template=REFERENCE)
            components.update(own.pop("$defs", {}))
            components[model.__name__] = own
        app.openapi_schema = schema
    return app.openapi_schema
