from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Scamp

pytestmark = pytest.mark.usefixtures("warm_traces")

SMALL = ("vit_digits", "--param", "depth=4", "--param", "width=32", "--param", "batch=4", "--count", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def test_plans_are_compared_and_the_best_pipeline_is_drawn_in_eighty_columns(folder: Path, scamp: Scamp) -> None:
    done = scamp(folder, "plan", *SMALL, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    heading, *lines = done.stdout.splitlines()
    assert "parameters" in heading and max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for words in ("FSDP ×2", "PP ×2 1f1b", "PP ×2 zbv", "1 rank", "trains", "planned", "bubble", "GFLOP"):
        assert words in text
    assert "run `scamp calibrate` to measure this machine, or name a --device" in text
    assert "\nrank 0 a" in text and "memory held over the step" in text


def test_json_has_the_options_of_the_estimate_and_pipelines(folder: Path, scamp: Scamp) -> None:
    planned = json.loads(scamp(folder, "plan", *SMALL, "--json").stdout)
    (estimated,) = json.loads(scamp(folder, "estimate", *SMALL, "--json").stdout)
    options = {json.dumps(one["plan"]): one for one in planned["alternatives"] if one["schedule"] is None}
    assert len(options) == len(estimated["options"])
    for option in estimated["options"]:
        same = options[json.dumps(option["plan"])]
        assert [same[name] for name in ("peak_bytes", "reserved_mib", "fits")] == [
            option[name] for name in ("peak_bytes", "reserved_mib", "fits")
        ]
    assert planned["ranked_by"] == "FLOPs" and not planned["times_include_communication"]
    schedules = {one["schedule"]: one["trains_today"] for one in planned["alternatives"]}
    assert schedules["1f1b"] and schedules["gpipe"] and not schedules["zb-h1"]


def test_one_device_leaves_no_pipeline_and_mistakes_get_one_line(folder: Path, scamp: Scamp) -> None:
    alone = scamp(folder, "plan", *SMALL[:-1], "1", COLUMNS="80")
    assert "no pipeline: it needs two devices" in alone.stdout and "rank 0 a" not in alone.stdout
    failed = scamp(folder, "plan", "vit_digits", "--param", "heads")
    assert failed.returncode == 2 and "--param wants NAME=VALUE" in failed.stderr
