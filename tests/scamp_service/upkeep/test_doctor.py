"""Each cause of a failed start is made for real in a small environment, and the doctor finds it."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scamp_service.cli.main import app
from scamp_service.cluster.devices.rehearsal import RehearsedNvml
from scamp_service.cluster.local.local_ray import LocalRay
from scamp_service.host import package_versions
from scamp_service.processes.addresses import write_server_file
from scamp_service.processes.supervise import lock_data_dir
from scamp_service.receivers import Receiver
from scamp_service.settings import Settings
from scamp_service.store import schema
from scamp_service.store.store import Store
from scamp_service.upkeep import doctor, machine, service, storage
from scamp_service.upkeep.finding import Finding, Level, finding
from tests.services.s3 import KEY, SECRET, object_storage
from tests.services.serving import free_port
from tests.waiting import PATIENCE_SECONDS

NOBODY = 65534
Cause = Callable[["Surroundings"], dict[str, Any] | None]


class Surroundings:
    """A small environment. ``cleanup`` undoes what a cause has done to it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, cleanup: ExitStack) -> None:
        self.folder, self.patch, self.cleanup = folder, patch, cleanup
        self.data = folder / "data"

    def made(self) -> Path:
        self.data.mkdir()
        return self.data

    def database(self) -> Path:
        Store(f"sqlite:///{self.data / 'scamp.db'}").close()
        return self.data / "scamp.db"

    def sql(self, statement: str) -> None:
        connection = sqlite3.connect(self.database())
        connection.execute(statement)
        connection.commit()
        connection.close()

    def become_ordinary(self) -> None:
        """Not be root any more, whose rights the kernel does not check."""
        if os.geteuid() == 0:
            os.seteuid(NOBODY)
            self.cleanup.callback(os.seteuid, 0)

    def give(self, path: Path) -> None:
        for each in (path, *path.rglob("*")):
            if os.geteuid() == 0:
                os.chown(each, NOBODY, NOBODY)

    def limit(self, kind: int, soft: int) -> None:
        before = resource.getrlimit(kind)
        self.cleanup.callback(resource.setrlimit, kind, before)
        resource.setrlimit(kind, (soft, before[1]))

    def gpu(self, lines: str = "") -> None:
        file = self.folder / "gpus.ini"
        file.write_text(f"[gpu 0]\nname = NVIDIA H100 80GB HBM3\nmib = 81559\n{lines}\n")
        self.patch.setitem(sys.modules, "pynvml", RehearsedNvml(file))

    def module(self, name: str, text: str) -> None:
        (self.folder / f"{name}.py").write_text(text)
        self.patch.setenv("PYTHONPATH", str(self.folder))


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Surroundings]:
    for name in [name for name in os.environ if name.startswith(("SCAMP_", "RAY_")) or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # others must reach it
    folder.chmod(0o755)
    with ExitStack() as cleanup:
        yield Surroundings(folder, monkeypatch, cleanup)
    shutil.rmtree(folder)


# --- causes: each returns the settings with which it shows ----------------------------------------------------------


def a_file_in_its_place(s: Surroundings) -> None:
    s.data.write_text("")


def a_file_in_the_place_of_its_logs(s: Surroundings) -> None:
    (s.made() / "logs").write_text("")


def a_folder_in_the_place_of_its_lock(s: Surroundings) -> None:
    (s.made() / "service.lock").mkdir()


def nowhere_to_make_it(s: Surroundings) -> None:
    s.folder.chmod(0o555)
    s.become_ordinary()


def a_read_only_directory(s: Surroundings) -> None:
    s.made().chmod(0o500)
    s.give(s.data)
    s.become_ordinary()


def another_process(s: Surroundings) -> None:
    s.cleanup.enter_context(lock_data_dir(s.data))


def a_limit_on_files(s: Surroundings) -> None:
    s.made()
    s.limit(resource.RLIMIT_FSIZE, 2**18)


def a_full_disk(s: Surroundings) -> None:
    s.patch.setattr("scamp_service.files.LEAST_FREE_BYTES", 2**62)


def little_space(s: Surroundings) -> None:
    s.patch.setattr(storage, "LOW_BYTES", 2**62)


def files_of_another_user(s: Surroundings) -> None:
    s.database()
    s.patch.setattr(os, "geteuid", lambda: 12345)


def a_database_that_others_read(s: Surroundings) -> None:
    s.database().chmod(0o644)


def a_token_that_others_read(s: Surroundings) -> None:
    (s.made() / "ray-token").touch(0o644)


def a_file_of_tomorrow(s: Surroundings) -> None:
    os.utime(s.database(), (time.time() + 90_000,) * 2)


def a_database_that_is_not_shared(s: Surroundings) -> dict[str, Any]:
    return {"database_url": "sqlite:///scamp.db"}


def a_database_of_another_kind(s: Surroundings) -> dict[str, Any]:
    return {"database_url": "mysql://localhost/scamp"}


def a_server_that_is_away(s: Surroundings) -> dict[str, Any]:
    return {"database_url": f"postgresql://scamp:secret@/scamp?host={s.folder}"}


def a_newer_database(s: Surroundings) -> None:
    s.sql("UPDATE scamp_alembic_version SET version_num = '9999'")


def a_locked_database(s: Surroundings) -> None:
    s.patch.setattr(storage, "LOCK_SECONDS", 0.1)
    holder = sqlite3.connect(s.database(), isolation_level=None)
    s.cleanup.callback(holder.close)
    holder.execute("BEGIN IMMEDIATE")


def a_file_that_is_no_database(s: Surroundings) -> None:
    (s.made() / "scamp.db").write_text("to do: " * 1000)


def tables_of_another_program(s: Surroundings) -> None:
    s.made()
    connection = sqlite3.connect(s.data / "scamp.db")
    connection.execute("CREATE TABLE scamp_studies (x)")
    connection.close()


def a_read_only_database(s: Surroundings) -> None:
    s.database().chmod(0o400)
    s.data.chmod(0o500)
    s.give(s.data)
    s.become_ordinary()


def a_damaged_database(s: Surroundings) -> None:
    with s.database().open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 5000)


