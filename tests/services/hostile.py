"""A service that runs users' code as another user, and a workload that tries to read what is not its own.

``hostile_cases`` has the tries.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg

from scamp.client import Client
from scamp_service.errors import Refused
from scamp_service.user_account import account_of, started_as
from tests.services.postgres import PostgresServer, find_postgres, postgres
from tests.services.processes import Served, pids_of
from tests.waiting import PATIENCE_SECONDS, until
from workloads.files.untrusted import remove

ACCOUNTS = ("daemon", "bin", "games", "www-data")
"""Users that exist on most hosts and own nothing: PostgreSQL belongs to another one."""
CANARY = "canary-of-the-service"
HANG_SECONDS = 60.0
MOST_BYTES = 2**26
"""Bytes of an answer that are read."""

WORKLOAD = """
import gc, json, os, pickle, socket, sys
from pathlib import Path
import torch
from workloads.models.vit_digits import VitDigits

SHARED, TRIES, SECRETS, TRAPS = SETTINGS
ROLE = "rank" if "ray::" in Path("/proc/self/cmdline").read_text() else "trace"

def say(**line):
    with open(SHARED + "/said", "a") as file:
        file.write(json.dumps(line) + "\\n")

def try_all():
    for name, kind, argument in TRIES:
        try:
            reached = WAYS[kind](argument)
        except Exception as error:
            reached = False
        say(role=ROLE, name=name, reached=bool(reached))

class Pickled:
    def __init__(self, name):
        self.name = name
    def __reduce__(self):
        return exec, (UNPICKLED.replace("NAME", self.name),)

class Text(str):
    __reduce__ = lambda self: Pickled("metric-name").__reduce__()
    __reduce_ex__ = lambda self, protocol: self.__reduce__()

class Number(float):
    __reduce__ = lambda self: Pickled("metric-value").__reduce__()
    __reduce_ex__ = lambda self, protocol: self.__reduce__()

class Value(torch.Tensor):
    def __reduce_ex__(self, protocol):
        return Pickled("metric-tensor").__reduce__()

UNPICKLED = '''
import gc, json, os
from pathlib import Path
text = Path("/proc/self/cmdline").read_text()
def holds():
    for thing in gc.get_objects():
        try:
            held = vars(thing).get("_url")
        except Exception:
            continue
        if isinstance(held, str) and held.startswith("postgresql"):
            return True
    return False
with open(%r + "/said", "a") as file:
    file.write(json.dumps({"role": "unpickled", "name": "NAME", "reached": holds(), "uid": os.getuid()}) + chr(10))
''' % SHARED

def send_to_sink():
    import ray
    from scamp_service.cluster.sink import SinkClient
    client, answers = SinkClient(ray.get_runtime_context().namespace), []
    for method, number in {"started": 3, "flush": 1, "outcome": 6, "blob": 1}.items():
        try:
            answers.append(repr(client.try_once(method, *[Pickled("message-to-the-sink")] * number)))
        except Exception as error:
            answers.append(type(error).__name__)
    say(role=ROLE, name="sent", reached=False, answers=answers)

class Held:
    pass

def show_that_pickles_run():
    # Where they are read, they find the address of the database if it is there.
    held = Held()
    held._url = "postgresql://"
    pickle.loads(pickle.dumps(Pickled("shown")))

class Hostile(VitDigits):
    def on_step(self, step, steps, optimizer):
        super().on_step(step, steps, optimizer)
        if step == 0 and self.trial.is_real:
            self.artifact("own", b"of the trial")
            exec(TRAPS, {"folder": str(self.trial.folder)})
            show_that_pickles_run()
            send_to_sink()

class Pickles(VitDigits):
    def evaluate(self, model, batch):
        values = super().evaluate(model, batch)
        if self.trial.is_real:
            values[Text("accuracy")] = values.pop("accuracy").as_subclass(Value)
        return values

    def on_evaluate(self, metrics):
        if self.trial.is_real and isinstance(metrics, dict):
            metrics[Text("accuracy")] = Number(0.5)

class Plain(VitDigits):
    def on_step(self, step, steps, optimizer):
        super().on_step(step, steps, optimizer)
        if step == 0:
            self.artifact("secret", CANARY.encode())

try_all()
"""

WAYS = """
import os
def read(path):
    with open(path, "rb") as file:
        return bool(file.read(1))
def listed(path):
    return bool(os.listdir(path))
def written(path):
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
    return True
def memory(pid):
    os.close(os.open("/proc/%d/mem" % pid, os.O_RDWR))
    return True
def signalled(pid):
    os.kill(pid, 0)
    return True
def environment(variables):
    return any(value in os.environ.values() for value in variables)
def answered(request):
    import urllib.request
    url, headers = request
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5).status == 200
def database(url):
    import psycopg
    psycopg.connect(url).close()
    return True
WAYS = dict(read=read, listed=listed, written=written, memory=memory, signalled=signalled, environment=environment,
            answered=answered, database=database)
"""

TRAPS = """
import os, socket
os.chdir(folder)
for name, target in LINKS.items():
    os.symlink(target, name)
