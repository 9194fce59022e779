"""The routes of ``/v1``, one module for each resource: studies, trials, files, charts, cluster, deliveries, events; and
health checks.

Each answer is read from the study database. The only writes are a new study and the requests to stop or delete one; the
controller does the rest.
"""

from __future__ import annotations

from fastapi import APIRouter, Depends

from api.access.allowed import only_allowed
from api.routes import charts, cluster, deliveries, drafts, events, files, process, studies, trials, users
from api.routes.parameters import only_known_parameters

router = APIRouter(generate_unique_id_function=lambda route: route.name)
for resource in (studies, drafts, trials, files, charts, cluster, deliveries, events, users):
    router.include_router(resource.router, dependencies=[Depends(only_known_parameters), Depends(only_allowed)])
router.include_router(process.router)