def a_network_file_system(s: Surroundings) -> None:
    s.database()
    (s.folder / "mounts").write_text(f"proc /proc proc rw 0 0\nserver:/x {s.folder} nfs4 rw 0 0\n")
    s.patch.setattr(storage, "MOUNTS", s.folder / "mounts")


def checkpoints_that_cannot_be_written(s: Surroundings) -> dict[str, Any]:
    (s.folder / "kept").mkdir(0o555)
    s.become_ordinary()
    return {"checkpoint_dir": str(s.folder / "kept")}


def a_disk_that_is_not_mounted(s: Surroundings) -> dict[str, Any]:
    return {"checkpoint_dir": str(s.folder / "mnt" / "scamp")}


def hosts_without_a_folder(s: Surroundings) -> dict[str, Any]:
    return {"ray_address": "10.0.0.1:6379"}


def a_port_in_use(s: Surroundings) -> dict[str, Any]:
    listener = s.cleanup.enter_context(socket.create_server(("127.0.0.1", 0)))
    return {"port": listener.getsockname()[1]}


def an_address_of_another_machine(s: Surroundings) -> dict[str, Any]:
    return {"host": "192.0.2.1"}


def an_open_address(s: Surroundings) -> dict[str, Any]:
    return {"host": "0.0.0.0"}


def a_token_easy_to_guess(s: Surroundings) -> dict[str, Any]:
    return {"api_token": "secret"}


def a_proxy_without_a_token(s: Surroundings) -> dict[str, Any]:
    return {"trusted_proxies": "127.0.0.1"}


def mail_without_a_server(s: Surroundings) -> dict[str, Any]:
    return {"notify": [Receiver(email="ada@example.org")]}


def devices_of_no_autoscaler(s: Surroundings) -> dict[str, Any]:
    return {"autoscale_devices": 8}


