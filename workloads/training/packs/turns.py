"""Lets the trainings of a pack take turns in one process, and run their passes through the model together.

Each member trains in a thread of its own, with the code that trains it alone. Only the member whose turn it is runs; it
keeps the turn until it asks for a pass that may be made with those of others. When nobody can go on without such a
pass, one member makes it for all that wait. A turn carries the generators of Python, NumPy and torch with it, so that
each member draws what it draws alone. Nothing depends on the clock or on the system's scheduler: the same members make
the same passes in the same order on every rank.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

_numpy: Any = np.random  # its types do not know the generator behind its functions


class Pass(Protocol):
    """A pass that a member waits for. Passes with equal ``key`` are made together, those of the lowest ``rank`` first.

    ``generators`` are those of the member, before the pass and then after it.
    """

    key: object
    generators: Generators

    @property
    def rank(self) -> int:
        """Its place in the order of passes."""


@dataclass(slots=True, eq=False)
class Seat:
    """A member's place in the order of turns. ``awaited`` is the pass that it waits for, ``since`` then."""

    awaited: Pass | None = None
    since: int = 0
    result: Any = None
    error: BaseException | None = None
    _leads: Sequence[Seat] = ()
    _wake: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @property
    def waits(self) -> bool:
        """Whether it waits for a pass."""
        return self.awaited is not None


class Turns:
    """The order of turns. ``make(seats)`` makes the passes that these seats await, and sets their results or errors."""

    def __init__(self, make: Callable[[Sequence[Seat]], None]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._seats: list[Seat] = []
        self._running: Seat | None = None
        self._asked = 0
        self._outside: Any = None  # NumPy's generator when nobody is in

    @property
    def num_seats(self) -> int:
        """The number of members that are in, whether they run or wait."""
        return len(self._seats)

    @contextmanager
    def seat(self) -> Iterator[Seat]:
        """Take part from the next free turn on, until the end of the context."""
        with self._lock:
            seat = Seat()
            self._seats.append(seat)
            must_wait = self._running is not None
            if not must_wait:
                self._running = seat
        if must_wait:
            seat._wake.acquire()
        if self._outside is None:
            self._outside = _numpy.get_bit_generator()
        _numpy.set_bit_generator(np.random.MT19937())
        try:
            yield seat
        finally:
            with self._lock:
                follower = self._next_after(seat)
                self._seats.remove(seat)
                self._running = follower
                if not self._seats:
                    _numpy.set_bit_generator(self._outside)
                    self._outside = None
            if follower is not None:
                follower._wake.release()

    def take_pass(self, seat: Seat, awaited: Pass) -> Any:
        """The result of the pass, which is made with those that others wait for. Raises what the pass raises."""
        self._asked += 1
        seat.awaited, seat.since = awaited, self._asked
        while seat.waits:
            with self._lock:
                follower = self._running = self._next_after(seat)
            assert follower is not None, "this seat waits for a pass, so that there is always something to do"
            if follower is not seat:
                follower._wake.release()
                seat._wake.acquire()
            if seat._leads:
                leads, seat._leads = seat._leads, ()
                self._make_for(leads)
        awaited.generators.restore()
        result, error = seat.result, seat.error
        seat.result = seat.error = None
        if error is not None:
            raise error
        return result

    def _make_for(self, seats: Sequence[Seat]) -> None:
        try:
            if not isinstance(seats[0].awaited, Turn):
                self._make(seats)
        except BaseException as error:  # it belongs to all of them
            for seat in seats:
                seat.error = error
        for seat in seats:
            seat.awaited = None

    def _next_after(self, seat: Seat) -> Seat | None:
        """The seat whose turn it is after ``seat``: the next that awaits nothing, or else the one that has waited for
        a pass for longest, which makes it for all that await such ones."""
        place = self._seats.index(seat)
        others = [*self._seats[place + 1 :], *self._seats[:place]]
        for other in others:
            if other.awaited is None:
                return other
        waiting = [(other, other.awaited) for other in self._seats if other.awaited is not None]
        if not waiting:
            return None
        oldest, its_pass = min(waiting, key=lambda pair: pair[0].since)
        if not isinstance(its_pass, Turn):  # a turn waits for no longer than what was asked for before it
            waiting = [pair for pair in waiting if not isinstance(pair[1], Turn)]
            oldest, its_pass = min(waiting, key=lambda pair: (pair[1].rank, pair[0].since))
        oldest._leads = [other for other, awaited in waiting if awaited.key == its_pass.key]
        return oldest


@dataclass(frozen=True, slots=True)
class Generators:
    """The states of the generators of torch's CPU and of Python, and NumPy's generator, of which each seat has one."""

    torch_state: Tensor
    python_state: Any
    numpy_bits: Any

    @classmethod
    def now(cls) -> Generators:
        """The present states."""
        return cls(torch.get_rng_state(), random.getstate(), _numpy.get_bit_generator())

    def restore(self) -> None:
        """Give the generators these states."""
        torch.set_rng_state(self.torch_state)
        random.setstate(self.python_state)
        _numpy.set_bit_generator(self.numpy_bits)


@dataclass(slots=True, eq=False)
class Turn:
    """Another turn, when the others have had theirs: what a member waits for that makes its passes alone."""

    generators: Generators
    rank: int = 3
    key: object = field(default_factory=object)
