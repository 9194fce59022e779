"""Views of the files that a trial keeps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.views.view import Count, Time, View
from scamp_service.exchange.trial_files import KeptFile


class FileView(View):
    """A file that a trial's workload keeps."""

    name: Annotated[str, Field(description="its name; part of its address in this API", examples=["plots/curve.png"])]
    num_bytes: Count
    written_at: Time


def file_view(file: KeptFile) -> FileView:
    """The view of a kept file."""
    return FileView(name=file.name, num_bytes=file.num_bytes, written_at=file.written_at)