def a_rehearsal_with_a_mistake(s: Surroundings) -> dict[str, Any]:
    file = s.folder / "gpus.ini"
    file.write_text("[gpu 0]\nname = Tesla T4\n")
    return {"rehearsal_gpus": str(file)}


def a_ray_that_is_away(s: Surroundings) -> dict[str, Any]:
    return {"ray_address": f"127.0.0.1:{free_port()}"}


def more_memory_than_there_is(s: Surroundings) -> dict[str, Any]:
    return {"device_mib": 2**30}


def a_user_who_does_not_exist(s: Surroundings) -> dict[str, Any]:
    return {"user_code_user": "nobody-of-this-name"}


def a_service_that_does_not_answer(s: Surroundings) -> None:
    write_server_file(s.made(), f"http://127.0.0.1:{free_port()}")


def a_process_that_was_left(s: Surroundings) -> None:
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", "scamp_service", "controller"]
    variables = {**os.environ, "SCAMP_DATA_DIR": str(s.data)}
    process = subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    s.cleanup.enter_context(process)
    s.cleanup.callback(process.kill)
    assert process.stdout is not None
    process.stdout.readline()


def a_folder_that_was_left(s: Surroundings) -> None:
    s.patch.setattr(tempfile, "tempdir", str(s.folder))
    (s.folder / "scamp-left").mkdir()
    (s.folder / "scamp-left" / ".in-use").touch()


def a_package_that_is_missing(s: Surroundings) -> None:
    (s.folder / "pyproject.toml").write_text('[project]\ndependencies = ["no-such-package", "ray>=2"]\n')
    s.patch.setattr(machine, "ROOT", s.folder)


def a_package_of_another_time(s: Surroundings) -> None:
    (s.folder / "pyproject.toml").write_text('[project]\ndependencies = ["ray<1"]\n')
    s.patch.setattr(machine, "ROOT", s.folder)


def a_version_that_was_not_tested(s: Surroundings) -> None:
    (s.folder / "pyproject.toml").write_text('[project]\ndependencies = ["ray"]\n')
    (s.folder / "constraints.txt").write_text("# locked\nray==1.0\nnot-installed==1\n")
    s.patch.setattr(machine, "ROOT", s.folder)


def a_python_that_is_not_tested(s: Surroundings) -> None:
    s.patch.setattr(machine, "SUPPORTED", ((3, 9),))


def a_torch_that_is_broken(s: Surroundings) -> None:
    s.module("torch", "raise ImportError('libtorch.so: cannot open shared object file')")


TORCH = "__version__ = '2.13'\nclass version: cuda = {cuda}\nclass cuda:\n  is_available = staticmethod(lambda: False)"


def a_torch_without_cuda(s: Surroundings) -> None:
    s.gpu()
    s.module("torch", TORCH.format(cuda=None))


def an_old_driver(s: Surroundings) -> None:
    s.gpu()
    s.module("torch", TORCH.format(cuda="'13.0'"))


def a_driver_that_was_replaced(s: Surroundings) -> None:
    s.gpu("[driver]\nerror = 18")


def a_gpu_in_mig_mode(s: Surroundings) -> None:
    s.gpu("mig = 3g.40gb:40192")


def a_gpu_that_others_use(s: Surroundings) -> None:
    s.gpu("processes = 200:20000")


def a_gpu_that_is_not_there(s: Surroundings) -> None:
    s.gpu()
    s.patch.setenv("CUDA_VISIBLE_DEVICES", "7")


def little_shared_memory(s: Surroundings) -> None:
    s.patch.setattr(machine, "OBJECT_STORE_BYTES", 2**62)


def few_processes(s: Surroundings) -> None:
    s.limit(resource.RLIMIT_NPROC, 300)
    s.become_ordinary()


def no_temporary_folder(s: Surroundings) -> None:
    s.patch.setattr(tempfile, "tempdir", str(s.folder / "gone"))


def a_proxy_for_everything(s: Surroundings) -> None:
    s.patch.setenv("http_proxy", "http://proxy.example:3128")


