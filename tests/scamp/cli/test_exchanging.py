"""Commands that take trials out, bring studies in, and change what a study is to try."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa

from scamp.client import Client
from scamp.errors import NotFound
from scamp_service.cli import main
from scamp_service.errors import InvalidInput
from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.settings import ROOT
from scamp_service.store import schema
from scamp_service.store.store import Store
from tests.services.serving import fill, free_port, served, settings_in
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Store]]:
    with served(settings_in(tmp_path, port=free_port())) as (address, store):
        monkeypatch.setenv("SCAMP_ADDRESS", address)
        yield address, store


def scamp(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["scamp", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    code: Any = ended.value.code
    return code or 0


@pytest.mark.full
def test_trials_are_exported_and_read_as_a_data_frame(
    service: tuple[str, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, store = service
    study = fill(store)
    assert scamp(monkeypatch, "export", str(study.id), "--output", str(tmp_path / "trials.csv")) == 0
    with (tmp_path / "trials.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["number"], row["state"]) for row in rows] == [("0", "COMPLETED"), ("1", "RUNNING"), ("2", "WAITING")]
    assert [float(row["params.lr"]) for row in rows] == [0.01, 0.02, 0.03]
    assert list(rows[0])[:5] == ["number", "state", "value", "params.lr", "metrics.accuracy"]
    assert [row["metrics.accuracy"] for row in rows] == ["0.53", "", ""]
    assert scamp(monkeypatch, "export", str(study.id), "--format", "parquet") == 2, "Parquet needs a file"
    assert scamp(monkeypatch, "export", "99") == 2
    assert scamp(monkeypatch, "export", str(study.id), "-o", str(tmp_path / "trials.xlsx")) == 2, "no such format"
    assert scamp(monkeypatch, "export", str(study.id), "-o", str(tmp_path / "none" / "trials.csv")) == 2, "no folder"
    assert scamp(monkeypatch, "enqueue", str(study.id), "lr=0.01", "--value", "nan") == 2
    assert [json.loads(row["repeats"]) for row in rows] == [[], [], []]
    with Client(address) as client:
        assert len(list(client.trials(study.id, states=("completed",)))) == 1
        assert client.enqueue(study.id, {"lr": 0.05}, values=0.9) == [3]
        with pytest.raises(NotFound, match=r"of the best trial, 3, was told: it was not trained here"):
            client.weights(study.id, None, tmp_path / "best.pt")
        client.delete_trial(study.id, 3)
        frame = client.trials_frame(study.id)
        assert list(frame["params.lr"]) == [0.01, 0.02, 0.03] and list(frame.index) == [0, 1, 2]
        assert list(frame)[:4] == ["state", "value", "params.lr", "metrics.accuracy"]
        assert str(frame["created_at"].dt.tz) == "UTC"


def test_a_trial_and_all_that_runs_are_shown(
    service: tuple[str, Store], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    _, store = service
    study = fill(store)
    assert scamp(monkeypatch, "show", str(study.id), "0") == 0
    shown = capsys.readouterr().out
    assert "completed" in shown and "lr=0.01" in shown and "0.5300 at step" in shown
    assert scamp(monkeypatch, "show", str(study.id), "0", "--json") == 0
    assert json.loads(capsys.readouterr().out)["evaluations"]
    with store._database.write() as connection:
        detail = "ValueError: no\nTraceback:\n  File net.py"
        connection.execute(sa.update(schema.attempts).values(detail=detail))
    assert scamp(monkeypatch, "show", str(study.id), "0") == 0
    assert detail in "\n".join(map(str.rstrip, capsys.readouterr().out.splitlines())), "a traceback is shown whole"
    assert scamp(monkeypatch, "top") == 0
    assert re.search(rf"{study.id} +{study.name} +running +1 waiting 1 running 1 completed", capsys.readouterr().out)
    assert scamp(monkeypatch, "top", "--json") == 0
    assert [row["id"] for row in json.loads(capsys.readouterr().out)["studies"]] == [study.id]


@pytest.mark.parametrize(("words", "index", "completed"), [("scamp us", 1, "usage"), ("scamp show --js", 2, "--json")])
def test_a_shell_completes_commands_and_options(words: str, index: int, completed: str) -> None:
    environment = os.environ | {"COMP_WORDS": words, "COMP_CWORD": str(index), "_SCAMP_COMPLETE": "complete_bash"}
    command = [sys.executable, "-m", "scamp"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, check=True)
    assert completed in done.stdout.split()
    script = subprocess.run([*command, "completion", "bash"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "_SCAMP_COMPLETE" in script.stdout


NO_CONTROLLER = b"the controller does not run, so no trial is started: run `scamp serve`\n"


@pytest.mark.full
def test_every_command_prints_any_name_to_a_terminal_without_unicode(service: tuple[str, Store]) -> None:
    address, store = service
    spec = {**fill(store).spec, "name": "größe 日本"}
    study = store.studies.create(spec, now=1.0).id
    store.trials.create(study, [(0, {"lr": "naïve"})], now=1.0)

    def printed(*arguments: str, error: bytes = b"") -> str:
        environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LANG": "C", "SCAMP_ADDRESS": address}
        command = [sys.executable, "-m", "scamp_service", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE_SECONDS, cwd=ROOT)
        assert (done.returncode, done.stderr) == (0, error)
        return done.stdout.decode()

    assert "naïve" in printed("export", str(study)) and "größe 日本" in printed("status", str(study), "--yaml")
    assert r"gr\xf6\xdfe \u65e5\u672c" in printed("list", error=NO_CONTROLLER)


@pytest.mark.parametrize("number", ["1_0", "+1", "1.0", "one"])
def test_numbers_of_studies_are_digits(monkeypatch: pytest.MonkeyPatch, number: str, capsys: Any) -> None:
    assert scamp(monkeypatch, "status", number) == 2
    assert f"'{number}' is not a whole number" in capsys.readouterr().err


@pytest.mark.full
def test_a_study_is_enqueued_into_extended_and_cloned(
    service: tuple[str, Store], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, store = service
    study = fill(store)
    assert scamp(monkeypatch, "enqueue", str(study.id), "lr=0.05") == 0
    assert store.trials.numbered(study.id, 3).params == {"lr": 0.05}
    assert scamp(monkeypatch, "enqueue", str(study.id), "lr=5") == 2
    assert scamp(monkeypatch, "extend", str(study.id), "--trials", "33") == 0
    assert scamp(monkeypatch, "extend", str(study.id)) == 2
    assert scamp(monkeypatch, "extend", str(study.id), "--target", "0.99", "--drop", "seconds") == 0
    assert store.studies.get(study.id).spec["budget"]["target"] == 0.99
    assert scamp(monkeypatch, "extend", str(study.id), "--drop", "target") == 0
    assert store.studies.get(study.id).spec["budget"]["target"] is None
    for target in ("high", "nothing=0.5", "accuracy=high"):
        assert scamp(monkeypatch, "extend", str(study.id), "--target", target) == 2
    assert scamp(monkeypatch, "prioritize", str(study.id), "-5") == 0
    assert store.studies.get(study.id).spec["priority"] == -5
    assert scamp(monkeypatch, "prioritize", str(study.id), "101") == 2
    assert scamp(monkeypatch, "clone", str(study.id), "--name", "again") == 0
    clone = store.studies.get(study.id + 1)
    assert (clone.name, clone.spec["budget"]["trials"], clone.state) == ("again", 33, StudyState.RUNNING)
    capsys.readouterr()
    assert scamp(monkeypatch, "status", str(study.id), "--yaml") == 0
    file = tmp_path / "changed.yaml"
    file.write_text(capsys.readouterr().out.replace("trials: 33", "trials: 5"))
    assert scamp(monkeypatch, "clone", str(study.id), "--file", str(file)) == 0
    original = store.studies.get(study.id).spec
    assert store.studies.get(study.id + 2).spec == {**original, "budget": {**original["budget"], "trials": 5}}
    with Client(address) as client, pytest.raises(InvalidInput, match="at least 33"):
        client.extend(study.id, trials=1)


def test_failed_trials_of_a_study_are_retried(
    service: tuple[str, Store], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, store = service
    study = fill(store)
    waiting = store.trials.numbered(study.id, 2)
    assert scamp(monkeypatch, "retry", str(study.id)) == 0
    assert store.trials.move(waiting.id, waiting.state, 0, TrialState.FAILED, now=9.0)
    assert scamp(monkeypatch, "retry", str(study.id), "0") == 2, "it has completed"
    assert store.trials.get(waiting.id).state is TrialState.FAILED
    assert scamp(monkeypatch, "retry", str(study.id), "2") == 0
    assert store.trials.get(waiting.id).state is TrialState.WAITING
    said = capsys.readouterr().out
    assert said.splitlines() == [f"no trial of study {study.id} has failed", "trials that run again: 2"]


def test_a_study_of_optuna_is_imported_and_shown(
    service: tuple[str, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = service
    theirs = f"sqlite:///{tmp_path / 'optuna.db'}"
    source = optuna.storages.RDBStorage(theirs)
    study = optuna.create_study(study_name="theirs", storage=source)
    study.add_trial(optuna.create_trial(value=0.5))
    source.engine.dispose()
    source.remove_session()
    assert scamp(monkeypatch, "import", theirs, "--data-dir", str(tmp_path)) == 0
    with Client(address) as client:
        (shown,) = client.studies()
        assert (shown["name"], shown["state"], shown["best"]["value"]) == ("theirs", "COMPLETED", 0.5)
    assert scamp(monkeypatch, "import", str(tmp_path), "--data-dir", str(tmp_path)) == 2, "the metric is not named"


def test_commands_for_a_study_take_numbers_of_trials(
    service: tuple[str, Store], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, store = service
    study = fill(store).id
    for words in (["pause", "1", "2"], ["resume", "2"], ["prioritize", "7", "--trial", "1"], ["stop", "1"]):
        assert scamp(monkeypatch, words[0], str(study), *words[1:]) == 0
    first, second = store.trials.with_numbers(study, [1, 2])
    assert (first.priority, first.state, second.paused) == (7, TrialState.CANCELLED, False)
    assert scamp(monkeypatch, "delete", str(study), "2", "--yes") == 2, "it has not ended"
    assert scamp(monkeypatch, "delete", str(study), "0", "--yes") == 0
    assert [trial.number for trial in store.trials.every(study)] == [1, 2]
    assert f"trial 0 of study {study} is deleted" in capsys.readouterr().out
