"""Shows the supervisor that a child process makes progress: a byte through a pipe, as often as its loop turns.

A process that only exists may hang or be frozen. No file, clock or database is needed to see that it does not turn.
"""

from __future__ import annotations

import contextlib
import os
import time

VARIABLE = "SCAMP_HEARTBEAT_FD"
"""Environment variable with the number of the child's end of the pipe."""


class Heartbeat:
    """The child's end; without a supervisor it does nothing."""

    def __init__(self) -> None:
        number = os.environ.get(VARIABLE, "")
        self._pipe = int(number) if number.isdigit() else None

    def beat(self) -> None:
        """Say that the loop has turned. Never waits."""
        if self._pipe is not None:
            with contextlib.suppress(OSError):  # full, as the supervisor is frozen; or gone
                os.write(self._pipe, b".")


class Pulse:
    """The supervisor's end. ``silent_seconds`` counts from the last beat that was seen, or from the start."""

    def __init__(self) -> None:
        self._read, self.child_end = os.pipe()
        for end in (self._read, self.child_end):
            os.set_blocking(end, False)
        self._has_beaten = False
        self._seen = self._looked = time.monotonic()

    def started(self) -> None:
        """The child has its end now; ours of it is closed."""
        os.close(self.child_end)

    def silent_seconds(self) -> float:
        """Seconds since the last beat. Time in which nobody looked does not count: we may have been frozen, too."""
        now = time.monotonic()
        self._seen += max(0.0, now - self._looked - 5.0)
        self._looked = now
        self._read_beats(now)
        return now - self._seen

    @property
    def has_beaten(self) -> bool:
        """Whether the child's loop has turned."""
        self._read_beats(time.monotonic())
        return self._has_beaten

    def close(self) -> None:
        """Close our end."""
        os.close(self._read)

    def _read_beats(self, now: float) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                self._seen, self._has_beaten = now, True
