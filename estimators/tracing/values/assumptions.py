"""Assumptions that a trace makes where code looks at values that nobody can know, and the places in the code.

Checks for NaN and infinity, for example, are assumed to find neither, and the trace says so.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

FINITE = "checks for NaN and infinity find none"
FIRST_SAMPLES = "data decide as the first samples do"
HOLDS = "a check holds"
DRAWN = "drawn at random"
EVEN = "choices by the model are even"
ALL_CHOSEN = "a mask chooses all that it may"
DIFFERENT_ROWS = "all rows that sparse gradients look up differ"
ZEROS = "numbers that are taken out of tensors are 0"
DRAWN_ANEW = "random numbers are drawn for each micro-batch, so they depend on the plan"
IN_EVALUATION = "in evaluate, "
IN_ILLUSTRATION = "in illustrate, "
_NOTHING_AFTER = "nothing is predicted after "
_SAID_CHARACTERS = 100  # of an error's own message
_VARYING = {FIRST_SAMPLES, DRAWN, EVEN}

_HOME = Path(__file__).parents[3]
_OURS = ("estimators", "workloads/sandbox", "workloads/parallel", "workloads/training")
_HIDDEN = (str(Path(torch.__file__).parent), *(str(_HOME / name) for name in _OURS))


class Assumptions:
    """The assumptions of one trace.

    ``has_drawn`` says whether any decision was random, ``varies`` whether a step with other samples may decide
    otherwise, and ``follows_data`` whether the samples themselves decide. ``in_evaluation``: what runs now only makes
    metrics or pictures, so whole tensors of unknown values may be looked at: they are 0. ``in_step``: what runs now are
    the passes of a step.
    """

    def __init__(self) -> None:
        self.in_evaluation = self.in_step = self.has_drawn = self.varies = self.follows_data = False
        self._where = ""
        self._places: dict[str, dict[tuple[str, int], None]] = {}

    @property
    def described(self) -> list[str]:
        """Assumptions, each with the first place in the code and the number of others.

        Those about what is only shown change no number that anybody compares; only where its prediction ends is said.
        """
        return [
            _in_words(assumption, list(places))
            for assumption, places in sorted(self._places.items())
            if not assumption.startswith(IN_ILLUSTRATION) or _NOTHING_AFTER in assumption
        ]

    @property
    def has_decided(self) -> bool:
        """Whether any assumption is about a decision by values of tensors."""
        return any(not assumption.endswith(DRAWN_ANEW) for assumption in self._places)

    @property
    def even_choices(self) -> str:
        """The one of ``described`` that choices by the model are even in a step; empty if it makes none."""
        places = self._places.get(EVEN)
        return _in_words(EVEN, list(places)) if places else ""

    @contextmanager
    def of_evaluation(self, where: str = IN_EVALUATION) -> Iterator[None]:
        """Put this around an evaluation: its assumptions say so, and its random draws decide nothing about a step.

        ``where`` is ``IN_ILLUSTRATION`` for what only shows what a model has learned.
        """
        before, self.in_evaluation, self._where = (self.has_drawn, self.in_evaluation, self._where), True, where
        try:
            yield
        finally:
            self.has_drawn, self.in_evaluation, self._where = before

    @contextmanager
    def of_step(self) -> Iterator[None]:
        """Put this around the passes of a step: random numbers that they draw are noted."""
        self.in_step = True
        try:
            yield
        finally:
            self.in_step = False

    def assume(self, *because: str) -> None:
        """Note what the code that runs now lets us assume; ``DRAWN`` is noted as a draw instead."""
        self.varies |= not self.in_evaluation and not _VARYING.isdisjoint(because)
        self.follows_data |= not self.in_evaluation and FIRST_SAMPLES in because
        for assumption in because:
            if assumption == DRAWN:
                self.has_drawn = True
            else:
                frame = calling_frame()
                self._note(assumption, frame.f_code.co_filename, frame.f_lineno)

    def assume_everywhere(self, assumption: str) -> None:
        """Note an assumption that no place in the user's code makes, as the optimizer's is."""
        self._places.setdefault(self._where + assumption, {})

    def draw(self) -> None:
        """Note that a pass draws random numbers; all ranks draw the same ones for what is only shown."""
        if self._where == IN_ILLUSTRATION:
            return
        if self.in_step or self.in_evaluation:
            frame = calling_frame()
            self._note(DRAWN_ANEW, frame.f_code.co_filename, frame.f_lineno)

    def cut(self, error: BaseException) -> None:
        """Note that an evaluation could not be traced beyond the place where this error happened."""
        frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        shown = [place for place in frames if not place[0].startswith((*_HIDDEN, str(_HOME / "workloads")))]
        said = str(error).strip().split("\n")[0][:_SAID_CHARACTERS]
        words = f"{type(error).__name__}: {said}" if said else type(error).__name__
        self._note(f"{_NOTHING_AFTER}{words}", *(shown or frames)[-1])

    def _note(self, assumption: str, file: str, line: int) -> None:
        self._places.setdefault(self._where + assumption, {})[Path(file).name, line] = None


def _in_words(assumption: str, places: Sequence[tuple[str, int]]) -> str:
    if not places:
        return assumption
    (file, line), *others = places
    return f"{assumption} ({file}:{line}{f' and {len(others)} more' if others else ''})"


def calling_frame() -> FrameType:
    """The innermost frame of code that is neither torch's nor this package's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HIDDEN):
        frame = frame.f_back
    return frame
