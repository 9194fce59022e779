"""Answers soon: the peak of one rank is printed before this machine is measured and other plans are traced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scamp.cli.terminal import err
from scamp_service.cli.tables.estimate import headline
from scamp_service.cli.terminal import measure_once, progress
from scamp_service.settings import Settings
from scamp_service.sizing.calibration import calibrated
from scamp_service.sizing.early_answers import EarlyAnswer
from scamp_service.sizing.estimate import Estimator
from scamp_service.sizing.tracing.under_way import UnderWay


def answer_first(
    estimator: Estimator, params: Mapping[str, Any], under_way: UnderWay, settings: Settings, *, measures: bool
) -> None:
    """Trace the plain layout of a candidate, and then measure this machine if ``measures`` and nobody has.

    Raises ``InvalidInput`` like ``Estimator.estimate``.
    """
    with progress(under_way, at_once="; Python and torch start first"):
        estimator.begin(params)
    if measures:
        measure_once(settings)
        estimator.know_speed(calibrated(settings.data_dir))


def say(answer: EarlyAnswer) -> None:
    """Print on stderr what one trace says."""
    if answer.is_plain:
        err.print(headline(answer), style="bold", markup=False, soft_wrap=True)
        err.print(f"{answer}; other plans follow", markup=False, soft_wrap=True)
    else:
        err.print(str(answer), style="dim", markup=False, soft_wrap=True)
