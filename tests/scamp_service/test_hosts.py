"""A study over several hosts, each a set of namespaces, started with the very commands of ``docs/hosts.md``.

Host ``head`` has the database and the service but no devices. A trial needs four ranks, so its gangs stretch over
two nodes with two devices each.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml

from scamp_service.lifecycle import Outcome, TrialState
from scamp_service.store.store import Store
from tests.services.hosts import Host, command_of, network
from tests.services.processes import ROOT
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.hosts, pytest.mark.ray, pytest.mark.soak]

PAGE = (ROOT / "docs" / "hosts.md").read_text()
TOKEN, RAY_HEAD, RAY_NODE, SERVICE = range(2, 6)  # steps of the page
SMALL_HEAD = " --num-cpus=1 --include-dashboard=false --object-store-memory=100000000"
SMALL_NODE = " --num-cpus=2 --object-store-memory=100000000 --resources='{\"virtual_device\": 2}'"
OPTIONS = {"SCAMP_DEVICE_MIB": "21", "SCAMP_MAX_GANGS_PER_DEVICE": "1", "SCAMP_LEASE_SECONDS": "3"}
STARTED = "Ray runtime started"
EVERY, STEPS = 5, 40


def study(steps: int) -> dict[str, object]:
    """A study whose candidates need four devices of 21 MiB."""
    return {
        "name": "four ranks",
        "workload": "vit_digits",
        "objective": {"metric": "accuracy"},
        "space": {"lr": {"low": 1e-3, "high": 1e-2, "log": True}},
        "fixed": {"depth": 4, "width": 192, "patch": 4, "batch": 32},
        "search": {"sampler": "random"},
        "stopping": {"rule": "none"},
        "budget": {"trials": 1, "steps": steps, "report_every": EVERY, "max_lost": 5},
    }


class Network:
    """Hosts on which the steps of the page are taken. ``nodes`` has those on which Ray runs now."""

    def __init__(self, head: Host, nodes: list[Host]) -> None:
        self.head, self.hosts, self.nodes = head, [head, *nodes], list[Host]()
        self._folder = head.outside.parent
        self._ray: dict[str, subprocess.Popen[bytes]] = {}
        assert self.take(TOKEN, head).wait(PATIENCE_SECONDS) == 0, self.output(head, TOKEN)
        for node in nodes:
            shutil.copytree(head.outside / ".ray", node.outside / ".ray")  # as the page says
        self.take(RAY_HEAD, head, SMALL_HEAD)
        until(lambda: STARTED in self.output(head, RAY_HEAD), "Ray's head")

    def take(self, step: int, host: Host, options: str = "", **variables: str) -> subprocess.Popen[bytes]:
        """Run the commands of one step of the page on a host; ``options`` follow the last command."""
        return self._run(host, step, commands(step, host, self.head) + options, **variables)

    def join(self, host: Host) -> None:
        """Start Ray on a node; again if Ray gives up its start, as it does on a busy machine."""
        process = self.take(RAY_NODE, host, SMALL_NODE)
        until(lambda: STARTED in self.output(host, RAY_NODE) or process.poll() is not None, f"Ray on {host.name}")
        if process.poll() is None:
            self._ray[host.name] = process
            self.nodes.append(host)
        else:
            self.join(host)

    def leave(self, host: Host) -> None:
        """Stop Ray on a node, as the page says."""
        end([host], "ray start")
        self._ray[host.name].wait(PATIENCE_SECONDS)
        self.nodes.remove(host)

    def lose(self, host: Host) -> None:
        """The power of a node fails."""
        host.kill()
        self.nodes.remove(host)
        self.hosts.remove(host)

    def submit(self, steps: int) -> subprocess.Popen[bytes]:
        """Submit a study of one trial on the head; the process ends with the study."""
        (self.head.outside / "study.yaml").write_text(yaml.safe_dump(study(steps)))
        command = commands(6, self.head, self.head).replace("examples/digits.yaml", f"{self.head.disk}/study.yaml")
        return self._run(self.head, 6, command)

    def _run(self, host: Host, step: int, command: str, **variables: str) -> subprocess.Popen[bytes]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SCAMP_", "PYTHON"))}
        environment = kept | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"} | variables
        return host.start(["sh", "-ec", command], self._output(host, step), ROOT, environment)

    def _output(self, host: Host, step: int) -> Path:
        return self._folder / f"{host.name}-{step}.out"

    def output(self, host: Host, step: int) -> str:
        """The output of a step."""
        file = self._output(host, step)
        return file.read_text() if file.exists() else ""

    def store(self) -> Store:
        """The study database, on the head's disk."""
        return Store(f"sqlite:///{self.head.outside}/.scamp/scamp.db")

    def num_devices(self) -> int:
        """Devices that the service sees."""
        store = self.store()
        described = store.cluster.recorded()
        store.close()
        return len(described[0].devices) if described else 0

    def num_attempts(self) -> int:
        return len(self.outcomes())

    def outcomes(self) -> list[Outcome | None]:
        """Outcomes of the attempts of all trials."""
        store = self.store()
        outcomes = [attempt.outcome for trial in store.trials.page(1) for attempt in store.attempts.of_trial(trial.id)]
        store.close()
        return outcomes

    def log(self) -> str:
        return (self.head.outside / ".scamp" / "logs" / "controller.log").read_text()[-6000:]


