"""Writes runs as event files of TensorBoard, with their parameters for its tab HParams.

The event files themselves say what has been written: they are read once when a run is first seen.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from scamp.trackers.run import Run, key_of

VALUE = "scamp/value"


class TensorBoard:
    """A folder of TensorBoard, with a folder for each study in it, and a run for each trial."""

    errors = (OSError,)

    def __init__(self, folder: str, study: Mapping[str, Any]) -> None:
        self._folder = Path(folder) / f"study-{key_of(study)}"
        self._logs: dict[int, _Log] = {}

    def write(self, run: Run) -> None:
        """Write the new evaluations of a run, its parameters, and what has changed of its state and plan."""
        log = self._logs.get(run.number)
        if log is None:
            log = self._logs[run.number] = _Log(self._folder / f"trial-{run.number:04}")
        trial, now = run.trial, time.time()
        if metadata.SESSION_START_INFO_TAG not in log.tags:
            log.add(hparams_pb(run.params, trial_id=run.page, start_time_secs=trial["created_at"]), 0, now)
        for row in run.evaluations(log.step):
            scalars = [value for name, number in row.values.items() for value in scalar_pb(name, number).value]
            log.add(Summary(value=scalars), row.step, row.time)  # one record: all of a step is written, or nothing
            log.step = row.step
        for name, text in run.facts.items():
            if log.texts.get(f"scamp/{name}") != text:
                log.add(text_pb(f"scamp/{name}", text), trial["step"], now)
                log.texts[f"scamp/{name}"] = text
        if run.finished_at is not None and metadata.SESSION_END_INFO_TAG not in log.tags:
            if trial["value"] is not None:
                log.add(scalar_pb(VALUE, trial["value"]), trial["step"], run.finished_at)
            log.add(_end(run.has_failed, run.finished_at), trial["step"], run.finished_at)
        log.flush()

    def close(self) -> None:
        """Nothing is left: every run is written at once."""


class _Log:
    """The event files of one run: its last step, its texts, and the tags that it has."""

    def __init__(self, folder: Path) -> None:
        self.step = -1
        self.texts: dict[str, str] = {}
        self.tags: set[str] = set()
        self._events: list[Event] = []
        self._file = folder / f"events.out.tfevents.{time.time_ns()}.scamp"  # later ones come last in a sorted list
        for file in sorted(folder.glob("events.out.tfevents.*")):
            for event in EventFileLoader(str(file)).Load():
                self._read(event)

    def add(self, summary: Summary, step: int, at: float) -> None:
        """Add what ``flush`` is to write."""
        self.tags |= {value.tag for value in summary.value}
        self._events.append(Event(wall_time=at, step=max(step, 0), summary=summary))

    def flush(self) -> None:
        """Write it to the file of this process, in one piece."""
        if not self._events:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        if not self._file.exists():
            self._events.insert(0, Event(wall_time=time.time(), file_version="brain.Event:2"))
        records = io.BytesIO()
        writer = RecordWriter(records)
        for event in self._events:
            writer.write(event.SerializeToString())
        with self._file.open("ab") as file:
            file.write(records.getvalue())
        self._events.clear()

    def _read(self, event: Event) -> None:
        for value in event.summary.value:
            self.tags.add(value.tag)
            plugin = value.metadata.plugin_data.plugin_name
            if plugin == "text":
                self.texts[value.tag] = value.tensor.string_val[0].decode()
            elif plugin == "scalars" and value.tag != VALUE:
                self.step = max(self.step, event.step)


def _end(has_failed: bool, at: float) -> Summary:
    status = api_pb2.STATUS_FAILURE if has_failed else api_pb2.STATUS_SUCCESS
    info = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=at)
    end = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=info))
    value = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=end, tensor=metadata.NULL_TENSOR)
    return Summary(value=[value])
