"""The state machine of ranks and gangs: what an event leads to. No Ray, no processes, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count

import pytest

from scamp_service.cluster.driver.states.events import (
    AttemptEnded,
    Call,
    CallFailed,
    CallRefused,
    CallUnavailable,
    DevicesLeft,
    EndOrdered,
    Event,
    HoldEnded,
    KillAnswered,
    LaunchOrdered,
    Looked,
    Node,
    NodesSeen,
    Paused,
    ProbeDue,
    ProcessFound,
    RankFound,
    StartFailed,
    StatusArrived,
    StopOrdered,
)
from scamp_service.cluster.driver.states.gang_states import STOP_GRACE_SECONDS
from scamp_service.cluster.driver.states.instructions import (
    AskStatus,
    FindProcess,
    ForgetRank,
    HoldCall,
    Instruction,
    JoinAttempt,
    KillActor,
    KillProcess,
    KillProcessOn,
    RunAttempt,
    StartRank,
    StopAttempt,
)
from scamp_service.cluster.driver.states.rank_record import RankPhase
from scamp_service.cluster.driver.states.rank_states import PROBE_SECONDS, PUT_OFF_SECONDS, RankStates
from scamp_service.cluster.driver.states.rank_table import BETWEEN_SECONDS
from scamp_service.cluster.driver.states.start_failures import CLOSED_AFTER
from scamp_service.cluster.worker.answers import Ended, RankStatus
from scamp_service.control.executor import GangState, Order
from scamp_service.host import Process
from scamp_service.lifecycle import Outcome
from scamp_service.patience import RANK_SECONDS, STARTING_RANK_SECONDS
from tests.ranks import ORDER

HERE = Node("10.0.0.1", 4, {"a/0": 96, "a/1": 96})
AWAY = Node("10.0.0.2", 4, {"b/0": 96})
NODE_OF = {device: node for node in (HERE, AWAY) for device in node.devices}
VERSION = "ours"
DONE = Ended(Outcome.DONE, "", True)


def order(*devices: str, trial: int = 1, code: str | None = None) -> Order:
    return replace(ORDER, trial_id=trial, devices=devices, candidate=replace(ORDER.candidate, code=code))


@dataclass
class Driven:
    """A machine and its clock."""

    states: RankStates
    now: float = 1000.0
    may_act: bool = True

    def on(self, event: Event, after: float = 0.0) -> list[Instruction]:
        self.now += after
        return self.states.handle(event, self.now, self.may_act)

    def launch(self, order: Order) -> list[Instruction]:
        return self.on(LaunchOrdered(order, tuple(NODE_OF[device] for device in order.devices)))

    def look(self, *gone: str, after: float = 0.0, nodes: Iterable[Node] = ()) -> list[Instruction]:
        """Time passes; without ``nodes`` no spare rank starts."""
        return self.on(Looked(tuple(nodes), frozenset(gone)), after)

    def hear(self, name: str, key: str = "", **changes: object) -> list[Instruction]:
        """The rank says how it is."""
        world = {"rank": 0, "world": 1, "reusable": True, "version": VERSION} | changes
        is_here = name.startswith("rank/a")
        status = RankStatus(process(name), key, **world)  # type: ignore[arg-type]
        return self.on(StatusArrived(name, status, is_here))

    def ready(self, *devices: str) -> list[str]:
        """Spare ranks that have started, one on each device."""
        names = [started(self.on(Looked((replace(NODE_OF[device], devices={device: 96}),)))) for device in devices]
        for (name,) in names:
            self.hear(name)
        return [name for (name,) in names]

    def training(self, order: Order) -> list[str]:
        """Ranks that run an attempt."""
        names = self.ready(*order.devices)
        assert self.launch(order) == [RunAttempt(tuple(names), order, host(order))]
        return names

    def state(self, key: str = ORDER.key) -> tuple[GangState, str]:
        gang = self.states.gangs(self.now)[key]
        return gang.state, gang.detail

    def failures(self, device: str, times: int) -> None:
        for _ in range(times):
            (name,) = started(self.on(Looked((replace(NODE_OF[device], devices={device: 96}),)), 100.0))
            self.on(CallFailed(name, Call.STATUS, "no memory\nat all"))


@pytest.fixture
def driven() -> Driven:
    ids = count()
    new = RankStates(new_id=lambda: f"{next(ids)}", version=VERSION, lease_seconds=60.0, max_per_device=2)
    harness = Driven(new)
    harness.on(NodesSeen({"a": "node a", "b": "node b"}, frozenset()))
    return harness


def process(name: str) -> Process:
    return Process("kernel", 7, name)


def host(order: Order) -> str | None:
    ips = [NODE_OF[device].ip for device in order.devices]
    return None if len(ips) == 1 else "127.0.0.1" if len(set(ips)) == 1 else ips[0]


def started(instructions: Iterable[Instruction]) -> list[str]:
    return [instruction.name for instruction in instructions if isinstance(instruction, StartRank)]


def killed(instructions: Iterable[Instruction]) -> set[str]:
    return {instruction.name for instruction in instructions if isinstance(instruction, KillActor)}


def test_each_device_gets_a_spare_rank_that_is_asked_how_it_is_and_held_once_it_answers(driven: Driven) -> None:
    names = ["rank/a/0/0", "rank/a/1/1", "rank/b/0/2"]
    starts = [(StartRank(name, name[5:8]), AskStatus(name)) for name in names]
    assert driven.look(nodes=[HERE, AWAY]) == [start for pair in starts for start in pair]
    assert [driven.hear(name) for name in names] == [[HoldCall(name)] for name in names]
    assert driven.look(nodes=[HERE, AWAY]) == []


def test_a_gang_takes_idle_ranks_and_starts_the_others_behind_which_its_call_waits(driven: Driven) -> None:
    (idle,) = driven.ready("a/0")
    both = order("a/0", "b/0")
    assert driven.launch(both) == [
        StartRank("rank/b/0/1", "b/0"),
        AskStatus("rank/b/0/1"),
        RunAttempt((idle, "rank/b/0/1"), both, HERE.ip),
    ]
    assert driven.launch(both) == []
    assert driven.state() == (GangState.ALIVE, "")


def test_the_store_of_a_gang_on_one_host_is_on_its_loopback_interface_and_one_rank_has_none(driven: Driven) -> None:
    hosts = [driven.launch(order("a/0", "a/1"))[-1], driven.launch(order("b/0", trial=2))[-1]]
    assert [instruction.host for instruction in hosts if isinstance(instruction, RunAttempt)] == ["127.0.0.1", None]


def test_a_launch_is_put_off_while_cores_start_ranks_and_no_spare_rank_overtakes_it(driven: Driven) -> None:
    small = Node("10.0.0.1", 1, {"a/0": 96, "a/1": 96})
    (name,) = started(driven.on(Looked((small,))))
    second = LaunchOrdered(order("a/1"), (small,))
    assert driven.on(second) == [] and not driven.states.gangs(driven.now)
    assert driven.states.put_off(driven.now) == {second.order.key} and not driven.states.put_off(driven.now + 100)
    driven.on(second)
    driven.hear(name)
    assert driven.on(Looked((small,)), PUT_OFF_SECONDS / 2) == []
    assert started(driven.on(second)) == ["rank/a/1/1"] and not driven.states.put_off(driven.now)


def test_half_of_the_cores_that_train_are_left_to_training(driven: Driven) -> None:
    (name,) = driven.training(order("a/0"))
    busy = Node("10.0.0.1", 2, {"a/0": 96, "a/1": 96})
    assert len(started(driven.on(Looked((busy,))))) == 1
    idle = Node("10.0.0.1", 4, {"a/0": 96, "a/1": 96})
    assert len(started(driven.on(Looked((idle,))))) == 1
    assert driven.states.ranks[name].keys


def test_once_half_of_the_cores_train_one_idle_rank_of_the_node_is_enough(driven: Driven) -> None:
    driven.ready("a/1")
    driven.training(order("a/0"))
    assert driven.look(nodes=[Node("10.0.0.1", 2, {"a/0": 96, "a/1": 96})]) == []
    assert started(driven.look(nodes=[Node("10.0.0.1", 4, {"a/0": 96, "a/1": 96})])) == ["rank/a/0/2"]


def test_between_two_trials_of_a_study_no_spare_rank_starts(driven: Driven) -> None:
    few_cores = Node("10.0.0.1", 2, {"a/0": 96, "a/1": 96})
    driven.ready("a/1")
    (name,) = driven.training(order("a/0", code="mine"))
    driven.on(AttemptEnded(name, DONE))
    assert driven.look(nodes=[few_cores]) == []
    assert started(driven.look(nodes=[few_cores], after=BETWEEN_SECONDS)) == ["rank/a/0/2"]


def test_a_spare_rank_that_takes_a_core_from_training_starts_where_the_most_memory_is_free(driven: Driven) -> None:
    for number, (device, mib) in enumerate({"a/0": 50, "a/1": 30}.items(), 1):
        driven.training(replace(order(device, trial=number), mib_per_rank=mib))
    busy = Node("10.0.0.1", 4, {"a/0": 96, "a/1": 96})
    (name,) = started(driven.look(nodes=[busy]))
    assert name.startswith("rank/a/1/")
    driven.hear(name)
    assert driven.look(nodes=[busy]) == []


def test_a_device_without_any_rank_gets_one_even_where_others_are_idle(driven: Driven) -> None:
    three = Node("10.0.0.1", 2, {"a/0": 96, "a/1": 96, "a/2": 96})
    driven.ready("a/1")
    driven.training(order("a/0"))
    assert [name[:8] for name in started(driven.look(nodes=[three]))] == ["rank/a/2"]


def test_no_spare_rank_takes_a_core_from_training_where_no_such_gang_would_fit(driven: Driven) -> None:
    for number, device in enumerate(("a/0", "a/1"), 1):
        driven.training(replace(order(device, trial=number), mib_per_rank=50))
    assert driven.look(nodes=[Node("10.0.0.1", 4, {"a/0": 96, "a/1": 96})]) == []
    assert len(started(driven.look(nodes=[Node("10.0.0.1", 4, {"a/0": 96, "a/1": 100})]))) == 1


def test_a_device_on_which_no_rank_starts_is_closed_with_the_reason(driven: Driven) -> None:
    driven.failures("a/0", CLOSED_AFTER - 1)
    assert driven.states.closed() == {}
    driven.failures("a/0", 1)
    assert list(driven.states.closed()) == ["a/0"]
    assert f"{CLOSED_AFTER} times in a row" in driven.states.closed()["a/0"]
    assert driven.states.closed()["a/0"].endswith(": no memory")
    assert started(driven.look(nodes=[HERE])) == ["rank/a/1/4"], "the other device is tried at once"
    driven.now += 100.0
    driven.ready("a/0")
    assert driven.states.closed() == {}


def test_a_rank_that_ray_refuses_to_start_breaks_its_gang(driven: Driven) -> None:
    driven.launch(order("a/0", "a/1"))
    assert driven.on(StartFailed("rank/a/0/0", "the GCS is away")) == []
    assert driven.state() == (GangState.BROKEN, "a rank on a/0 did not start: the GCS is away")
    assert killed(driven.on(StopOrdered(ORDER.key))) == {"rank/a/1/1"}


def test_a_rank_that_never_answers_is_ended_and_counts_as_a_failed_start(driven: Driven) -> None:
    (name,) = started(driven.look(nodes=[AWAY]))
    assert driven.look(after=STARTING_RANK_SECONDS - 1) == []
    assert driven.look(after=1.0) == [FindProcess(name), KillActor(name)]
    assert started(driven.look(nodes=[AWAY])) == []
    assert started(driven.look(nodes=[AWAY], after=1.0)) == ["rank/b/0/1"]


def test_a_rank_with_user_code_gives_way_to_other_code_when_the_device_is_full(driven: Driven) -> None:
    (mine,) = driven.training(order("a/0", code="mine"))
    driven.on(AttemptEnded(mine, DONE))
    (clean,) = driven.ready("a/0")
    assert driven.launch(order("a/0", trial=2, code="mine"))[0].names == (mine,)
    driven.on(AttemptEnded(mine, DONE))
    assert driven.launch(order("a/0", trial=3, code="other"))[0].names == (clean,)
    driven.on(AttemptEnded(clean, DONE))
    third = driven.launch(order("a/0", trial=4, code="third"))
    assert killed(third) == {mine} and len(started(third)) == 1


def test_idle_ranks_are_ready_once_they_have_started_for_the_code_that_they_have_run(driven: Driven) -> None:
    (mine,) = driven.training(order("a/0", code="mine"))
    (starting,) = started(driven.look(nodes=[HERE])[:1])
    assert driven.states.ranks.ready() == {}
    driven.on(AttemptEnded(mine, DONE))
    assert driven.states.ranks.ready() == {"a/0": frozenset({"mine"})}
    driven.hear(starting)
    assert driven.states.ranks.ready() == {"a/0": frozenset({"mine", None})}


def test_a_rank_that_is_not_clean_is_replaced_and_its_gang_ends_well(driven: Driven) -> None:
    (name,) = driven.training(order("a/0"))
    assert killed(driven.on(AttemptEnded(name, Ended(Outcome.DONE, "a thread is left", False)))) == {name}
    assert driven.state() == (GangState.ALIVE, ""), "it may still hold memory"
    assert driven.on(StopOrdered(ORDER.key)) == []
    assert driven.look(name) == [ForgetRank(name)]
    assert not driven.states.gangs(driven.now)


def test_a_stopped_gang_leaves_idle_ranks(driven: Driven) -> None:
    names = driven.training(order("a/0", "a/1"))
    assert driven.on(StopOrdered(ORDER.key)) == [StopAttempt(name, ORDER.key) for name in names]
    assert driven.on(StopOrdered(ORDER.key)) == []
    for name in names:
        assert driven.state()[0] is GangState.STOPPING
        assert driven.on(AttemptEnded(name, Ended(Outcome.STOPPED, "", True))) == []
    assert not driven.states.gangs(driven.now)
    assert driven.launch(order("a/0", "a/1", trial=2))[0].names == tuple(names)


def test_ranks_that_take_too_long_to_stop_are_killed(driven: Driven) -> None:
    names = driven.training(order("a/0", "a/1"))
    driven.on(StopOrdered(ORDER.key))
    driven.on(AttemptEnded(names[0], Ended(Outcome.STOPPED, "", True)))
    assert driven.look(after=STOP_GRACE_SECONDS) == []
    assert driven.look(after=0.1) == [KillActor(names[1]), KillProcess(names[1], process(names[1]))]


def test_ranks_may_write_a_checkpoint_before_they_stop_but_not_for_ever(driven: Driven) -> None:
    names = driven.training(order("a/0", "a/1"))
    keep = StopOrdered(ORDER.key, keep_seconds=60.0)
    assert driven.on(keep) == [StopAttempt(name, ORDER.key, keep=True) for name in names]
    assert driven.on(keep, after=30.0) == [], "a repeat gives them no more time"
    assert driven.look(after=30.0) == []
    assert killed(driven.look(after=0.1)) == {*names}


def test_ranks_that_write_a_checkpoint_are_killed_once_one_of_them_dies(driven: Driven) -> None:
    names = driven.training(order("a/0", "a/1"))
    driven.on(StopOrdered(ORDER.key, keep_seconds=60.0))
    driven.on(CallFailed(names[0], Call.HOLD, "died"))
    assert killed(driven.look()) == {names[1]}


def test_ranks_that_write_a_checkpoint_that_nobody_needs_any_more_stop_at_once(driven: Driven) -> None:
    (name,) = driven.training(order("a/0"))
    driven.on(StopOrdered(ORDER.key, keep_seconds=60.0))
    assert driven.on(StopOrdered(ORDER.key)) == [StopAttempt(name, ORDER.key)]
    assert driven.on(StopOrdered(ORDER.key, keep_seconds=60.0)) == []
    assert killed(driven.look(after=STOP_GRACE_SECONDS + 0.1)) == {name}


def test_the_others_are_killed_at_once_when_a_rank_dies_while_its_gang_stops(driven: Driven) -> None:
    names = driven.training(order("a/0", "a/1"))
    driven.on(StopOrdered(ORDER.key))
    driven.on(CallFailed(names[0], Call.HOLD, "died"))
    assert killed(driven.look()) == {names[1]}
    assert driven.state()[0] is GangState.STOPPING


def test_a_dead_rank_breaks_its_gang_whose_others_are_killed_once_it_is_stopped(driven: Driven) -> None:
    names = driven.training(order("a/0", "a/1"))
    lost = "The actor exits with a connection error"
    assert killed(driven.on(CallFailed(names[0], Call.HOLD, lost))) == {names[0]}
    driven.on(CallFailed(names[1], Call.RUN, "the other one died"))
    state, detail = driven.state()
    assert state is GangState.BROKEN
    assert detail.startswith("a rank on a/0 died: its process was killed") and "worker-*-7.err" in detail
    driven.look(*names)
    assert driven.state() == (state, detail), "only this machine knows why"
    driven.on(StopOrdered(ORDER.key))
    assert not driven.states.gangs(driven.now)


def test_siblings_of_a_broken_gang_are_killed_by_the_stop_and_not_before(driven: Driven) -> None:
    names = driven.training(order("a/0", "a/1"))
    driven.on(CallFailed(names[0], Call.HOLD, "died"))
    assert driven.look(names[0]) == [ForgetRank(names[0])]
    assert killed(driven.on(StopOrdered(ORDER.key))) == {names[1]}
    assert driven.state()[0] is GangState.STOPPING
    driven.look(names[1])
    assert not driven.states.gangs(driven.now)


def test_a_gang_that_has_stored_its_outcome_is_forgotten_with_its_ranks(driven: Driven) -> None:
    (name,) = driven.training(order("a/0"))
    driven.on(AttemptEnded(name, Ended(Outcome.ERROR, "no such thing", False)))
    assert driven.state() == (GangState.BROKEN, "a rank on a/0 ended: ERROR")
    driven.look(name)
    assert not driven.states.gangs(driven.now)


def test_devices_that_leave_break_the_gangs_on_them(driven: Driven) -> None:
    names = driven.training(order("a/0", "b/0"))
    assert killed(driven.on(DevicesLeft(("b/0",), "node b has left"))) == {names[1]}
    assert driven.state() == (GangState.BROKEN, "node b has left")


def test_a_rank_that_does_not_answer_breaks_its_gang_and_is_killed(driven: Driven) -> None:
    (name,) = driven.training(order("a/0"))
    assert driven.on(ProbeDue(), PROBE_SECONDS) == []
    assert driven.on(ProbeDue(), 0.1) == [AskStatus(name)]
    assert driven.on(ProbeDue(), 0.1) == []
    assert driven.look(after=RANK_SECONDS - 1) == []
    driven.on(Paused(100.0), 100.0)
    assert driven.look() == [], "the silence of a pause of ours does not count"
    assert killed(driven.look(after=1.0)) == {name}
    assert driven.state()[1].startswith("a rank on a/0 has not answered for 30 s: it was frozen, or")
    assert driven.on(ProbeDue()) == [KillActor(name), KillProcess(name, process(name))], "again, until it is gone"


def test_progress_is_a_new_sign_of_training_and_not_a_mere_answer(driven: Driven) -> None:
    (name,) = driven.training(order("a/0"))
    driven.hear(name, ORDER.key, num_signs=1, doing="trains in step 3")
    driven.now += 50.0
    driven.hear(name, ORDER.key, num_signs=1, doing="trains in step 3")
    gang = driven.states.gangs(driven.now)[ORDER.key]
    assert (gang.quiet_seconds, gang.doing) == (50.0, "rank 0 trains in step 3")


def test_a_rank_that_cannot_be_reached_is_asked_again_and_its_attempt_joined(driven: Driven) -> None:
    (name,) = driven.training(order("a/0"))
    assert driven.on(CallUnavailable(name, Call.RUN)) == [JoinAttempt(name, ORDER.key)]
    assert driven.on(CallUnavailable(name, Call.HOLD)) == [AskStatus(name)]
    assert driven.on(CallUnavailable(name, Call.STATUS)) == [AskStatus(name)]
    assert driven.on(CallRefused(name, Call.STATUS)) == []
    assert driven.on(HoldEnded(name)) == [HoldCall(name)]
    assert driven.state() == (GangState.ALIVE, "")


def test_late_answers_of_a_dead_rank_lead_to_no_further_calls(driven: Driven) -> None:
    (name,) = driven.training(order("a/0"))
    driven.on(CallFailed(name, Call.STATUS, "died"))
    late: list[Event] = [
        HoldEnded(name),
        CallUnavailable(name, Call.HOLD),
        CallUnavailable(name, Call.RUN),
        AttemptEnded(name, DONE),
    ]
    assert [driven.on(answer) for answer in late] == [[]] * len(late)
    assert driven.state()[0] is GangState.BROKEN


def test_a_complete_gang_of_an_earlier_controller_is_taken_over(driven: Driven) -> None:
    names = ["rank/a/0/x", "rank/a/1/y"]
    for name in names:
        assert driven.on(RankFound(name, name[5:8])) == [AskStatus(name)]
    assert driven.states.ranks.silent() == {"a/0", "a/1"} == driven.states.closed().keys()
    for number, name in enumerate(names):
        driven.look()
        assert JoinAttempt(name, "9/1") in driven.hear(name, "9/1", rank=number, world=2, version="earlier")
    driven.look()
    assert driven.state("9/1") == (GangState.ALIVE, "") and not driven.states.closed()
    assert [killed(driven.on(AttemptEnded(name, DONE))) for name in names] == [{name} for name in names], "replaced"


def test_a_gang_that_is_found_with_ranks_missing_is_broken_once_every_rank_is_known(driven: Driven) -> None:
    driven.on(RankFound("rank/a/0/x", "a/0"))
    driven.on(RankFound("rank/a/1/y", "a/1"))
    driven.hear("rank/a/0/x", "9/1", world=2)
    driven.look()
    assert driven.state("9/1")[0] is GangState.ALIVE
    driven.on(CallFailed("rank/a/1/y", Call.STATUS, "died"))
    driven.look()
    assert driven.state("9/1") == (GangState.BROKEN, "1 of its 2 ranks are missing")


def test_a_found_gang_may_end_while_other_ranks_have_not_answered_yet(driven: Driven) -> None:
    names = ["rank/a/0/x", "rank/a/1/y", "rank/b/0/z"]
    for name in names:
        driven.on(RankFound(name, name[5:8]))
    driven.hear(names[0], "9/1", rank=0, world=2)
    driven.on(AttemptEnded(names[0], DONE))
    driven.hear(names[1], "9/1", rank=1, world=2)
    driven.hear(names[2])
    driven.look()
    assert driven.state("9/1")[0] is GangState.ALIVE
    driven.on(AttemptEnded(names[1], DONE))
    driven.look()
    assert not driven.states.gangs(driven.now)


def test_a_found_rank_that_is_idle_is_kept_only_if_it_has_our_version(driven: Driven) -> None:
    for name in ("rank/a/0/x", "rank/a/1/y"):
        driven.on(RankFound(name, name[5:8]))
    assert driven.hear("rank/a/0/x") == [HoldCall("rank/a/0/x")]
    assert killed(driven.hear("rank/a/1/y", version="earlier")) == {"rank/a/1/y"}


def test_a_found_rank_that_never_answers_closes_its_device_until_its_process_is_gone(driven: Driven) -> None:
    name = "rank/a/0/x"
    driven.on(RankFound(name, "a/0"))
    assert driven.look(after=RANK_SECONDS) == [FindProcess(name), KillActor(name)]
    assert KillProcess(name, process(name)) in driven.on(ProcessFound(name, process(name)))
    driven.look(after=1000.0)
    assert "does not answer" in driven.states.closed()["a/0"]
    assert driven.look(name) == [ForgetRank(name)]
    assert not driven.states.closed()


def test_a_process_on_another_host_is_killed_by_a_task_there_until_it_says_that_it_is_gone(driven: Driven) -> None:
    (name,) = driven.ready("b/0")
    kill = KillProcessOn(name, process(name), "node b")
    assert driven.on(EndOrdered()) == [KillActor(name), kill]
    assert driven.on(ProbeDue()) == [KillActor(name)]
    driven.on(KillAnswered(name, False))
    assert driven.on(ProbeDue()) == [KillActor(name), kill]
    driven.on(KillAnswered(name, True))
    assert driven.look() == [ForgetRank(name)]


def test_nothing_starts_or_ends_while_another_controller_may_lead(driven: Driven) -> None:
    names = driven.training(order("a/0", "a/1"))
    driven.on(ProbeDue(), 10.0)
    driven.may_act = False
    for event in (CallFailed(names[0], Call.HOLD, "died"), StopOrdered(ORDER.key), EndOrdered()):
        assert driven.on(event) == []
    assert driven.launch(order("b/0", trial=2)) == []
    assert driven.look(after=1000.0, nodes=[HERE, AWAY]) == []
    assert {rank.phase for rank in driven.states.ranks.values()} == {RankPhase.READY}


def test_a_late_answer_of_a_rank_that_is_forgotten_has_no_effect(driven: Driven) -> None:
    (name,) = driven.training(order("a/0"))
    driven.on(EndOrdered())
    driven.look(name)
    assert driven.hear(name) == driven.on(AttemptEnded(name, DONE)) == driven.on(CallFailed(name, Call.RUN, "")) == []
    assert not driven.states.ranks


def test_the_attempts_of_a_pack_share_a_rank_and_end_one_by_one(driven: Driven) -> None:
    first, second, third = (replace(order("a/0", trial=n), pack="1/1") for n in (1, 2, 3))
    (name,) = driven.training(first)
    for later in (second, third):
        assert driven.launch(later) == [RunAttempt((name,), later, None)] and driven.launch(later) == []
    assert set(driven.states.gangs(driven.now)) == {"1/1", "2/1", "3/1"}
    driven.on(AttemptEnded(name, replace(DONE, key="1/1")))  # the one that began it may end first
    fourth = replace(order("a/0", trial=4), pack="1/1")
    assert driven.launch(fourth) == [RunAttempt((name,), fourth, None)]
    for key in ("2/1", "3/1", "4/1"):
        driven.on(AttemptEnded(name, replace(DONE, key=key)))
    assert not driven.states.gangs(driven.now) and not driven.states.ranks[name].keys
    assert [rank.name for rank in driven.states.ranks.idle("a/0")] == [name]


def test_a_pack_that_dies_breaks_every_gang_in_it_and_one_that_is_told_to_stop_ends_no_other(driven: Driven) -> None:
    first, second = (replace(order("a/0", trial=n), pack="1/1") for n in (1, 2))
    (name,) = driven.training(first)
    driven.launch(second)
    assert driven.on(StopOrdered("2/1")) == [StopAttempt(name, "2/1")]
    assert killed(driven.look(after=60.0)) == set(), "the first one would end with it"
    driven.on(CallFailed(name, Call.RUN, "the actor died"))
    assert {driven.state(key)[0] for key in ("1/1", "2/1")} == {GangState.BROKEN, GangState.STOPPING}


def test_a_pack_of_an_earlier_controller_is_taken_over(driven: Driven) -> None:
    driven.on(RankFound("rank/a/0/9", "a/0"))
    joined = driven.hear("rank/a/0/9", "1/1", others=("2/1",), pack="1/1")
    assert [step for step in joined if isinstance(step, JoinAttempt)] == [
        JoinAttempt("rank/a/0/9", key) for key in ("1/1", "2/1")
    ]
    later = replace(order("a/0", trial=3), pack="1/1")
    assert driven.launch(later) == [RunAttempt(("rank/a/0/9",), later, None)]
