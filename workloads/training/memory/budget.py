"""Enforces a memory budget on this process, and recognises the errors of a step that exceeds it.

On Linux without a GPU the limit is RLIMIT_DATA, set to a warm baseline plus the budget, so a step that exceeds it gets
torch's true allocation error. On CUDA the limit is the caching allocator's share of the device. The process survives
an overrun in both cases.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import torch

from estimators.learning import AttemptPhase
from estimators.model import MIB, mib_in_words
from workloads.training.faults import HostFault, causes_of, message_of
from workloads.training.memory.process_memory import (
    THREAD_STACK_BYTES,
    HeldMemory,
    code_bytes,
    counted_bytes,
    data_bytes,
    give_back_free_memory,
    held_now,
    high_water,
    measure_held,
    num_threads,
)

# Memory that libraries may keep after a first use, such as oneDNN's operations; see docs/decisions/0009.
ALLOWANCE_BYTES = 128 * MIB
CODE_BYTES = 128 * MIB  # of room for code that they may compile in one use

GROWTH_BYTES = MIB // 2  # of the process, after which libraries may keep more with the next use
LATER_BYTES = 16 * MIB  # that they may keep with each of these

USUAL_STACK_BYTES = 8 * MIB  # of a thread whose library chooses the size itself

RESERVE_BYTES = 16 << 10  # kept back for the moment in which nothing else is free


class OutOfMemory(Exception):
    """A step needed more memory than its budget.

    ``measured_bytes`` is the memory over the baseline that the process would have held if the failed request had been
    granted. ``requested_bytes`` is the size of that request, 0 if the error does not say it. ``phase`` is what the
    attempt did at that moment.
    """

    def __init__(
        self,
        requested_bytes: int,
        measured_bytes: int,
        budget_bytes: int | None,
        num_live_threads: int = 0,
        phase: AttemptPhase | None = None,
    ) -> None:
        self.requested_bytes, self.measured_bytes, self.budget_bytes = requested_bytes, measured_bytes, budget_bytes
        self.num_threads, self.phase = num_live_threads, phase
        request = f"; last request {mib_in_words(requested_bytes)}" if requested_bytes else ""
        during = f" during {phase}" if phase else ""
        super().__init__(f"this rank {self._need()}{during}{request}{self._threads()}")

    def __reduce__(self) -> tuple[type[OutOfMemory], tuple[int, int, int | None, int, AttemptPhase | None]]:
        arguments = (self.requested_bytes, self.measured_bytes, self.budget_bytes, self.num_threads, self.phase)
        return OutOfMemory, arguments

    def _need(self) -> str:
        needed, limit = self.measured_bytes / MIB, self.budget_bytes
        if limit is None:
            return f"needed {needed:.1f} MiB, without a budget"
        if self.measured_bytes <= limit:
            return f"used up its budget of {limit / MIB:.1f} MiB"
        # As many digits as tell the two apart; 6 are enough for a byte.
        digits = next(digits for digits in range(1, 7) if round(needed, digits) > round(limit / MIB, digits))
        return f"needed {needed:.{digits}f} MiB, but its budget is {limit / MIB:.{digits}f} MiB"

    def _threads(self) -> str:
        """The threads, if their stacks are the cause: without them the budget would be enough."""
        missing_bytes = self.measured_bytes - (self.budget_bytes or 0)
        if self.budget_bytes is None or not self.num_threads or self.num_threads * THREAD_STACK_BYTES < missing_bytes:
            return ""
        stack = f"{THREAD_STACK_BYTES / MIB:g} MiB or more each for their stacks"
        threads = f"{self.num_threads} thread{'s' * (self.num_threads > 1)}"
        return f"; {threads} that it has started hold {stack}: start fewer"


@dataclass(slots=True)
class _Use:
    """A use of the model, with numbers from before it. ``above_now`` (see ``high_water``) is there once its limit is
    raised; ``marks`` ends with it."""

    marks: ExitStack
    counted_before: int
    kept_before: int
    code_before: int
    is_first: bool
    above_now: Callable[[], int] | None = None


@dataclass(slots=True)
class EnforcedBudget:
    """An enforced budget: ``budget_bytes`` (None: unlimited) over ``baseline`` on ``device``.

    ``kept_bytes`` is memory that libraries have kept since the baseline was taken, and ``code_bytes`` is room for code
    that they have compiled (see ``process_memory.code_bytes``). Neither is charged to the candidate.
    """

    device: torch.device
    baseline: HeldMemory
    budget_bytes: int | None
    kept_bytes: int = 0
    code_bytes: int = 0
    phase: AttemptPhase = AttemptPhase.START
    _settled: set[Hashable] = field(default_factory=set)  # phases, and phases with shapes of batches
    _use: _Use | None = None
    _is_growing: bool = False
    _gives_back: bool = False  # whether libraries drop some of what they keep, and make it again when it is needed
    _counted_bytes: int = 0  # by the limit, after the last use in which libraries could keep something

    @contextmanager
    def during(self, phase: AttemptPhase) -> Iterator[None]:
        """Say what the attempt does meanwhile; after an error it stays said."""
        before, self.phase = self.phase, phase
        yield
        self.phase = before

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Put this around every use of the model: the first in each ``phase`` shows what libraries keep, and the limit
        allows it. So does the first with each new shape (``meet``), and later ones for as long as they keep more, or
        once they have given some back.

        During such a use the limit is raised by ``ALLOWANCE_BYTES``, which is also the most that all of them together
        may keep, or by ``LATER_BYTES`` more than before where nothing is new. None of this is for tensors: raises
        ``OutOfMemory`` if the process exceeded the final limit in between.
        """
        if self.budget_bytes is None or self.device.type != "cpu":
            yield
            return
        with ExitStack() as marks:
            self._use = use = _Use(marks, counted_bytes(), self.kept_bytes, self.code_bytes, self._is_new(self.phase))
            if use.is_first:
                self._raise_limit(ALLOWANCE_BYTES)
            elif self._is_growing or self._gives_back:
                self._raise_limit(min(ALLOWANCE_BYTES, self.kept_bytes + LATER_BYTES))
            yield
            self._use = None
            if use.above_now is not None:
                self._settle(use, use.above_now)
            else:
                self._is_growing = counted_bytes() > self._counted_bytes + GROWTH_BYTES

    def meet(self, shapes: Hashable) -> None:
        """Settle the limit in the present use of the model, if a batch of these ``shapes`` is new in this ``phase``."""
        if self._is_new((self.phase, shapes)) and self._use is not None:
            self._raise_limit(ALLOWANCE_BYTES)

    def _is_new(self, use: Hashable) -> bool:
        is_new = use not in self._settled
        self._settled.add(use)
        return is_new

    def _raise_limit(self, most_bytes: int) -> None:
        """Let libraries keep up to ``most_bytes`` until the present use ends."""
        assert self._use is not None
        self.kept_bytes = most_bytes
        self.restore(CODE_BYTES)
        if self._use.above_now is None:
            self._use.above_now = self._use.marks.enter_context(high_water())

    def _settle(self, use: _Use, above_now: Callable[[], int]) -> None:
        """Set the limit by what libraries have kept in this use."""
        highest = data_bytes() - self.baseline.data_bytes + above_now()  # before free pages in the heap are given back
        if use.is_first or abs(counted_bytes() - use.counted_before) > GROWTH_BYTES:
            held = measure_held() if use.is_first else held_now()  # as to give memory back takes up to 70 ms
            own_gaps = ALLOWANCE_BYTES if self._gives_back else use.kept_before
            self.kept_bytes = min(held.kept_since(self.baseline, own_gaps), self.kept_bytes)
        else:
            self.kept_bytes = use.kept_before
        self.restore()
        highest -= ALLOWANCE_BYTES if self._gives_back else self.kept_bytes  # they may have held more in between
        self._counted_bytes = counted_bytes()
        grown_bytes = self.kept_bytes + self.code_bytes - use.kept_before - use.code_before
        self._is_growing = grown_bytes > GROWTH_BYTES
        if self.budget_bytes is not None and highest > self.budget_bytes:
            raise self.overrun(0, highest)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Lift the limit for work that a GPU machine does in host memory, such as reading a checkpoint."""
        self._set_limit(resource.RLIM_INFINITY)
        try:
            yield
        finally:
            give_back_free_memory()
            self.restore()

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Lift the limit like ``lifted``, and add the growth of the process, except tensors, to the baseline.

        The profiler's first use alone leaves 20 MiB in pieces that malloc cannot give back.
        """
        if self.budget_bytes is None or self.device.type != "cpu":
            yield
            return
        self._set_limit(resource.RLIM_INFINITY)
        before = measure_held()
        try:
            yield
        finally:
            self.baseline = self.baseline.grown(before, measure_held())
            self.restore()

    def restore(self, more_bytes: int = 0) -> None:
        """Set the limit again, from the present baseline, what is kept, and ``more_bytes``."""
        if self.budget_bytes is not None and self.device.type == "cpu":
            code_before, self.code_bytes = self.code_bytes, code_bytes()
            self._gives_back |= self.code_bytes < code_before - GROWTH_BYTES
            kept_bytes = self.kept_bytes + self.code_bytes
            self._set_limit(self.baseline.data_bytes + kept_bytes + self.budget_bytes + more_bytes)

    def _set_limit(self, limit_bytes: int) -> None:
        if self.device.type == "cpu" and self.budget_bytes is not None:
            most = _most_bytes()
            soft = limit_bytes if most is None else most if limit_bytes < 0 else min(limit_bytes, most)
            resource.setrlimit(resource.RLIMIT_DATA, (soft, resource.getrlimit(resource.RLIMIT_DATA)[1]))

    def overrun(self, requested_bytes: int, measured_bytes: int) -> OutOfMemory:
        """The error that this process needs ``measured_bytes``, with the threads started since the baseline."""
        more = num_threads() - self.baseline.num_threads if self.device.type == "cpu" else 0
        return OutOfMemory(requested_bytes, measured_bytes, self.budget_bytes, max(0, more), self.phase)

    def name_limit(self, error: Exception) -> None:
        """Add the budget to a ``MemoryError`` of Python itself, which has no words, where the budget is the limit."""
        if (
            type(error) is MemoryError
            and not error.args
            and self.budget_bytes is not None
            and self.device.type == "cpu"
        ):
            held, most = self.used_bytes() / MIB, self.budget_bytes / MIB
            error.args = (f"its budget is {most:.1f} MiB, and it held {max(0.0, held):.1f} MiB of that",)

    def used_bytes(self) -> int:
        """Bytes that the process now holds over the baseline, without what libraries have kept and compiled."""
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated(self.device) - self.baseline.data_bytes
        return data_bytes() - self.baseline.data_bytes - self.kept_bytes


