"""How busy a rank is, measured minute by minute."""

import time
from types import SimpleNamespace

import pytest

from estimators.model import MIB
from placement.packing.device_time import (
    MOST_WATCHES,
    DeviceTime,
    IdleRule,
    Watch,
    busy_share,
    day_of,
    of_day,
    with_watch,
)
from scamp_service.cluster.worker.load_meter import GpuGauge, LoadMeter, ProcessGauge


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class StillGauge:
    sample_seconds = 1.0
    seconds, fails = 0.0, False

    def busy_seconds(self):
        if self.fails:
            raise RuntimeError("NVML: not supported")
        return self.seconds

    def mib(self):
        return 7.0


def test_a_watch_has_the_share_of_its_own_minute():
    clock, gauge = Clock(), StillGauge()
    meter = LoadMeter(lambda: gauge, clock=clock)
    assert not meter.look()
    for busy in (15.0, 60.0):
        clock.now += 59
        assert not meter.look()
        clock.now += 1
        gauge.seconds += busy
        assert meter.look()
    assert [(watch.seconds, watch.busy_share, watch.mib) for watch in meter.load] == [(60, 0.25, 7), (60, 1, 7)]


def test_what_the_process_did_before_the_attempt_does_not_count():
    clock, gauge = Clock(), StillGauge()
    gauge.seconds = 1000.0
    meter = LoadMeter(lambda: gauge, clock=clock)
    meter.look()
    clock.now += 60
    assert meter.look() and meter.load[0].busy_share == 0


def test_a_gauge_that_fails_is_not_asked_again(caplog):
    clock, gauge = Clock(), StillGauge()
    meter = LoadMeter(lambda: gauge, clock=clock)
    meter.look()
    gauge.fails = True
    for _ in range(3):
        clock.now += 60
        assert not meter.look()
    assert len(caplog.records) == 1 and not meter.load


def test_a_process_that_sleeps_is_not_busy_and_one_that_computes_is():
    gauge = ProcessGauge()
    before = gauge.busy_seconds()
    time.sleep(0.2)
    slept = gauge.busy_seconds() - before
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    assert gauge.busy_seconds() - before >= slept + 0.2
    assert gauge.mib() > 10


def test_a_gpu_is_as_busy_as_nvml_says():
    clock = Clock()
    cuda = SimpleNamespace(utilization=lambda device: 50, memory_reserved=lambda device: 3 * MIB)
    gauge = GpuGauge(cuda, clock)
    clock.now += 10
    assert gauge.busy_seconds() == 5 and gauge.mib() == 3


def test_a_long_load_keeps_its_mean_and_its_newest_watches():
    load: tuple[Watch, ...] = ()
    for minute in range(10_000):
        load = with_watch(load, Watch(60.0 * minute, 60.0, (minute % 4) / 4, 1.0))
    assert len(load) <= MOST_WATCHES
    assert sum(watch.seconds for watch in load) == 600_000 and busy_share(load) == pytest.approx(0.375)
    assert [watch.busy_share for watch in load[-4:]] == [0, 0.25, 0.5, 0.75]


def test_a_gang_is_idle_after_enough_minutes_without_work():
    rule = IdleRule(0.1, 120.0)
    busy, idle = Watch(0, 60.0, 0.9, 1.0), Watch(0, 60.0, 0.02, 1.0)
    assert rule.idle_seconds([]) == rule.idle_seconds([busy, idle]) == rule.idle_seconds([idle, idle, busy]) == 0
    assert rule.idle_seconds([busy, idle, idle, idle]) == 180


def test_device_time_counts_all_devices_and_a_load_by_its_days():
    load = [Watch(60, 60.0, 0.5, 1.0), Watch(120, 60.0, 0.0, 1.0)]
    time = DeviceTime.of_gang(130.0, 4, 10, load)
    assert (time.device_seconds, time.watched_seconds, time.busy_seconds) == (520, 480, 120)
    assert time.busy_share == 0.25 and DeviceTime.of_gang(60.0, 4, 10).busy_share is None
    assert of_day([*load, Watch(86_410, 60.0, 1.0, 1.0)], day_of(0)) == load
