"""Files of a trial: those that its workload keeps, and its last checkpoint."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import StreamingResponse

from api.routes.answers import problems
from api.routes.parameters import Number, StudyId, TheSettings, TheStore
from api.routes.sent_file import sent_file
from api.views.files import FileView, file_view
from api.views.view import Page
from scamp_service.errors import NotFound
from scamp_service.exchange.trial_files import archive, bring, counted_checkpoint, list_kept, open_kept
from scamp_service.remote.copies import copies_of

router = APIRouter(prefix="/v1/studies/{study_id}/trials/{number}", tags=["trials"])


@router.get("/files", responses=problems(404))
def list_files(study_id: StudyId, number: Number, store: TheStore, settings: TheSettings) -> Page[FileView]:
    """List the files that the trial's workload keeps, by name; they are one page."""
    trial = store.trials.numbered(study_id, number)
    return Page(items=[file_view(file) for file in list_kept(settings.checkpoints, trial.id)])


@router.get("/files/{name:path}", responses=problems(404), response_class=StreamingResponse)
def get_file(
    request: Request,
    study_id: StudyId,
    number: Number,
    name: Annotated[str, Path(description="name of the file, as it is listed")],
    store: TheStore,
    settings: TheSettings,
) -> Response:
    """Download a file that the trial's workload keeps, or a range of it.

    A browser stores it, or shows it as a picture in a page, but never as a page. With `If-None-Match`, an unchanged
    file is answered by 304.
    """
    trial = store.trials.numbered(study_id, number)
    return sent_file(request.headers, open_kept(settings.checkpoints, trial.id, name), name.rpartition("/")[2])


@router.get("/checkpoint", responses=problems(404), response_class=StreamingResponse)
def get_checkpoint(study_id: StudyId, number: Number, store: TheStore, settings: TheSettings) -> StreamingResponse:
    """Download the trial's last checkpoint as a tar archive, or that of its best report if that one counts.

    `scamp weights` turns it into a file for `torch.load`.
    """
    trial = store.trials.numbered(study_id, number)
    last = store.attempts.checkpoints([trial.id]).get(trial.id)
    copies = copies_of(settings, store.identity)
    checkpoint = counted_checkpoint(settings.checkpoints, trial, last, copies)
    if checkpoint is None:
        raise NotFound(f"trial {number} of study {study_id} has no checkpoint")
    if copies is not None:
        bring(copies, checkpoint)
    name = f"study-{study_id}-trial-{number}-step-{checkpoint.step}.tar"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(archive(settings.checkpoints, checkpoint), media_type="application/x-tar", headers=headers)
