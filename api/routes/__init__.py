"""``/v1``: studies, trials, their metrics and logs, the cluster and the events, a module for each resource; beside it,
whether the process is well. Each answer is read from the study database, and the only writes are a new study and the
wish to stop one; the controller does the rest.
"""

from __future__ import annotations

from fastapi import APIRouter

from api.routes import cluster, events, process, studies, trials

router = APIRouter(generate_unique_id_function=lambda route: route.name)
for resource in (studies, trials, cluster, events, process):
    router.include_router(resource.router)