os.symlink("to-the-canary", "to-a-link")
os.mkfifo("fifo")
server = socket.socket(socket.AF_UNIX)
server.bind("socket")
os.mkdir("folder")
os.truncate(os.open("hollow", os.O_CREAT | os.O_RDWR), 2**40)
for odd in (b"new\\nline", b"\\xff\\xfe", b"a" * 255, "\\u202e".encode()):
    os.close(os.open(odd, os.O_CREAT | os.O_WRONLY))
deep = os.open(".", os.O_DIRECTORY)
for _ in range(2000):
    os.mkdir("d", dir_fd=deep)
    above, deep = deep, os.open("d", os.O_DIRECTORY, dir_fd=deep)
    os.close(above)
"""


@dataclass(frozen=True, slots=True)
class Try:
    """A try of users' code itself: a function in ``WAYS``, its argument, and the one with which root succeeds."""

    way: str
    argument: Any
    with_rights: Any = None


def why_not() -> str:
    """Why no such service can be started here; empty if it can."""
    if os.geteuid() != 0:
        return "only root may start processes as another user"
    if not find_postgres():
        return "PostgreSQL is not installed"
    try:
        account_of(_account_name())
    except (Refused, StopIteration) as error:
        return str(error) or "no user but root exists here"
    return ""


TRIES = (
    "reads a file of the service", "lists the data directory", "reads the token of Ray's clients",
    "reads the service's log", "writes the service's log", "reads the database's files",
    "reads the passwords of the host", "reads the environment of the API", "reads the environment of the supervisor",
    "opens the memory of the API", "opens the memory of the controller", "lists the open files of the controller",
    "signals the API", "signals the controller", "finds secrets in its environment", "asks the API without the token",
    "connects to the database",
)  # fmt: skip
"""Names of the attempts that users' code makes by itself; ``HostileService.tries`` has their arguments."""


