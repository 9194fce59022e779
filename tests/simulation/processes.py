"""The processes of a simulation that run the real controller: they crash, stand still and compete for the lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scamp_service.control.controller import Controller, TimeAndTokens
from scamp_service.control.leadership import Leader, LeaderElection, Leadership
from scamp_service.control.steady_clock import SteadyClock
from scamp_service.errors import Unavailable
from scamp_service.model import Lease
from scamp_service.store.parts.part import Part
from tests.simulation.services import SimulatedExecutor, SimulatedProposer, SimulatedSizer

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation


class Crash(BaseException):
    """The controller is killed here."""


class UnreliableProxy:
    """Passes the calls of one controller on. It may be killed before or after some of them, or stand still before."""

    def __init__(self, target: Any, methods: frozenset[str], process: ControllerProcess, prefix: str = "") -> None:
        self._target, self._methods, self._process, self._prefix = target, methods, process, prefix

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if isinstance(attribute, Part):
            return UnreliableProxy(attribute, self._methods, self._process, f"{name}.")
        full_name = self._prefix + name
        if not callable(attribute) or name == "reading":  # it asks nothing
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            if full_name in self._methods:
                self._process.simulation.num_acts += full_name != "leases.renew"
                self._process.disturb(f"before {full_name}")
            if isinstance(self._target, Part) and not self._process.simulation.world.has_database:
                raise Unavailable("the database is away")
            result = attribute(*args, **kwargs)
            self._process.delay()
            if full_name in self._methods:
                self._process.disturb(f"after {full_name}")
            return result

        return call


WRITES = frozenset(
    {
        *("studies.move", "trials.create", "trials.move", "trials.redate_refusals"),
        *("attempts.begin", "attempts.move", "leases.take", "leases.renew"),
    }
)
CALLS = frozenset({"launch", "stop"})
QUESTIONS = frozenset({"request"})


class ControllerProcess:
    """A process that runs a controller while it leads, and is started again after each crash."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self.simulation, self.number, self.life = simulation, number, 0
        self.stands_still = False
        self.continues_at = self.starts_at = 0.0
        self.start()

    def start(self) -> None:
        self.life += 1
        simulation = self.simulation
        self.clock = SteadyClock(simulation.world.wall_clock, simulation.clock)
        self.sizer = SimulatedSizer(simulation.clock, simulation.rng, simulation.faults.fail_sizing)
        self.proposer = SimulatedProposer(simulation.clock, simulation.rng)
        store: Any = UnreliableProxy(simulation.store, WRITES, self)
        leadership = Leadership(
            store.leases,
            2.0,
            holder=f"controller {self.number} life {self.life}",
            clock=simulation.clock,
            wall_clock=simulation.world.wall_clock,
            is_gone=lambda holder: False,
        )
        self.election = LeaderElection(leadership, self.begin)

    @property
    def due(self) -> list[float]:
        """When this process has something to do: it begins, continues, or has an answer of its sizer or a sampler."""
        sized = [ready for ready, _ in self.sizer.pending.values()]
        proposed = [ready for ready, *_ in self.proposer.pending.values()]
        return [self.starts_at, self.continues_at, *sized, *proposed]

    def begin(self, lease: Lease) -> Leader:
        """Run the real controller on the fenced store; a lost race for the lease must not show anywhere."""
        simulation = self.simulation
        fenced: Any = UnreliableProxy(simulation.fence(lease), WRITES, self)
        executor: Any = UnreliableProxy(SimulatedExecutor(simulation.world, lease.term), CALLS, self)
        self.proposer = SimulatedProposer(simulation.clock, simulation.rng, simulation.faults.slow_sampler)
        proposer: Any = UnreliableProxy(self.proposer, QUESTIONS, self)
        controller = Controller(
            fenced,
            executor,
            self.sizer,
            proposer,
            time_and_tokens=TimeAndTokens(self.clock, simulation.clock, simulation.new_token),
        )
        return SimulatedLeader(controller)

    def tick(self) -> None:
        """One cycle, unless the process is dead or stands still."""
        if self.stands_still or self.simulation.clock.now < self.starts_at:
            return
        simulation = self.simulation
        acts, now = simulation.num_acts, simulation.clock.now
        try:
            self.election.tick()
            if self.election.leads:
                simulation.is_quiet = (simulation.num_acts, simulation.clock.now) == (acts, now)
        except Unavailable:
            return
        except Crash:
            self.simulation.num_crashes += 1
            self.starts_at = self.simulation.clock.now + self.simulation.rng.uniform(0.0, 30.0)
            self.start()

    def disturb(self, where: str) -> None:
        rng, faults = self.simulation.rng, self.simulation.faults
        if rng.random() < faults.crash / 2:
            raise Crash(where)
        if rng.random() < faults.pause / 2:
            self.stand_still(rng.uniform(0.5, 20.0))

    def delay(self) -> None:
        """Ranks continue, and report, while a call takes its time."""
        simulation = self.simulation
        if simulation.rng.random() < simulation.faults.slow_call:
            simulation.world.advance(simulation.clock.now + simulation.rng.uniform(0.0, 1.0))

    def stand_still(self, seconds: float) -> None:
        """The world continues, and the others with it; then this process continues where it stood."""
        simulation, self.stands_still = self.simulation, True
        simulation.num_pauses += 1
        self.continues_at = until = simulation.clock.now + seconds
        while simulation.clock.now < until:
            simulation.cycle()
        self.stands_still = False


@dataclass
class SimulatedLeader:
    controller: Controller

    def tick(self) -> None:
        self.controller.tick()

    def close(self) -> None:
        """Nothing to let go of."""

    def end(self) -> None:
        """Nothing to end."""
