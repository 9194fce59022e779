"""`scamp plan` compares plans, draws the best pipeline, and says what is missing if none fits."""

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


@pytest.mark.full
def test_plans_are_compared_and_the_best_pipeline_is_drawn_in_eighty_columns(folder: Path, scamp: Scamp) -> None:
    done = scamp(folder, "plan", *SMALL, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    heading, *lines = done.stdout.splitlines()
    assert "parameters" in heading
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for words in ("FSDP ×2", "PP ×2 1f1b", "PP ×2 zbv", "1 rank", "trains", "bubble", "GFLOP"):
        assert words in text
    assert "run `scamp calibrate` to measure this machine, or name a --device" in text
    assert "\nrank 0 a" in text and "memory held over the step" in text


def test_json_has_the_options_of_the_estimate_and_pipelines(folder: Path, scamp: Scamp) -> None:
    planned = json.loads(scamp(folder, "plan", *SMALL, "--json").stdout)
    (estimated,) = json.loads(scamp(folder, "estimate", *SMALL, "--json").stdout)
    others = [option for option in planned["alternatives"] if option["schedule"] is None and option["searched"] is None]
    options = {json.dumps(other["plan"]): other for other in others}
    assert len(options) == len(estimated["options"])
    for option in estimated["options"]:
        same = options[json.dumps(option["plan"])]
        assert [same[name] for name in ("peak_bytes", "reserved_mib", "fits")] == [
            option[name] for name in ("peak_bytes", "reserved_mib", "fits")
        ]
    assert planned["ranked_by"] == "FLOPs" and not planned["times_include_communication"]
    schedules = {
        option["schedule"]: option["trains_today"] for option in planned["alternatives"] if option["searched"] is None
    }
    assert schedules["1f1b"]
    assert schedules["gpipe"]
    assert schedules["zb-h1"]


@pytest.mark.full
def test_unlike_devices_share_the_batch_unevenly(folder: Path, tmp_path: Path, scamp: Scamp) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("nodes: [{kind: V100-32, count: 1}, {kind: P100, count: 1}]")
    model = ("vit_digits", "--param", "depth=4", "--param", "width=256", "--param", "batch=64")
    done = scamp(folder, "plan", *model, "--cluster", str(file), COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines()[1:])) <= 80
    for words in (" samples", "on 1 V100-32 + 1 P100", "fastest plan of the search:", "bounds the step:", "1 rank"):
        assert words in done.stdout
    assert "a row without them is for those of V100-32 alone" in done.stdout
    (shared,) = [
        load
        for load in json.loads(scamp(folder, "plan", *model, "--cluster", str(file), "--json").stdout)["alternatives"]
        if load["searched"] and load["searched"]["samples"]
    ]
    fast, slow = shared["searched"]["samples"]["V100-32"][0], shared["searched"]["samples"]["P100"][0]
    assert fast >= slow
    assert shared["num_micro_batches"] * (fast + slow) == 64
    assert shared["trains_today"]
    assert shared["plan"]["shares"] == ([fast, slow] if fast > slow else [])


def test_a_bad_cluster_gets_one_line(folder: Path, tmp_path: Path, scamp: Scamp) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("nodes: [{kind: P100-16, count: 8}]")
    failed = scamp(folder, "plan", *SMALL[:-2], "--cluster", str(file))
    assert failed.returncode == 2 and "unknown device 'P100-16': choose one of P100" in failed.stderr
    failed = scamp(folder, "plan", *SMALL, "--cluster", str(file))
    assert failed.returncode == 2 and "leave out --device, --count and --mib" in failed.stderr


@pytest.mark.full
def test_if_nothing_fits_the_missing_memory_is_shown_by_category(folder: Path, scamp: Scamp) -> None:
    done = scamp(folder, "plan", *SMALL, "--mib", "4", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "no plan fits. The closest one," in text and "than the 4 offered" in text
    for category in ("parameters", "gradients and optimizer", "activations", "transient", "margin"):
        assert f"{category} " in text


def test_one_device_leaves_no_pipeline_and_mistakes_get_one_line(folder: Path, scamp: Scamp) -> None:
    alone = scamp(folder, "plan", *SMALL[:-1], "1", COLUMNS="80")
    assert "no pipeline: it needs two devices" in alone.stdout and "rank 0 a" not in alone.stdout
    failed = scamp(folder, "plan", "vit_digits", "--param", "heads")
    assert failed.returncode == 2 and "--param wants NAME=VALUE" in failed.stderr


@pytest.mark.full
def test_jobs_of_slurm_are_written_for_a_study_on_devices_that_are_named(folder: Path, scamp: Scamp) -> None:
    model = ("vit_digits", "--device", "T4")
    for words in (model, ("examples/digits.yaml",), ("examples/digits.yaml", "--device", "T4", "--json")):
        done = scamp(folder, "plan", *words, "--slurm")
        assert (done.returncode, done.stderr.count("--slurm needs a study's file")) == (2, 1)