def a_host_without_an_address(s: Surroundings) -> None:
    s.patch.setattr(socket, "gethostname", lambda: "nowhere.invalid")


def a_clock_that_was_not_set(s: Surroundings) -> None:
    s.patch.setattr(time, "time", lambda: 86400.0)


def a_ray_without_tokens(s: Surroundings) -> None:
    s.patch.setenv("RAY_AUTH_MODE", "disabled")


ERRORS: dict[Cause, tuple[str, str]] = {
    a_file_in_its_place: ("data directory", "choose another one with --data-dir"),
    a_file_in_the_place_of_its_logs: ("data directory", "/logs.*choose another one"),
    a_folder_in_the_place_of_its_lock: ("data directory", r"service\.lock.*choose another one"),
    nowhere_to_make_it: ("data directory", "Permission denied.*writable for this user"),
    a_read_only_directory: ("data directory", "Permission denied.*writable for this user"),
    another_process: ("data directory", "another ScaMP process .* stop it"),
    a_limit_on_files: ("data directory", r"File too large.*choose another one"),
    a_full_disk: ("disk", "full disk: free some space"),
    files_of_another_user: ("owner", "belongs to .*chown -R 12345"),
    a_database_that_is_not_shared: ("database", "write sqlite:////PATH"),
    a_database_of_another_kind: ("database", "cannot use mysql.*postgresql://"),
    a_server_that_is_away: ("database", "check that it is running"),
    a_newer_database: ("database", "newer ScaMP.*upgrade ScaMP"),
    a_locked_database: ("database", "another process has locked it.*end that process"),
    a_file_that_is_no_database: ("database", "not a database; choose another"),
    tables_of_another_program: ("database", "scamp_studies; choose another database"),
    a_read_only_database: ("database", "writable for this user"),
    a_damaged_database: ("database", "damaged; restore a copy"),
    checkpoints_that_cannot_be_written: ("checkpoints", "Permission denied.*SCAMP_CHECKPOINT_DIR"),
    a_port_in_use: ("port", "is in use; stop the process"),
    an_address_of_another_machine: ("port", "choose another --host"),
    an_open_address: ("access", "set SCAMP_API_TOKEN"),
    a_token_easy_to_guess: ("access", "at least 16"),
    a_proxy_without_a_token: ("access", "set SCAMP_API_TOKEN as well"),
    mail_without_a_server: ("notices", "SCAMP_SMTP_URL"),
    devices_of_no_autoscaler: ("autoscaler", "name your Ray cluster with SCAMP_RAY_ADDRESS"),
    a_rehearsal_with_a_mistake: ("virtual devices", "SCAMP_REHEARSAL_GPUS.*lacks 'mib'"),
    a_ray_that_is_away: ("Ray", "cannot be reached.*--ray-address"),
    a_user_who_does_not_exist: ("user code", "create it"),
    a_package_that_is_missing: ("packages", "no-such-package is not installed: run"),
    a_package_of_another_time: ("packages", "ray<1 is not installed: run"),
    a_torch_that_is_broken: ("torch", "cannot be imported .*libtorch.*run `make setup`"),
    a_torch_without_cuda: ("torch", "has no CUDA, but this machine has 1 GPUs: run"),
    an_old_driver: ("torch", "CUDA 13.0 cannot use the GPUs: update NVIDIA's driver"),
    no_temporary_folder: ("temporary files", "no temporary folder .*TMPDIR"),
    a_ray_without_tokens: ("Ray's tokens", "unset it, or set it to token"),
}
WARNINGS: dict[Cause, tuple[str, str]] = {
    little_space: ("disk", "free some"),
    a_database_that_others_read: ("secrets", "chmod 600 .*scamp.db"),
    a_token_that_others_read: ("secrets", "chmod 600 .*ray-token"),
    a_file_of_tomorrow: ("dates", "timedatectl"),
    a_network_file_system: ("database", "not safe on nfs4"),
    a_disk_that_is_not_mounted: ("checkpoints", "mount it first"),
    hosts_without_a_folder: ("checkpoints", "set SCAMP_CHECKPOINT_DIR"),
    more_memory_than_there_is: ("virtual devices", "fewer or smaller"),
    a_service_that_does_not_answer: ("service", "does not answer .*api.log"),
    a_process_that_was_left: ("leftovers", r"kill \d+"),
    a_folder_that_was_left: ("leftovers", "1 folders .*the next start removes them"),
    a_version_that_was_not_tested: ("packages", "ray==1.0: run"),
    a_python_that_is_not_tested: ("python", r"one of 3\.9"),
    a_driver_that_was_replaced: ("GPUs", "restart this machine"),
    a_gpu_in_mig_mode: ("GPUs", "nvidia-smi -i 0 -mig 0"),
    a_gpu_that_others_use: ("GPUs", r"20000 MiB of GPU 0 \(processes 200\).*end them"),
    a_gpu_that_is_not_there: ("GPUs", "CUDA_VISIBLE_DEVICES=7 names no GPU"),
    little_shared_memory: ("shared memory", "--shm-size"),
    few_processes: ("processes", r"allows 300 .*raise it"),
    a_proxy_for_everything: ("proxies", r"add localhost,127\.0\.0\.1"),
    a_host_without_an_address: ("names", "/etc/hosts"),
    a_clock_that_was_not_set: ("clock", "1970.*timedatectl"),
}


