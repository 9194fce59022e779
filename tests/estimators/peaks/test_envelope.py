"""An envelope is the peak of every micro-batch, and logs that are not affine have none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from estimators.peaks.envelope import Envelope, Line, PeakTable, aligned, constant_peak, fit_envelope, follow_lines

Log = list[tuple[int, int]]
CURVE: TypeAdapter[Any] = TypeAdapter(Envelope | PeakTable)

# A program is a list of (kind of event, fixed bytes, bytes per sample); frees and resizes pick a live buffer by number.
EVENTS = st.tuples(st.sampled_from(["new", "new", "free", "resize"]), st.integers(0, 10**6), st.integers(0, 10**4))
PROGRAMS = st.lists(EVENTS, max_size=40)


def log_of(program: list[tuple[str, int, int]], micro_batch: int) -> Log:
    """The log of a trace of the program; the batch itself, 8 bytes a sample, is alive from beginning to end."""
    log, live, num = [(0, 8 * micro_batch)], [], 1
    for kind, fixed, per_sample in program:
        size = fixed + per_sample * micro_batch + 1
        if kind == "new":
            log.append((num, size))
            live.append(num)
            num += 1
        elif live:
            buffer = live[fixed % len(live)]
            if kind == "free":
                live.remove(buffer)
            log.append((buffer, 0 if kind == "free" else size))
    return log


def brute_force_peak(log: Log) -> int:
    held: dict[int, int] = {}
    highest = 0
    for buffer, size in log:
        held[buffer] = size
        highest = max(highest, sum(held.values()))
    return highest


def fitted(make_log: Callable[[int], Log], *, high: int = 64, floor: int = 0) -> Envelope | None:
    logs = {size: make_log(size) for size in (2, 3, high)}
    return fit_envelope(logs, Line(0, floor), max(constant_peak(make_log(1)), Line(0, floor)))


@given(PROGRAMS, st.integers(0, 10**6))
def test_the_envelope_is_the_peak_of_every_micro_batch(program: list[tuple[str, int, int]], floor: int) -> None:
    curve = fitted(lambda size: log_of(program, size), floor=floor)
    assert curve is not None
    for micro_batch in (1, 2, 3, 4, 5, 17, 64, 1000):
        assert curve.peak_bytes(micro_batch) == max(brute_force_peak(log_of(program, micro_batch)), floor)


@given(PROGRAMS, st.integers(0, 10**6), st.integers(0, 10**7))
def test_the_largest_batch_fits_and_one_more_does_not(
    program: list[tuple[str, int, int]], floor: int, capacity: int
) -> None:
    curve = fitted(lambda size: log_of(program, size), floor=floor)
    assert curve is not None
    largest = curve.largest_batch(capacity)
    assert curve.peak_bytes(largest + 1) > capacity
    assert largest == 0 or curve.peak_bytes(largest) <= capacity


@given(PROGRAMS)
def test_a_hull_keeps_only_lines_that_are_highest_somewhere(program: list[tuple[str, int, int]]) -> None:
    curve = fitted(lambda size: log_of(program, size))
    assert curve is not None
    for left, right in zip(curve.lines, curve.lines[1:], strict=False):
        assert left.bytes_per_sample < right.bytes_per_sample
        assert left.at(2) > right.at(2)


def test_products_of_byte_counts_beyond_64_bits_stay_exact() -> None:
    tib = 2**40

    def log(size: int) -> Log:
        return [(0, 8 * tib + size), (0, 0), (1, 3 * tib * size + 7), (1, 0), (2, 5 * tib * size)]

    curve = fitted(log)
    assert curve is not None
    assert [curve.peak_bytes(size) for size in (1, 2, 5)] == [8 * tib + 1, 10 * tib, 25 * tib]


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(lambda size: [(0, size * size)], id="quadratic"),
        pytest.param(lambda size: [(0, -(-size // 8) * 8)], id="rounded up to 8"),
        pytest.param(lambda size: [(0, 100 - size)], id="shrinks"),
        pytest.param(lambda size: [(0, 100)], id="grows nowhere"),
        pytest.param(lambda size: [(0, size)] + [(1, 9)] * (size > 2), id="one more event"),
        pytest.param(lambda size: [(0, size), (1, 9), (0 if size > 2 else 1, 0)], id="frees another buffer"),
        pytest.param(lambda size: [(0, min(size, 33))], id="levels off"),
    ],
)
def test_logs_that_are_not_affine_are_refused(log: Callable[[int], Log]) -> None:
    assert fitted(log) is None


def with_workspace(log: Log, at: int, num_bytes: int) -> tuple[Log, list[str]]:
    """The log with a workspace of so many bytes after the event ``at``, if it is not empty, and its categories."""
    if not num_bytes:
        return log, ["scratch"] * len(log)
    earlier = {buffer for buffer, _ in log[: at + 1]}
    moved = [(buffer + (buffer not in earlier), size) for buffer, size in log]
    number = len(earlier)
    return [*moved[: at + 1], (number, num_bytes), (number, 0), *moved[at + 1 :]], [
        "workspace" if buffer == number else "scratch" for buffer in range(len(log) + 1)
    ]


@pytest.mark.parametrize(
    ("at", "workspaces"),
    [
        pytest.param(0, {2: 17, 3: 34, 5: 34, 64: 34}, id="steps"),
        pytest.param(0, {2: 0, 3: 0, 5: 900, 64: 40}, id="none for few samples, and less for many"),
        pytest.param(1, {2: 1, 3: 0, 5: 2, 64: 1}, id="at the peak, where it hardly counts"),
    ],
)
def test_workspaces_on_no_line_change_nothing_unless_they_decide_the_peak(at: int, workspaces: dict[int, int]) -> None:
    def log(size: int) -> Log:
        return [(0, 100), (1, 1000 * size), (1, 0)]

    seen = {size: with_workspace(log(size), at, num_bytes) for size, num_bytes in workspaces.items()}
    logs, categories = (
        {size: log for size, (log, _) in seen.items()},
        {size: names for size, (_, names) in seen.items()},
    )
    assert not follow_lines(logs, categories)
    curve = fit_envelope(logs, Line(0, 0), Line(0, 1100), categories)
    assert curve is not None
    for size in (2, 3, 5, 64):
        assert brute_force_peak(logs[size]) <= curve.peak_bytes(size) <= brute_force_peak(logs[size]) * 1.001
        assert sum(curve.parts(size).values()) == curve.peak_bytes(size)
    assert curve.peak_bytes(33) == pytest.approx(33_100, rel=0.001)


def test_workspaces_on_no_line_that_decide_the_peak_leave_no_envelope() -> None:
    seen = {size: with_workspace([(0, 1000 * size)], 0, more) for size, more in {2: 500, 3: 900, 64: 700}.items()}
    logs = {size: log for size, (log, _) in seen.items()}
    assert fit_envelope(logs, Line(0, 0), Line(0, 0), {size: names for size, (_, names) in seen.items()}) is None


@given(PROGRAMS)
def test_the_parts_of_a_peak_are_what_is_alive_at_one_moment_by_category(program: list[tuple[str, int, int]]) -> None:
    names = ("batch", "a", "b")

    def category(buffer: int) -> str:
        return names[buffer % 3] if buffer else "batch"

    logs = {size: log_of(program, size) for size in (2, 3, 64)}
    categories = [category(buffer) for buffer in range(1 + max(buffer for buffer, _ in logs[2]))]
    floor, one_sample = Line(0, 5, (("b", 0, 5),)), constant_peak(log_of(program, 1), categories)
    curve = fit_envelope(logs, floor, one_sample, dict.fromkeys(logs, categories))
    assert curve is not None
    for micro_batch in (1, 2, 17, 64):
        parts = curve.parts(micro_batch)
        assert sum(parts.values()) == curve.peak_bytes(micro_batch)
        moments = []
        held: dict[int, int] = {}
        for buffer, size in log_of(program, micro_batch):
            held[buffer] = size
            live = dict.fromkeys(names, 0)
            for number, num_bytes in held.items():
                live[category(number)] += num_bytes
            moments.append(live)
        assert {**dict.fromkeys(names, 0), **parts} in moments


def test_logs_align_whatever_their_sizes_but_not_when_one_frees() -> None:
    assert aligned([(0, 5), (1, 3)], [(0, 9), (1, 1)])
    assert not aligned([(0, 5), (1, 3)], [(0, 9), (1, 0)])
    assert not aligned([(0, 5)], [(0, 5), (1, 1)])


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=7), st.integers(0, 10**6))
def test_a_table_never_offers_a_batch_that_a_traced_point_forbids(peaks: list[int], capacity: int) -> None:
    table = PeakTable(tuple((1 << power, Line(0, value)) for power, value in enumerate(peaks)))
    largest = table.largest_batch(capacity)
    assert all(line.at(1) <= capacity for size, line in table.points if size <= largest)
    assert largest == 0 or table.peak_bytes(largest) <= capacity
    traced = dict(table.points)
    for micro_batch in range(1, table.points[-1][0] + 1):
        next_traced = min(size for size in traced if size >= micro_batch)
        highest = max(line.at(1) for size, line in table.points if size <= next_traced)
        assert table.peak_bytes(micro_batch) == (traced[micro_batch].at(1) if micro_batch in traced else highest)


def test_a_convex_table_lies_on_lines_between_its_points_except_after_a_single_sample() -> None:
    parts = [(("a", 0, size), ("b", 0, 2 * size)) for size in (10, 20, 50)]
    points = [(size, Line(0, sum(num for *_, num in part), part)) for size, part in zip((1, 3, 9), parts, strict=True)]
    table = PeakTable(tuple(points), is_convex=True)
    assert [table.peak_bytes(size) for size in (1, 2, 3, 4, 5, 8, 9)] == [30, 60, 60, 75, 90, 135, 150]
    assert table.parts(5) == {"a": 30, "b": 60}
    assert [table.largest_batch(capacity) for capacity in (29, 59, 74, 75, 149, 150, 999)] == [0, 1, 3, 4, 8, 9, 9]
    assert [table.is_followed(size) for size in (1, 3, 4, 9)] == [False, True, True, False]


def test_a_table_knows_nothing_beyond_its_last_point() -> None:
    with pytest.raises(ValueError, match="micro_batch must be at most 2"):
        PeakTable(((1, Line(0, 5)), (2, Line(0, 7)))).peak_bytes(3)


@pytest.mark.parametrize(
    "curve",
    [
        Envelope((Line(0, 9, (("scratch", 0, 9),)), Line(3, 1)), Line(0, 8)),
        PeakTable(((1, Line(0, 5)), (2, Line(0, 7)))),
    ],
    ids=repr,
)
def test_curves_survive_json(curve: Envelope | PeakTable) -> None:
    assert CURVE.validate_json(json.dumps(asdict(curve))) == curve


@pytest.mark.parametrize("data", [{}, {"points": []}, {"lines": [], "one_sample": asdict(Line(0, 1))}])
def test_anything_else_is_no_curve(data: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        CURVE.validate_python(data)


@pytest.mark.parametrize(
    "make", [lambda: Envelope((Line(0, 1),), Line(0, 1)), lambda: Envelope((Line(-1, 1), Line(1, 1)), Line(0, 1))]
)
def test_an_envelope_under_which_every_batch_fits_cannot_exist(make: Callable[[], Envelope]) -> None:
    with pytest.raises(ValueError):
        make()


@pytest.mark.parametrize("curve", [Envelope((Line(1, 1),), Line(0, 2)), PeakTable(((1, Line(0, 5)),))], ids=repr)
def test_a_micro_batch_has_at_least_one_sample(curve: Envelope | PeakTable) -> None:
    with pytest.raises(ValueError, match="micro_batch must be at least 1"):
        curve.peak_bytes(0)


@pytest.mark.parametrize(
    "curve",
    [
        Envelope((Line(10, 101, (("activations", 10, 101),)),), Line(0, 77)),
        PeakTable(((1, Line(0, 101, (("activations", 0, 101),))), (2, Line(0, 199)))),
    ],
)
def test_a_share_that_is_added_is_rounded_up_and_has_its_category(curve: Envelope | PeakTable) -> None:
    more = curve.plus_share("slack", 9)
    for micro_batch in (1, 2):
        peak = curve.peak_bytes(micro_batch)
        assert 1.09 * peak <= more.peak_bytes(micro_batch) <= 1.09 * peak + 2
        parts = more.parts(micro_batch)
        assert sum(parts.values()) in (0, more.peak_bytes(micro_batch)) and ("slack" in parts) == bool(parts)
    assert curve.plus_share("slack", 0) == curve
