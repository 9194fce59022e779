"""Which processes a guardian sees, ends and spares; whole clusters are in ``test_local_ray``."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scamp_service.cluster.local import guardian
from tests.forks import forked, in_fork
from tests.waiting import PATIENCE_SECONDS, until


@contextmanager
def child(name: str) -> Iterator[int]:
    """A process of this name that waits to be killed."""

    def wait() -> None:
        Path("/proc/self/comm").write_text(name)
        signal.pause()

    pid = forked(wait)
    try:
        until(lambda: Path(f"/proc/{pid}/comm").read_text() == f"{name}\n", "it has its name")
        yield pid
    finally:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.mark.parametrize("name", ["raylet", "a) Z 1 (b) S 2"])
def test_a_process_is_found_whatever_its_name_and_is_dead_until_it_is_waited_for(name: str) -> None:
    with child(name) as pid:
        assert guardian._parents()[pid] == os.getpid() and pid in guardian._children(os.getpid())
        assert guardian._name_of_dead(pid) == ""
        os.kill(pid, signal.SIGKILL)
        until(lambda: guardian._name_of_dead(pid) == name, "it is dead")
        os.waitpid(pid, 0)
        assert guardian._name_of_dead(pid) == "" and pid not in guardian._parents()


def test_descendants_are_those_of_all_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardian, "_parents", lambda: {1: 0, 10: 1, 11: 10, 12: 10, 13: 12, 14: 13, 20: 1, 21: 20})
    assert sorted(guardian._descendants(10)) == [11, 12, 13, 14]
    assert sorted(guardian._children(10)) == [11, 12]
    assert guardian._descendants(14) == []


def test_the_end_of_a_guardian_leaves_no_descendant_even_of_those_that_ignore_signals() -> None:
    def end() -> list[int]:
        guardian.TERM_SECONDS = 0.2
        guardian._adopt_orphans()

        def stubborn() -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            forked(signal.pause)
            signal.pause()

        pids = [forked(stubborn), forked(signal.pause)]
        until(lambda: len(guardian._descendants(os.getpid())) == 3, "all have begun")
        pids = guardian._descendants(os.getpid())
        began = time.monotonic()
        guardian._end_descendants()
        assert time.monotonic() - began > guardian.TERM_SECONDS, "they were asked first"
        return [pid for pid in pids if Path(f"/proc/{pid}").exists() and not guardian._name_of_dead(pid)]

    assert in_fork(end) == []


OWN, LEFT, GRANDCHILD, DEAD, GONE = 100, 101, 102, 103, 104


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A guardian's children and clock, and the processes that were killed and reaped."""
    system = SimpleNamespace(now=0.0, children=[OWN, LEFT, DEAD], killed=[], reaped=[])

    def kill(pid: int, number: int) -> None:
        assert number == signal.SIGKILL
        system.killed.append(pid)
        if pid == GONE:
            raise ProcessLookupError

    monkeypatch.setattr(guardian, "_children", lambda parent: list(system.children))
    monkeypatch.setattr(guardian, "_descendants", lambda pid: [GONE, GRANDCHILD] if pid == LEFT else [])
    monkeypatch.setattr(guardian, "_name_of_dead", lambda pid: "python" if pid == DEAD else "")
    monkeypatch.setattr(guardian, "time", SimpleNamespace(monotonic=lambda: system.now))
    posix = SimpleNamespace(
        getpid=os.getpid, kill=kill, waitpid=lambda pid, flags: system.reaped.append(pid), WNOHANG=os.WNOHANG
    )
    monkeypatch.setattr(guardian, "os", posix)
    return system


def adopted() -> guardian._Adopted:
    process = SimpleNamespace(process=SimpleNamespace(pid=OWN))
    node = SimpleNamespace(all_processes={"raylet": [process]})
    return guardian._Adopted(SimpleNamespace(list_all_nodes=lambda: [node]))


def test_a_process_that_a_rank_left_is_killed_with_its_descendants_when_its_time_is_over(system: Any) -> None:
    ours = adopted()
    for system.now in (0.0, guardian.ADOPTED_SECONDS):
        ours.end()
    assert system.killed == []
    system.now += 0.1
    ours.end()
    assert system.killed == [LEFT, GONE, GRANDCHILD]
    assert set(system.reaped) == {DEAD}, "Ray waits for its own processes"


def test_the_time_of_an_adopted_process_begins_anew_when_another_one_gets_its_number(system: Any) -> None:
    ours = adopted()
    ours.end()
    system.now, system.children = guardian.ADOPTED_SECONDS, [OWN]
    ours.end()
    system.now, system.children = guardian.ADOPTED_SECONDS + 1, [OWN, LEFT]
    ours.end()
    assert system.killed == []


