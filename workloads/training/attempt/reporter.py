"""The interface through which a rank reports, and hears whether to stop."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, Protocol

from workloads.training.checkpoints.name import CheckpointName


class Reporter(Protocol):
    """Receives a rank's reports. Only rank 0 reports; every rank asks whether to stop, and one yes stops all."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Report an evaluation after ``step`` steps: the workload's metrics, and ``train_loss``.

        ``train_loss`` is the mean over the steps since the last evaluation.
        """
        ...

    def measured(self, peak_bytes: int) -> None:
        """Report the peak of an early step, or of a later one that may need more: the highest of all ranks."""
        ...

    def timed(self, step_seconds: float, num_steps: int, check_share: float) -> None:
        """Report the median seconds of an optimizer step. ``num_steps`` have been timed so far in this attempt.

        The first steps, evaluations and checkpoints do not count. ``check_share`` of the time (0 to 1) went into
        checks of the training on itself.
        """
        ...

    def communicated(self, share: float) -> None:
        """Report the share of a step (0 to 1) in which the rank that waits least waits for others, in a gang."""
        ...

    def learned_noise(self, noise_scale: float) -> None:
        """Report the noise scale of the gradient in samples (``workloads.gain``), where AdaScale estimates it."""
        ...

    def checkpoint(self, step: int) -> None:
        """Report that a checkpoint after ``step`` steps is committed."""
        ...

    def progressed(self, step: int) -> None:
        """Say that training continues, within optimizer step ``step``; called for each batch."""
        ...

    def needed_checkpoints(self) -> Collection[CheckpointName]:
        """Checkpoints that must be kept, because a trial may resume from them.

        They are the newest one that is known to be recorded, and those reported since that may be recorded by now.
        """
        ...

    def should_stop(self) -> bool | Literal["keep"]:
        """Whether training must end after the present step; "keep": with a checkpoint, as it is to continue."""
        ...
