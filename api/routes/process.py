"""Health checks: whether the process answers, and whether a study that is submitted now would run."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.routes.answers import trouble_with_data
from api.routes.parameters import TheSettings, TheStore, TheWriteProbe
from api.views.process import Health, Readiness
from scamp_service.errors import Unavailable
from scamp_service.lifecycle import CONTROLLER_LEASE

router = APIRouter(tags=["process"])


@router.get("/healthz")
async def is_alive() -> Health:  # not in a thread: it must answer also when all threads are busy
    """Liveness: answers 200 whenever the process runs."""
    return Health(status="ok")


@router.get(
    "/readyz",
    responses={
        503: {"description": "Not ready; `database`, `data_directory` and `controller` say why", "model": Readiness}
    },
)
def is_ready(response: Response, store: TheStore, settings: TheSettings, probe: TheWriteProbe) -> Readiness:
    """Readiness: the database stores a write, the data directory can hold more, and a controller is running."""
    database, controller, directory = "ok", "ok", trouble_with_data(settings) or "ok"
    try:
        age = store.lease_age(CONTROLLER_LEASE)
        if age is None:
            controller = "no controller holds the lease"
        elif age > settings.lease_seconds:
            controller = f"silent for {age:.0f} s"
        database = probe.trouble() or "ok"
    except Unavailable as error:
        database, controller = str(error), "unknown"
    ready = {database, controller, directory} == {"ok"}
    response.status_code = 200 if ready else 503
    status = "ready" if ready else "not ready"
    return Readiness(status=status, database=database, data_directory=directory, controller=controller)