class HostileService:
    """The service, a study of another project, and a hostile one, both at their end, with everything to try."""

    def __init__(self, stack: ExitStack) -> None:
        account = account_of(_account_name())
        assert account is not None
        self.account = account
        self._server = stack.enter_context(postgres())
        url = _with_password(self._server)
        self._private = Path(tempfile.mkdtemp(prefix="scamp-private-"))  # of root alone, like the data directory
        stack.callback(shutil.rmtree, self._private, ignore_errors=True)
        self.shared = Path(tempfile.mkdtemp(prefix="scamp-hostile-", dir="/tmp"))
        stack.callback(remove, self.shared)
        os.chown(self.shared, account.uid, account.gid)
        self.data_dir, self.checkpoints = self._private / "data", self.shared / "checkpoints"
        self.outside = self._private / "outside"
        for folder in (self.outside, self.outside / "artifacts"):
            folder.mkdir()
            (folder / "secret").write_text(CANARY)
        self.token = secrets.token_hex(16)
        self.secrets = {"SCAMP_API_TOKEN": self.token, "SCAMP_DATABASE_URL": url, "AWS_SECRET_ACCESS_KEY": CANARY}
        settings = {"SCAMP_USER_CODE_USER": account.name, "SCAMP_CHECKPOINT_DIR": str(self.checkpoints)}
        self.served = Served(self.data_dir, **self.secrets, **settings)
        stack.callback(self.served.abandon)
        self.client = stack.enter_context(Client(self.served.url, token=self.token))
        self.victim, self.doomed = self._submit("Plain", project="others"), self._submit("Plain", trials=2)
        self.pickles = self._submit("Pickles")
        until(lambda: self.has_ended(self.victim), "the end of the study of another project")
        self.tries = self._tries()
        self.study = self._submit("Hostile")
        for study_id in (self.study, self.doomed, self.pickles):
            with contextlib.suppress(AssertionError):  # whatever hangs is what a case is about
                until(partial(self.has_ended, study_id), "the end of a study")

    def folder(self, study_id: int, number: int = 0) -> Path:
        """The folder of a trial."""
        return self.checkpoints / str(self.client.trial(study_id, number)["id"])

    def has_ended(self, study_id: int) -> bool:
        """Whether a study has ended."""
        return self.client.study(study_id)["finished_at"] is not None

    def said(self, role: str, name: str) -> list[dict[str, Any]]:
        """The notes that users' code has written about one attempt."""
        lines = [json.loads(line) for line in (self.shared / "said").read_text().splitlines()]
        return [line for line in lines if (line["role"], line["name"]) == (role, name)]

    def get(self, path: str, **headers: str) -> tuple[int, bytes, bool]:
        """Status, body and whether the answer did not come in time; status 0 for one that broke off."""
        try:
            with httpx.Client(headers={"Authorization": f"Bearer {self.token}", **headers}) as client:
                end, parts, num_bytes = time.monotonic() + HANG_SECONDS, [], 0
                with client.stream("GET", self.served.url + path, timeout=HANG_SECONDS) as answer:
                    for part in answer.iter_bytes():
                        parts.append(part)
                        num_bytes += len(part)
                        if (is_late := time.monotonic() > end) or num_bytes > MOST_BYTES:
                            return answer.status_code, b"".join(parts), is_late
                    return answer.status_code, b"".join(parts), False
        except httpx.TimeoutException:
            return 0, b"", True
        except httpx.TransportError:
            return 0, b"", False

    def as_hostile(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a Python program as the user of users' code, as a process does that outlives its trial."""
        environment = self.account.environment()
        return subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env=environment,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **started_as(self.account),
        )

    def run_as_hostile(self, program: str, *arguments: str) -> None:
        process = self.as_hostile(program, *arguments)
        process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0

    def names_and_numbers(self) -> list[str]:
        """Paths of the API that answer without waiting for a file system."""
        return ["/v1/studies", f"/v1/studies/{self.study}/trials", "/healthz", "/readyz"]

    def _submit(self, workload: str, *, project: str = "", trials: int = 1) -> int:
        code = self._private / "code"
        code.mkdir(exist_ok=True)
        victim = self.folder(self.victim) if workload != "Plain" else Path()
        links = {
            "to-the-canary": str(self.outside / "secret"),
            "relative": "../" * 12 + str(self.outside / "secret").lstrip("/"),
            "to-a-folder": str(self.outside),
            "to-environ": "/proc/self/environ",
            "to-the-ray-token": str(self.data_dir / "ray-token"),
            "to-shadow": "/etc/shadow",
            "to-the-database": str(self._server.directory / "data/pg_hba.conf"),
            "to-a-kept-file": str(victim / "artifacts/secret"),
            "to-a-checkpoint": str(victim / "step-2/scalars.json"),
            "to-zero": "/dev/zero",
        }
        traps = f"LINKS = {links!r}\n{TRAPS}"
        tries = [[name, attempt.way, attempt.argument] for name, attempt in getattr(self, "tries", {}).items()]
        settings = (str(self.shared), tries if workload == "Hostile" else [], list(self.secrets.values()), traps)
        header = f"SETTINGS, CANARY = {settings!r}, {CANARY!r}\n"
        (code / "mine.py").write_text(header + WAYS + WORKLOAD)
        spec = {
            "name": workload.lower(),
            "workload": f"mine.py:{workload}",
            "objective": {"metric": "accuracy"},
            "space": {"lr": {"low": 1e-3, "high": 1e-2, "log": True}},
            "fixed": {"depth": 1, "width": 32, "patch": 4},
            "budget": {"trials": trials, "steps": 2, "report_every": 1},
            **({"project": project} if project else {}),
        }
        (code / "study.json").write_text(json.dumps(spec))
        return int(self.client.submit(code / "study.json")["id"])

    def _tries(self) -> dict[str, Try]:
        """The attempts of users' code, in ranks and in the process that traces."""
        api, controller = (pids_of(self.data_dir, words)[0] for words in ("-m api", "scamp_service controller"))
        supervisor, token = self.served.process.pid, {"Authorization": f"Bearer {self.token}"}
        address = self.served.url + "/v1/studies"
        url = self.secrets["SCAMP_DATABASE_URL"]
        return {
            "reads a file of the service": Try("read", str(self.outside / "secret")),
            "lists the data directory": Try("listed", str(self.data_dir)),
            "reads the token of Ray's clients": Try("read", str(self.data_dir / "ray-token")),
            "reads the service's log": Try("read", str(self.data_dir / "logs/controller.log")),
            "writes the service's log": Try("written", str(self.data_dir / "logs/controller.log")),
            "reads the database's files": Try("read", str(self._server.directory / "data/PG_VERSION")),
            "reads the passwords of the host": Try("read", "/etc/shadow"),
            "reads the environment of the API": Try("read", f"/proc/{api}/environ"),
            "reads the environment of the supervisor": Try("read", f"/proc/{supervisor}/environ"),
            "opens the memory of the API": Try("memory", api),
            "opens the memory of the controller": Try("memory", controller),
            "lists the open files of the controller": Try("listed", f"/proc/{controller}/fd"),
            "signals the API": Try("signalled", api),
            "signals the controller": Try("signalled", controller),
            "finds secrets in its environment": Try("environment", list(self.secrets.values())),
            "asks the API without the token": Try("answered", [address, {}], [address, token]),
            "connects to the database": Try("database", url.replace(f":{_password(url)}@", "@"), url),
        }


def _account_name() -> str:
    owner = "postgres" if "postgres" in {entry.pw_name for entry in pwd.getpwall()} else "nobody"
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ACCOUNTS if name in names and name != owner)


def _password(url: str) -> str:
    return url.split(":", 2)[2].partition("@")[0]


def _with_password(server: PostgresServer) -> str:
    """The URL of a new database of a server that from here on asks everybody for a password."""
    password, url = secrets.token_hex(16), server.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER ROLE postgres PASSWORD '{password}'")
        (server.directory / "data/pg_hba.conf").write_text("local all all scram-sha-256\n")
        connection.execute("SELECT pg_reload_conf()")
    server.directory.chmod(0o711)  # its socket is for everybody
    return url.replace("postgres@", f"postgres:{password}@")