def commands(step: int, host: Host, head: Host) -> str:
    """Commands of a step of the page, on this host."""
    section = next(part for part in PAGE.split("\n## ") if part.startswith(f"{step}. "))
    lines = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    assert lines, f"step {step} of docs/hosts.md has no commands"
    python = shlex.quote(sys.executable)
    names = {
        ".venv/bin/ray": shlex.quote(str(Path(sys.executable).with_name("ray"))),
        ".venv/bin/scamp": f"{python} -m scamp_service",
        "HEAD": head.address,
        "NODE": host.address,
        "/mnt/scamp": str(host.shared),
    }
    text = "\n".join(lines)
    for name, meant in names.items():
        text = text.replace(name, meant)
    return text


@contextmanager
def running(*names: str) -> Iterator[Network]:
    """A head with a service, and the nodes ``names``, of which the first two have joined."""
    with network("head", *names) as (head, *nodes):
        net = Network(head, nodes)
        for node in nodes[:2]:
            net.join(node)
        net.take(SERVICE, head, **OPTIONS)
        until(lambda: "ScaMP is at" in net.output(head, SERVICE), "the service")
        until(lambda: net.num_devices() == 4, "the devices of two nodes")
        yield net


def assert_trains(net: Network) -> None:
    """Wait until a gang reports, with ranks on the first two nodes."""
    until(lambda: trains(net), "a gang that reports")
    assert all(node.pids("ray::Rank") for node in net.nodes[:2])


def trains(net: Network) -> bool:
    """Whether a trial trains and has reported."""
    store = net.store()
    try:
        running = [trial for trial in store.trials.page(1) if trial.state is TrialState.RUNNING]
        return any(store.reports.metrics(trial.id) for trial in running)
    finally:
        store.close()


def complete(net: Network, submitted: subprocess.Popen[bytes], steps: int, num_lost: int) -> int:
    """Wait for the end of the study, which may lose this many attempts; check that each metric is there once, and no
    memory reserved. Returns the number of hosts over which every attempt stretched."""
    try:
        code = submitted.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        code = None
    assert code == 0, f"{code}: {net.output(net.head, 6)}\n{net.log()}"
    store = net.store()
    [trial] = store.trials.page(1)
    assert trial.state is TrialState.COMPLETED
    assert [row.step for row in store.reports.metrics(trial.id)] == list(range(EVERY, steps + 1, EVERY)), (
        "each metric once"
    )
    attempts = store.attempts.of_trial(trial.id)
    assert [attempt.outcome for attempt in attempts].count(Outcome.DONE) == 1
    assert len(attempts) <= 1 + num_lost, [(attempt.outcome, attempt.detail) for attempt in attempts]
    [num_hosts] = {len({device.split("/")[0] for device in attempt.devices}) for attempt in attempts}
    assert store.attempts.open() == [], "no MiB stays reserved"
    store.close()
    assert not list(net.head.outside.glob(".scamp/checkpoints")), "checkpoints are where all hosts see them"
    assert not any(list(node.outside.glob(".scamp")) for node in net.nodes), "no path of the head is used on a node"
    return num_hosts


def _is_empty(host: Host) -> bool:
    return not host.pids()