def answer_of(s: Surroundings, name: str, options: dict[str, Any] | None = None) -> Finding:
    if name in doctor.OF_THE_MACHINE:
        return finding(name, doctor.OF_THE_MACHINE[name])
    settings = Settings(**{"data_dir": s.data, **(options or {})})
    return finding(name, partial(doctor.OF_THE_SERVICE[name], settings))


@pytest.mark.parametrize(
    ("cause", "level"),
    [*((cause, Level.ERROR) for cause in ERRORS), *((cause, Level.WARNING) for cause in WARNINGS)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_each_cause_is_found(cause: Cause, level: Level, surroundings: Surroundings) -> None:
    name, words = {**ERRORS, **WARNINGS}[cause]
    with surroundings.patch.context() as surroundings.patch, surroundings.cleanup:
        answer = answer_of(surroundings, name, cause(surroundings))
    assert answer.level == level, answer
    assert re.search(words, answer.words, re.DOTALL), answer


@pytest.mark.postgres
def test_a_database_whose_encoding_lacks_characters_is_found(surroundings: Surroundings, postgres_server: Any) -> None:
    answer = answer_of(surroundings, "database", {"database_url": postgres_server.create_database("LATIN1")})
    assert answer.level == Level.ERROR and "createdb -E UTF8" in answer.words


@pytest.mark.postgres
def test_a_new_database_is_well_and_stays_empty(surroundings: Surroundings, postgres_server: Any) -> None:
    for _ in range(2):
        answer = answer_of(surroundings, "database", {"database_url": postgres_server.create_database()})
        assert answer.level == Level.OK and "its tables are made at the first start" in answer.words


@pytest.mark.full
def test_object_storage_is_written_listed_read_and_left_as_it_was(surroundings: Surroundings) -> None:
    with object_storage() as storage:
        answer = answer_of(surroundings, "checkpoints", {"checkpoint_dir": storage.url})
        assert answer.level == Level.OK and storage.url in answer.words, answer
        assert storage.names() == []
        storage.refuses = 403
        answer = answer_of(surroundings, "checkpoints", {"checkpoint_dir": storage.url})
        assert answer.level == Level.ERROR and "let these credentials" in answer.words, answer
        assert SECRET not in answer.words and KEY not in answer.words


@pytest.mark.full
def test_a_bucket_that_is_missing_is_found(surroundings: Surroundings) -> None:
    with object_storage():
        answer = answer_of(surroundings, "checkpoints", {"checkpoint_dir": "s3://nowhere/a"})
    assert answer.level == Level.ERROR and "create the bucket" in answer.words, answer


def test_too_few_open_files_are_found() -> None:
    code = (
        "import resource; from scamp_service.upkeep import machine, finding; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); print(finding.finding('files', machine.open_files))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert "Level.ERROR" in done.stdout and "ulimit -Hn" in done.stdout, done.stderr


@pytest.mark.ray
def test_a_cluster_of_another_version_is_found(surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        cluster = LocalRay(Settings(data_dir=surroundings.data), surroundings.data)
        stack.callback(cluster.stop)
        cluster.start()
        at = {"ray_address": cluster.address}
        refused = answer_of(surroundings, "Ray", at)
        assert refused.level == Level.ERROR and "RAY_AUTH_TOKEN_PATH" in refused.words
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(cluster.token_path))
        well = answer_of(surroundings, "Ray", at)
        assert well.level == Level.OK and cluster.address in well.words
        monkeypatch.setattr(service, "package_versions", lambda: {**package_versions(), "ray": "2.0"})
        other = answer_of(surroundings, "Ray", at)
        assert other.level == Level.ERROR and "and this is 2.0: install the same" in other.words


@pytest.mark.full
def test_a_machine_that_is_well_has_no_errors_and_nothing_is_made(surroundings: Surroundings) -> None:
    answers = list(doctor.findings(lambda: Settings(data_dir=surroundings.data)))
    assert [answer for answer in answers if answer.level == Level.ERROR] == []
    assert [answer.name for answer in answers] == ["settings", *doctor.OF_THE_MACHINE, *doctor.OF_THE_SERVICE]
    assert not surroundings.data.exists()


def test_a_database_that_needs_an_upgrade_is_not_changed(surroundings: Surroundings, monkeypatch: Any) -> None:
    before = surroundings.database().read_bytes()
    monkeypatch.setattr(schema, "REVISION", "9.9.9")
    answer = answer_of(surroundings, "database")
    assert answer.level == Level.OK and "is upgraded from" in answer.words
    assert (surroundings.data / "scamp.db").read_bytes() == before


def test_a_running_service_is_no_trouble(surroundings: Surroundings) -> None:
    surroundings.cleanup.enter_context(lock_data_dir(surroundings.made()))
    listener = surroundings.cleanup.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = listener.getsockname()[1]
    write_server_file(surroundings.data, f"http://127.0.0.1:{port}")
    for name in ("data directory", "port"):
        answer = answer_of(surroundings, name, {"port": port})
        assert answer.level == Level.OK and str(port) in answer.words


def test_a_check_that_fails_itself_does_not_hide_the_others() -> None:
    assert finding("names", lambda: str(1 // 0)).level == Level.WARNING


def test_wrong_settings_are_an_error_and_the_machine_is_checked_nevertheless(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "OF_THE_MACHINE", {"python": machine.python})
    monkeypatch.setenv("SCAMP_PORT", "many")
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 1
    levels = {each["name"]: each["level"] for each in json.loads(done.stdout)}
    assert levels == {"settings": "error", "python": "ok"}


def test_a_variable_with_nearly_the_name_of_a_setting_is_found(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "OF_THE_MACHINE", {})
    monkeypatch.setattr(doctor, "OF_THE_SERVICE", {"access": service.access})
    monkeypatch.setenv("SCAMP_ADDRESS", "http://127.0.0.1:8100")
    monkeypatch.setenv("SCAMP_KEEP_SECOND", "5")
    first = next(doctor.findings(Settings))
    assert first.level == Level.WARNING and "did you mean SCAMP_KEEP_SECONDS?" in first.words


def test_errors_are_the_exit_status_and_each_check_has_a_line(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "OF_THE_MACHINE", {"python": machine.python})
    monkeypatch.setattr(doctor, "OF_THE_SERVICE", {"access": service.access})
    monkeypatch.setenv("SCAMP_HOST", "0.0.0.0")
    done = CliRunner().invoke(app, ["doctor", "--data-dir", str(surroundings.data)])
    assert done.exit_code == 1
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["ok", "settings"], ["ok", "python"], ["error", "access"],
    ]  # fmt: skip
    monkeypatch.setenv("SCAMP_HOST", "127.0.0.1")
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0
