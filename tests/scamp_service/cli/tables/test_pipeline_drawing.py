"""A drawing fits eighty columns and explains its characters."""

from __future__ import annotations

import pytest

from estimators.model import MIB
from estimators.pipelining.schedules import SCHEDULES
from placement.pipelining.simulator import StageCost, simulate_step
from placement.refinement import Pipeline
from scamp_service.cli.tables.pipeline_drawing import draw, legend


def pipeline(
    name: str, num_ranks: int, num: int, message_seconds: float = 0.0, update_seconds: float = 0.0
) -> Pipeline:
    schedule = SCHEDULES[name](num_ranks, num)
    cost = StageCost(1.0, 1.0, 1.0, 10 * MIB, MIB, 5 * MIB, update_seconds)
    simulation = simulate_step(schedule, [cost] * schedule.num_stages, lambda *_: message_seconds)
    return Pipeline(schedule, (1,) * schedule.num_stages, simulation)


def drawn(drawing: Pipeline, width: int = 79) -> list[str]:
    return list(draw(drawing, lambda seconds: f"{seconds:g} s", width))


def test_a_drawing_shows_who_computes_what_when_and_what_it_holds() -> None:
    assert drawn(pipeline("1f1b", 2, 2, update_seconds=1.0), 36) == [
        "       0               10 s",
        "rank 0 aabb····AAAA··BBBB==",
        "rank 1 ··aaAAAAbbBBBB==····",
        "",
        "       memory held over the step; the full height is 25.0 MiB",
        "rank 0 ▅███████████▅▅▅▅▅▅▂▂ 25.0 MiB",
        "rank 1 ▂▆▆▆▆▆▆▆▆▆▆▆▆▆▂▂▂▂▂▂ 17.0 MiB",
    ]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("num_ranks", "num"), [(1, 4), (4, 8), (16, 64)])
def test_every_schedule_is_drawn_within_eighty_columns(name: str, num_ranks: int, num: int) -> None:
    lines = drawn(pipeline(name, num_ranks, num, 0.25))
    assert max(map(len, lines)) <= 79
    ranks = [line for line in lines if line.startswith("rank ")]
    assert len(ranks) % num_ranks == 0 and 2 <= len(ranks) // num_ranks <= 4


def test_characters_that_are_drawn_are_explained_and_others_are_not() -> None:
    marks = {
        "+": pipeline("zb-h1", 2, 4),
        "%": pipeline("interlaced", 2, 4),
        "~": pipeline("1f1b", 2, 4, 1.0),
        "=": pipeline("1f1b", 2, 4, 0.0, 1.0),
    }
    for mark, pipeline_of_mark in marks.items():
        computing = [line for line in drawn(pipeline_of_mark) if line.startswith("rank")]
        words = " ".join(legend(pipeline_of_mark))
        assert mark in "".join(computing) and f"{mark} " in words
        assert not [
            other for other in marks if other != mark and f"{other} " in words and other not in "".join(computing)
        ]
        assert max(map(len, legend(pipeline_of_mark))) <= 79
