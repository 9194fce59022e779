"""Slurm's own daemons for tests, without control groups: on this machine, or on hosts that are namespaces."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.services.hosts import Host
from tests.services.serving import free_port
from tests.waiting import PATIENCE_SECONDS, until

DAEMONS = {
    name: shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    for name in ("munged", "slurmctld", "slurmd")
}
WHY_NOT = "" if os.geteuid() == 0 and None not in DAEMONS.values() else "Slurm is not installed, or this is not root"
CONF = """
ClusterName=test
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=15
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={port}
SlurmdPort={other_port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
GresTypes=gpu
FirstJobId={first_job}
"""


class Slurm:
    """The daemons of a cluster and its commands. A requeued job runs again after 15 s; two minutes are usual."""

    def __init__(self, folder: Path, hosts: Sequence[Host], gpus: int = 0) -> None:
        self.folder, self._hosts, self._processes = folder, hosts, list[subprocess.Popen[bytes]]()
        nodes = [(host.name, host.address) for host in hosts] or [(socket.gethostname().partition(".")[0], "127.0.0.1")]
        lines = [f"SlurmctldHost={nodes[0][0]}({nodes[0][1]})"]
        node = f"CPUs={os.cpu_count()} Gres=gpu:{gpus}"
        lines += [f"NodeName={name} NodeAddr={address} {node}" for name, address in nodes]
        lines.append("PartitionName=all Nodes=ALL Default=YES MaxTime=60")
        first_job = random.randrange(1, 10_000)  # Ray's folder of a job in /tmp has its number, and two may run at once
        conf = CONF.format(folder=folder, port=free_port(), other_port=free_port(), first_job=first_job)
        self._conf = folder / "slurm.conf"
        self._conf.write_text(conf + "\n".join(lines) + "\n")
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # not searched for: namespaces may have none
        for number in range(gpus):
            (folder / f"gpu{number}").touch()
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{gpus - 1}]\n" if gpus else "")
        for name in ("state", *(f"spool-{name}" for name, _ in nodes)):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)

    def start(self) -> None:
        """Start the daemons. Returns once all nodes are idle."""
        munge = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self._start("munged", None, "--foreground", "--force", f"--socket={self.folder}/munge.socket", *munge)
        until((self.folder / "munge.socket").exists, "munge")
        self._start("slurmctld", self._hosts[0] if self._hosts else None, "-D", "-f", str(self._conf))
        for host in self._hosts or (None,):
            self._start("slurmd", host, "-D", "-f", str(self._conf))
        idle = ("sinfo", "--noheader", "--states=idle", "--format=%D")
        until(lambda: self.run(*idle, check=False).strip() == str(max(1, len(self._hosts))), "idle nodes")

    def run(self, *command: str, check: bool = True, variables: Mapping[str, str] = {}) -> str:
        """Output of one of Slurm's commands, run on the first node."""
        kept = {**os.environ, **variables, "SLURM_CONF": str(self._conf)}
        entered = self._hosts[0].entered(Path.cwd()) if self._hosts else []
        return subprocess.run(
            [*entered, *command], env=kept, capture_output=True, text=True, check=check, timeout=PATIENCE_SECONDS
        ).stdout

    def state(self, job: str) -> str:
        """State of a job, such as RUNNING."""
        shown = self.run("scontrol", "show", "job", job)
        return shown.partition("JobState=")[2].split()[0]

    def end(self, job: str) -> str:
        """State of a job once it has ended."""
        until(lambda: self.state(job) not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), "the job's end")
        return self.state(job)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(PATIENCE_SECONDS)

    def _start(self, name: str, host: Host | None, *options: str) -> None:
        program, output = DAEMONS[name], self.folder / f"{name}-{host.name if host else 'here'}.out"
        assert program is not None
        if host is not None:
            host.start([program, *options], output, self.folder, os.environ)
            return
        with output.open("wb") as file:
            started = subprocess.Popen([program, *options], stdout=file, stderr=file, start_new_session=True)
        self._processes.append(started)


@contextmanager
def slurm_on(*hosts: Host, gpus: int = 0) -> Iterator[Slurm]:
    """Run Slurm on these hosts. Its controller runs on the first one; without any host, all runs on this machine.

    Each node says that it has so many ``gpus``.
    """
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # a socket's path may not exceed 107 characters
    cluster = Slurm(folder, hosts, gpus)
    try:
        cluster.start()
        yield cluster
    finally:
        for host in hosts:
            host.end()
        cluster.stop()
        shutil.rmtree(folder)