def shut_down(net: Network) -> None:
    """Stop the service, then Ray on the nodes, then on the head, and see that no process is left on any host."""
    end([net.head], "scamp_service serve")
    end([host for host in net.hosts if host is not net.head], "ray start")  # a node asks the head before it ends
    end([net.head], "ray start")
    for host in net.hosts:
        try:
            until(partial(_is_empty, host), "its processes end")
        except AssertionError:
            pytest.fail(f"left on host {host.name}: {[command_of(pid) for pid in host.pids()]}")


def end(hosts: list[Host], words: str) -> None:
    """Send SIGTERM to the processes of hosts whose command lines have ``words``, and wait for their end."""
    for host in hosts:
        for pid in host.pids(words):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    until(lambda: not any(host.pids(words) for host in hosts), f"the end of {words}")


def a_gang_over_two_hosts_trains_with_the_commands_of_the_page() -> int:
    with running("b", "c") as net:
        return complete(net, net.submit(10), 10, num_lost=0)


def a_host_that_loses_power_is_replaced_by_one_that_joins() -> int:
    with running("b", "c", "d") as net:
        _, c, d = net.hosts[1:]
        submitted = net.submit(STEPS)
        assert_trains(net)
        net.lose(c)
        net.join(d)
        num_hosts = complete(net, submitted, STEPS, num_lost=1)
        shut_down(net)
        return num_hosts


def a_host_that_freezes_is_replaced_and_disturbs_nothing_when_it_continues() -> int:
    with running("b", "c", "d") as net:
        _, c, d = net.hosts[1:]
        submitted = net.submit(STEPS)
        assert_trains(net)
        c.freeze()
        net.join(d)
        num_hosts = complete(net, submitted, STEPS, num_lost=1)
        c.thaw()
        until(lambda: not c.pids("ray::"), "the ranks of the frozen host end by themselves")
        shut_down(net)
        return num_hosts


def the_ranks_of_a_host_that_stays_cut_off_end_before_the_trial_runs_again() -> int:
    with running("b", "c", "d") as net:
        _, c, d = net.hosts[1:]
        submitted = net.submit(STEPS)
        assert_trains(net)
        c.disconnect()
        net.join(d)
        until(lambda: not c.pids("ray::Rank"), "the ranks of the host end by themselves")
        assert net.num_attempts() == 1
        num_hosts = complete(net, submitted, STEPS, num_lost=1)
        c.reconnect()
        shut_down(net)
        return num_hosts


def a_host_that_was_cut_off_for_a_while_may_come_back() -> int:
    with running("b", "c") as net:
        _, c = net.hosts[1:]
        submitted = net.submit(STEPS)
        assert_trains(net)
        ranks = set(c.pids("ray::Rank"))
        c.disconnect()
        time.sleep(40)
        c.reconnect()
        until(lambda: net.num_attempts() == 2 or not ranks & set(c.pids()), "the end of the gang's ranks")
        assert not ranks & set(c.pids()), "no attempt begins while they live"
        net.leave(c)  # Ray on it has ended, or is about to
        net.join(c)
        num_hosts = complete(net, submitted, STEPS, num_lost=2)
        shut_down(net)
        return num_hosts


def a_drained_host_gives_its_trials_to_others() -> int:
    with running("b", "c", "d") as net:
        _, c, d = net.hosts[1:]
        submitted = net.submit(STEPS)
        assert_trains(net)
        net.join(d)
        net.leave(c)
        num_hosts = complete(net, submitted, STEPS, num_lost=1)
        assert net.outcomes() == [Outcome.STOPPED, Outcome.DONE], "nothing is lost"
        until(lambda: not c.pids(), "the end of the processes of the drained host")
        shut_down(net)
        return num_hosts


SCENARIOS = (
    a_gang_over_two_hosts_trains_with_the_commands_of_the_page,
    a_host_that_loses_power_is_replaced_by_one_that_joins,
    a_host_that_freezes_is_replaced_and_disturbs_nothing_when_it_continues,
    the_ranks_of_a_host_that_stays_cut_off_end_before_the_trial_runs_again,
    a_host_that_was_cut_off_for_a_while_may_come_back,
    a_drained_host_gives_its_trials_to_others,
)
"""Each ends with a completed study, and returns the number of hosts over which its gang stretched."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_study_over_several_hosts_completes(scenario: Callable[[], int]) -> None:
    assert scenario() == 2
