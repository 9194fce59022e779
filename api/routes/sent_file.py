"""Sends an opened file as a download: whole, in one range, or not at all if the client already has it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from email.utils import formatdate
from typing import BinaryIO
from urllib.parse import quote

from fastapi import Response
from fastapi.responses import StreamingResponse

from scamp_service.exchange.trial_files import first_bytes

PICTURES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".svg": "image/svg+xml",
}
"""Types of files that pages show as pictures, in which no script runs. All others are bytes."""
NO_SCRIPTS = "sandbox; default-src 'none'; style-src 'unsafe-inline'"
"""Policy of every file that a workload has written, should a browser show it as a page after all."""


def sent_file(request_headers: Mapping[str, str], file: BinaryIO, name: str) -> Response:
    """The answer to a GET with these headers; it closes ``file``. A browser stores it as ``name``.

    Exactly the announced bytes are sent. A file that becomes shorter meanwhile breaks the answer.
    """
    status = os.fstat(file.fileno())
    etag = f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"'
    headers = {
        "ETag": etag,
        "Last-Modified": formatdate(status.st_mtime, usegmt=True),
        "Accept-Ranges": "bytes",
        "Content-Disposition": f"attachment; filename*=utf-8''{quote(name)}",
        "Content-Security-Policy": NO_SCRIPTS,
        "Cache-Control": "no-cache",  # a workload may write it again
    }
    if _matches(request_headers.get("if-none-match", ""), etag):
        file.close()
        return Response(status_code=304, headers=headers)
    media_type = PICTURES.get(os.path.splitext(name)[1].lower(), "application/octet-stream")
    part = range(status.st_size)
    if request_headers.get("if-range", etag) in (etag, headers["Last-Modified"]):
        asked_part = _range(request_headers.get("range", ""), status.st_size)
        part = part if asked_part is None else asked_part
    is_part = len(part) < status.st_size
    if is_part and not part:
        file.close()
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{status.st_size}"})
    headers["Content-Length"] = str(len(part))
    if is_part:
        headers["Content-Range"] = f"bytes {part[0]}-{part[-1]}/{status.st_size}"
    parts = _parts(file, part)
    next(parts)  # from here on it closes the file, also if nobody reads on
    return StreamingResponse(parts, 206 if is_part else 200, headers, media_type)


def _parts(file: BinaryIO, part: range) -> Iterator[bytes]:
    with file:
        yield b""
        file.seek(part.start)
        yield from first_bytes(file, len(part))


def _matches(tags: str, etag: str) -> bool:
    return any(tag.strip().removeprefix("W/") in (etag, "*") for tag in tags.split(","))


def _range(header: str, num_bytes: int) -> range | None:
    """The bytes that a Range header asks for; None for several ranges and other units, which may be left unanswered."""
    ends = re.fullmatch(r"bytes=(\d*)-(\d*)", header.strip(), re.ASCII)
    if ends is None or not (ends[1] or ends[2]) or len(header) > 60:
        return None
    if not ends[1]:
        return range(max(0, num_bytes - int(ends[2])), num_bytes)
    first, end = int(ends[1]), int(ends[2]) + 1 if ends[2] else num_bytes
    return None if ends[2] and end <= first else range(first, min(end, num_bytes))