class SharedLimit:
    """The limit of a process whose trainings share it: the sum of their budgets over the baseline of the first one.

    Each training also compares what it needs alone with its own budget. The whole has ``ALLOWANCE_BYTES`` more for
    what libraries keep, and as much for checkpoints, as no part of it can be told from the others.
    """

    def __init__(self) -> None:
        self._budget: EnforcedBudget | None = None
        self._parts: list[int] = []

    @contextmanager
    def part(
        self, device: torch.device, held_before: HeldMemory, budget_bytes: int, shared_bytes: int
    ) -> Iterator[None]:
        """Raise the limit by one more budget, of which ``shared_bytes`` count once."""
        if self._budget is None:
            self._budget = EnforcedBudget(device, held_before, 0, kept_bytes=2 * ALLOWANCE_BYTES)
        self._parts.append(budget_bytes - shared_bytes)
        self._set(shared_bytes)
        try:
            yield
        finally:
            self._parts.remove(budget_bytes - shared_bytes)
            self._set(shared_bytes)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Lift the limit while a training that joins has its own frozen weights, before it shares those of others."""
        if self._budget is None:
            yield
            return
        with self._budget.lifted():
            yield

    def _set(self, shared_bytes: int) -> None:
        budget = self._budget
        assert budget is not None
        budget.budget_bytes = sum(self._parts) + shared_bytes
        if budget.device.type == "cuda":
            total = torch.cuda.get_device_properties(budget.device).total_memory
            most = budget.baseline.data_bytes + budget.budget_bytes
            torch.cuda.set_per_process_memory_fraction(min(1.0, most / total) if self._parts else 1.0, budget.device)
        elif self._parts:
            budget.restore()
        else:
            budget._set_limit(resource.RLIM_INFINITY)


def baseline(device: torch.device) -> HeldMemory:
    """The memory of this process without a candidate; take it after the warm-up, when all threads run."""
    return HeldMemory(torch.cuda.memory_allocated(device)) if device.type == "cuda" else measure_held()


def with_libraries(device: torch.device, before: HeldMemory) -> HeldMemory:
    """The baseline ``before`` a model was built, with what the process has taken since besides tensors.

    Libraries import parts of themselves when they are first used: 105 MiB where transformers makes a DistilBERT.
    """
    return before if device.type == "cuda" else before.grown(before, measure_held())


@contextmanager
def enforce(device: torch.device, held_before: HeldMemory, budget_bytes: int | None) -> Iterator[EnforcedBudget]:
    """Limit this process to ``budget_bytes`` over ``held_before``; raises ``OutOfMemory`` for any failure at the limit.

    Raises ``HostFault`` if this host does not let the process have as much.
    """
    budget = EnforcedBudget(device, held_before, budget_bytes)
    most = _most_bytes() if device.type == "cpu" else None
    if budget_bytes is not None and most is not None and (needed := held_before.data_bytes + budget_bytes) > most:
        raise HostFault(
            f"a rank needs {needed / MIB:.0f} MiB with its budget of {budget_bytes / MIB:.1f} MiB, but the hard limit "
            f"of its data segment (RLIMIT_DATA) is {most / MIB:.0f} MiB: raise it where ScaMP or Ray is started "
            "(LimitDATA= of a systemd unit, `ulimit -Hd`)"
        )
    if budget_bytes is not None and device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (held_before.data_bytes + budget_bytes) / total), device)
    spare = bytearray(RESERVE_BYTES)
    try:
        budget.restore()
        yield budget
    except Exception as error:
        spare.clear()
        budget._set_limit(resource.RLIM_INFINITY)  # to look at the process takes memory, and so does this call
        overrun = classify(error, budget)
        if overrun is None:
            budget.name_limit(error)
            raise
        raise overrun from error
    finally:
        budget._set_limit(resource.RLIM_INFINITY)
        if budget_bytes is not None and device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0, device)


def _most_bytes() -> int | None:
    """The hard limit, over which this process must not raise its own; None if there is none."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def give_back(device: torch.device) -> None:
    """Give the GPU memory that no tensor uses back to the device: a rank that stays ready may keep only its context."""
    if device.type == "cuda":
        with suppress(RuntimeError):  # after an error of CUDA, which is being raised, all calls fail
            torch.cuda.empty_cache()