class Head:
    """The head of a cluster, and a standard input that stays open until ``close``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dead: list[str] = []
        self.num_checks = 0
        reading, self._writing = os.pipe()
        self._stdin = os.fdopen(reading)
        node = SimpleNamespace(is_head_node=True, node_manager_address="127.0.0.1", node_manager_port=7)
        client = SimpleNamespace(get_all_node_info=lambda timeout: {b"1": node})
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "ray._raylet", SimpleNamespace(GcsClient=lambda address: client))
        monkeypatch.setattr(guardian, "CHECK_SECONDS", 0.0)
        monkeypatch.setattr(sys, "stdin", self._stdin)

    def watch(self) -> None:
        head = SimpleNamespace(dead_processes=lambda: [(name, None) for name in self.dead])
        cluster = SimpleNamespace(head_node=head, address="127.0.0.1:6", list_all_nodes=list)
        guardian._watch(cluster, Path("/nowhere"))

    def close(self) -> None:
        os.close(self._writing)


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    monkeypatch.setattr(guardian._Adopted, "end", lambda adopted: None)
    ray_head = Head(monkeypatch)
    yield ray_head
    ray_head._stdin.close()
    with contextlib.suppress(OSError):
        ray_head.close()


def answering(monkeypatch: pytest.MonkeyPatch, head: Head, *gcs: bool) -> None:
    """The GCS answers as told, one check after another, then never again; the raylet always does."""
    left = list(gcs)

    def answers(address: str) -> bool:
        if address != "127.0.0.1:6":
            assert address == "127.0.0.1:7"
            return True
        head.num_checks += 1
        return left.pop(0) if left else False

    monkeypatch.setattr(guardian, "_answers", answers)


def test_a_head_is_given_up_when_it_did_not_answer_several_times_in_a_row(
    head: Head, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    once = [False] * (guardian.FAILURES - 1)
    answering(monkeypatch, head, True, *once, True, *once, True)
    head.watch()
    assert head.num_checks == 3 + 3 * len(once) + 1
    assert capsys.readouterr().err.splitlines()[-1] == "ending this Ray, because GCS does not answer any more"


def test_a_head_whose_server_has_died_is_given_up_at_once_and_other_processes_may_die(
    head: Head, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head.dead = ["log_monitor"]
    answering(monkeypatch, head, True, True)
    monkeypatch.setattr(guardian, "FAILURES", 2)
    head.watch()
    assert head.num_checks == 4
    head.dead, head.num_checks = ["log_monitor", "raylet"], 0
    answering(monkeypatch, head, True, True)
    head.watch()
    assert head.num_checks == 1
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "Ray's head: dead: ['raylet'], silent: []",
        "ending this Ray, because raylet died",
    ]


def test_a_guardian_ends_when_its_standard_input_closes_though_all_is_well(
    head: Head, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, head, True)
    head.close()
    head.watch()
    assert head.num_checks == 0
    assert capsys.readouterr().err == ""


def test_a_start_is_given_up_when_nothing_new_appears_and_not_before(
    head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The clock is played: each look at the processes takes 50 s, and at first Ray makes a file after each."""
    now, ended = [0.0], threading.Event()

    def look(pid: int) -> list[int]:
        now[0] += 50.0
        if now[0] <= 500.0:
            (tmp_path / f"file {now[0]}").touch()
        return []

    monkeypatch.setattr(guardian, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(guardian, "START_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(guardian, "_descendants", look)

    def end(folder: Path) -> None:
        ended.set()
        sys.exit()

    monkeypatch.setattr(guardian, "_end", end)
    monkeypatch.setattr(threading, "excepthook", lambda raised: None)  # pytest's does not let a thread leave
    with guardian._watched_start(tmp_path):
        assert ended.wait(PATIENCE_SECONDS)
    assert now[0] == 600.0
    assert "because it has started and written nothing for 60 s" in capsys.readouterr().err


def test_the_end_of_a_ray_is_said_with_what_its_servers_complained_of_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "ray" / "session_2026-01-01" / "logs"
    logs.mkdir(parents=True)
    failed = "[2026-01-01 00:00:01,000 E 7 7] (raylet) agent_manager.cc:87: one Ray agent failed"
    (logs / "raylet.out").write_text(f"[2026-01-01 00:00:00,000 I 7 7] (raylet) started\n{failed}\nEvent stats:\n")
    (logs / "raylet.err").write_text(f"{failed}\n")
    (logs / "agent.out").write_text(failed.replace("raylet", "another"))
    guardian._say_end("ending this Ray, because raylet died", tmp_path)
    assert capsys.readouterr().err == f"ending this Ray, because raylet died\n{failed}\n"


def test_agents_have_ports_of_their_own_that_are_free() -> None:
    ports = [port for node in guardian._ports_of_agents(3) for port in node.values()]
    assert len(set(ports)) == 9 and not set(ports) - set(guardian.NOT_EPHEMERAL)
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()
