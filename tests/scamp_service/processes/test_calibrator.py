"""A service that measures its machine by itself. The measurement is a script that prints a device kind, or does not."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from estimators.devices.kind import DeviceKind, Rate
from scamp.cli.terminal import err
from scamp_service.cli import terminal
from scamp_service.host import Process
from scamp_service.processes import calibrator as module
from scamp_service.processes.calibrator import Calibrator
from scamp_service.settings import Settings
from scamp_service.sizing import calibration
from scamp_service.sizing.calibration import calibrated, lock_machine, speed_words
from tests.waiting import until

KIND = DeviceKind("a CPU", {"matmul": Rate(1e-6, 1e-11, 1e-10)}, "measured today")
MEASURES = f"print({json.dumps(asdict(KIND))!r})"
FAILS = "import sys; sys.exit('no memory is left')"
FORKS = """
import os, pathlib, sys, time
child = os.fork()
if child:
    pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {child}")
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(module, "is_quiet", lambda: True)
    monkeypatch.setattr("scamp_service.control.self_calibration.IDLE_SECONDS", 1e-6)
    monkeypatch.setattr(calibration, "_LOCK", f"\0scamp-test-{id(monkeypatch)}")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def use(source: str, *arguments: str) -> None:
        monkeypatch.setattr(calibration, "COMMAND", [sys.executable, "-c", source, *arguments])

    return use


@pytest.fixture
def measuring(tmp_path: Path) -> Iterator[Calibrator]:
    calibrator = Calibrator(tmp_path)
    yield calibrator
    calibrator.end()


def tick_until(measuring: Calibrator, done: Callable[[], bool], condition_name: str) -> None:
    def tick() -> bool:
        measuring.tick(True)
        return done()

    until(tick, condition_name)


def tick_until_known(measuring: Calibrator, data_dir: Path) -> None:
    tick_until(measuring, lambda: not measuring.words, "the machine is measured")
    assert calibrated(data_dir) is not None


def test_an_idle_service_measures_its_machine_once_and_keeps_the_result(
    tmp_path: Path, script: Callable[..., None], measuring: Calibrator
) -> None:
    script(MEASURES)
    measuring.tick(False)
    assert "as soon as no study runs" in measuring.words
    tick_until_known(measuring, tmp_path)
    kind = calibrated(tmp_path)
    assert kind is not None
    assert kind.rates == KIND.rates
    assert kind.quick_seconds is not None
    assert "was measured in 1 s by itself" in speed_words(kind) and "is more exact" in speed_words(kind)
    script(FAILS)  # would be seen
    restarted = Calibrator(tmp_path)
    restarted.tick(True)
    assert restarted.words == "", "a restarted service does not measure again"


def test_another_cpu_or_torch_is_measured_again(
    tmp_path: Path, script: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    script(MEASURES)
    tick_until_known(Calibrator(tmp_path), tmp_path)
    monkeypatch.setattr(calibration, "measured_on", lambda: "a CPU, 2 cores, torch 99.0")
    assert calibrated(tmp_path) is None
    tick_until_known(Calibrator(tmp_path), tmp_path)


def test_a_study_that_arrives_ends_the_measurement_and_its_ranks_and_it_is_made_later(
    tmp_path: Path, script: Callable[..., None], measuring: Calibrator
) -> None:
    script(FORKS, str(tmp_path / "pids"))
    tick_until(measuring, lambda: "is being measured" in measuring.words, "it has begun")
    until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text(), "the child has forked")
    measured = [Process.of(int(pid)) for pid in (tmp_path / "pids").read_text().split()]
    measuring.tick(False)
    assert "as soon as no study runs" in measuring.words
    until(lambda: all(process.is_gone for process in measured), "its processes have ended")
    script(MEASURES)
    tick_until_known(measuring, tmp_path)


def test_a_failed_measurement_says_why_once_and_is_not_repeated_at_once(
    script: Callable[..., None],
    measuring: Calibrator,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script(FAILS)
    monkeypatch.setattr("scamp_service.control.self_calibration.TRIES", 2)

    def failed(times: int) -> bool:
        return measuring._num_failures == times and measuring._measurement is None

    with caplog.at_level(logging.WARNING):
        tick_until(measuring, lambda: failed(1), "it has failed")
        for _ in range(3):
            measuring.tick(True)
        assert failed(1)
        monkeypatch.setattr("scamp_service.control.self_calibration.PAUSE_SECONDS", 0.0)
        tick_until(measuring, lambda: failed(2), "it has failed again")
        for _ in range(3):
            measuring.tick(True)
    assert failed(2)
    assert [record.message for record in caplog.records if "no step times" in record.message] == [
        "no step times are predicted: this machine cannot be measured: no memory is left"
    ]
    assert "no memory is left; “scamp calibrate” tries again" in measuring.words


def test_two_services_of_a_host_do_not_measure_at_the_same_time(
    tmp_path: Path, script: Callable[..., None], measuring: Calibrator
) -> None:
    script(MEASURES)
    other = lock_machine()
    assert other is not None and lock_machine() is None
    for _ in range(3):
        measuring.tick(True)
    assert measuring._measurement is None and measuring._num_failures == 0
    other.close()
    tick_until_known(measuring, tmp_path)


def test_whoever_waits_at_a_terminal_has_the_machine_measured_first_and_scripts_do_not_wait(
    tmp_path: Path, script: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script(MEASURES)
    settings = Settings(data_dir=tmp_path)
    terminal.measure_once(settings)
    assert calibrated(tmp_path) is None
    monkeypatch.setattr(err, "_force_terminal", True)
    script(FAILS)
    terminal.measure_once(settings)
    assert "cannot be measured: no memory is left; no step times are predicted" in capsys.readouterr().err
    monkeypatch.setattr(terminal, "MEASURE_SECONDS", 0.1)
    script("import time; time.sleep(600)")
    terminal.measure_once(settings)
    assert "took more than 0.1 s, as other processes use it; no step times" in capsys.readouterr().err
    monkeypatch.setattr(terminal, "MEASURE_SECONDS", 60.0)
    script(MEASURES)
    terminal.measure_once(settings)
    assert calibrated(tmp_path) is not None and "measured a CPU in" in capsys.readouterr().err
    script(FAILS)
    terminal.measure_once(settings)
    assert capsys.readouterr().err == "", "once"