def classify(error: BaseException, budget: EnforcedBudget) -> OutOfMemory | None:
    """The overrun that caused ``error``, or None if it has another cause.

    Call it while the failed step's frames, and so its tensors, still exist. Memory in the baseline may have been given
    back, so less than the baseline may be in use.
    """
    used = max(0, budget.used_bytes())
    for seen in causes_of(error):
        message = message_of(seen)
        if isinstance(seen, OutOfMemory):
            return seen
        if isinstance(seen, torch.OutOfMemoryError):
            used = torch.cuda.max_memory_allocated(budget.device) - budget.baseline.data_bytes
            return budget.overrun(_request_bytes(message), used + _request_bytes(message))
        if request := re.search(r"DefaultCPUAllocator: .*tried to allocate (\d+) bytes", message):
            return budget.overrun(int(request[1]), used + int(request[1]))
        if isinstance(seen, MemoryError) and (request_bytes := _request_bytes(message)):  # of NumPy
            return budget.overrun(request_bytes, used + request_bytes)
        if re.search(_UNMAPPED, message):  # no library asks for so much that the rest of the budget says nothing
            return budget.overrun(0, max(used, budget.budget_bytes or 0))
        # Other errors may have other causes: they count as an overrun only if memory is almost used up.
        near = 0 if budget.budget_bytes is None else _near_bytes(budget.budget_bytes, message)
        exhausted = budget.budget_bytes is not None and used > budget.budget_bytes - near
        if exhausted and (isinstance(seen, MemoryError | SystemError) or re.search(_OTHER_FAILURES, message)):
            return budget.overrun(0, max(used, budget.budget_bytes or 0))
    return None


_NO_THREAD = r"start (new )?thread"
_UNMAPPED = r"failed to map segment from shared object(?!: (Operation not permitted|Permission denied))"
_OTHER_FAILURES = rf"bad_alloc|{_NO_THREAD}|Cannot allocate memory|could not (create|execute) a|Resource temporarily"


def _near_bytes(budget_bytes: int, message: str) -> int:
    """Bytes below the budget that count as "at the limit", as a failed operation's temporaries are freed at once.

    A thread that could not start may have asked for the usual stack.
    """
    least = USUAL_STACK_BYTES + MIB if re.search(_NO_THREAD, message) else 4 * MIB
    return max(least, budget_bytes // 8)


def _request_bytes(message: str) -> int:
    """The request that an error of CUDA's allocator or of NumPy names; 0 if there is none."""
    units = {unit: 2 ** (10 * power) for power, unit in enumerate(("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))}
    request = re.search(rf"(?:Tried|Unable) to allocate ([\d.]+) ({'|'.join(units)})", message)
    return int(float(request[1]) * units[request[2]]) if request else 0
