"""Says in words what a thread of this process is doing, from its stack: for ranks that make no progress."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import PurePath
from types import FrameType

_DATA = ("train_batch", "eval_batch", "_wait_for_data", "collate")


def whereabouts(thread: threading.Thread) -> str:
    """Activity of a thread, such as ``waits in all_reduce`` or ``reads its data (load, data.py:12)``.

    Empty if the thread does not run.
    """
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return ""
    frames = list(_outwards(frame))
    collectives = (frame.f_code.co_name for frame in frames if _is_in(frame, "torch/distributed"))
    if collective := next((name for name in collectives if name != "wrapper"), ""):
        return f"waits in {collective}"
    place = _place(next((frame for frame in frames if not _is_library(frame)), frames[0]))
    if any(_is_in(frame, "workloads/training/checkpoints/") for frame in frames):
        return f"reads or writes its checkpoint ({place})"
    if any(frame.f_code.co_name in _DATA for frame in frames):
        return f"reads its data ({place})"
    return f"is in {place}"


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_in(frame: FrameType, part: str) -> bool:
    return part in frame.f_code.co_filename.replace(os.sep, "/")


def _is_library(frame: FrameType) -> bool:
    return _is_in(frame, "/site-packages/") or _is_in(frame, "/lib/python")


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_name}, {PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"
