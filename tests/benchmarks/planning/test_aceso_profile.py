"""Aceso's profiles are read completely, and plans cost what Aceso's own model says."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.planning import aceso_part
from benchmarks.planning.aceso_profile import (
    CHOICES,
    FOLDER,
    RUNS,
    Assumptions,
    Machine,
    Operator,
    Operators,
    Profile,
    ways_of,
)
from benchmarks.planning.aceso_score import config_of, score_of
from benchmarks.running.runner import run_parts
from estimators.model import MIB
from placement.exact.search import StagedPlan, search_or_none

LAYER = [
    *("enc-1st-layernorm", "enc-attention-qkv", "enc-attention-score", "enc-attention-softmax"),
    *("enc-attention-dropout", "enc-attention-context", "enc-attention-dense", "enc-post-attention-dropout"),
    *("enc-2nd-layernorm", "enc-MLP-GEMM-1", "enc-MLP-gelu", "enc-MLP-GEMM-2", "enc-post-MLP-dropout"),
]
NAMES = ["encoder-embedding", *LAYER, "final-layernorm", "gpt-post-process"]
FIRST, SAFE = Assumptions(is_far=False, is_safe=False), Assumptions(is_far=False, is_safe=True)
FOUR = Machine(1, 4, 10_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A profile of a small GPT in a checkout, in which no number is that of a real GPU."""
    data_folder = tmp_path / f"{FOLDER}test"
    data_folder.mkdir(parents=True)
    header = "name,forward,backward,input,output,weights,activations,forward reserved,backward reserved"
    for num in (1, 2, 4, 8):
        for tp in (1, 2, 4):
            rows = [_row(name, index, num, tp) for index, name in enumerate(NAMES)]
            (data_folder / f"gpt_tiny_mbs{num}_tp{tp}_algo0.csv").write_text("\n".join([header, *rows]) + "\n")
    (data_folder / "p2p_intra_node.csv").write_text("1,2,4,8,16\n10.0, 20.0, 30.0, 40.0, 40.0\n")
    (data_folder / "p2p_inter_node.csv").write_text("1,2,4,8,16\n2.0, 3.0, 4.0, 5.0, 5.0\n")
    return data_folder


def test_units_are_all_operators_in_their_order_and_runs_stay_together(folder: Path) -> None:
    profile = _profile(folder)
    names = [NAMES[0], *LAYER * 3, *NAMES[-2:]]
    assert [name for unit in profile.units for name in unit] == names
    assert {unit for unit in profile.units if len(unit) > 1} == set(RUNS)


@pytest.mark.parametrize("capacity_mib", [10_000, 1500, 1050, 850, 700])
@pytest.mark.parametrize("assumed", [FIRST, SAFE])
def test_a_plan_takes_the_seconds_that_aceso_counts(folder: Path, capacity_mib: int, assumed: Assumptions) -> None:
    profile, machine = _profile(folder), Machine(1, 4, capacity_mib)
    plan = _found(profile, machine, assumed)
    seconds = [stage_seconds for stage_seconds, _ in _costs(profile, plan)]
    assert plan.seconds == pytest.approx(sum(seconds) + (plan.num_micro_batches - 1) * max(seconds))


@pytest.mark.parametrize("capacity_mib", [10_000, 3000, 1500, 1050, 950, 850, 700])
def test_no_stage_holds_more_than_predicted_if_reserved_memory_is_safe(folder: Path, capacity_mib: int) -> None:
    profile, machine = _profile(folder), Machine(1, 4, capacity_mib)
    plan = _found(profile, machine, SAFE)
    assert all(
        num_bytes <= peak_bytes <= machine.capacity_bytes
        for (_, num_bytes), peak_bytes in zip(_costs(profile, plan), plan.peak_bytes, strict=True)
    )


def test_stages_that_recompute_all_runs_need_more_room_than_those_that_recompute_fewer(folder: Path) -> None:
    profile, machine = _profile(folder), Machine(1, 4, 1050)
    plan = _found(profile, machine, SAFE)
    assert len(plan.cut) > len(plan.recomputed) == 1
    assert plan.devices[0] == machine.devices[0].name  # with the room for all runs, one run would not be enough
    for way in ways_of(profile, machine, SAFE):
        restored = [costs.restored_bytes for costs in way.costs]
        assert len(restored) == len(CHOICES) and restored[0] < restored[1]


def test_ways_use_all_gpus_and_micro_batches_of_the_profile(folder: Path) -> None:
    for way in ways_of(_profile(folder), FOUR, FIRST):
        assert way.num_stages == FOUR.num_gpus // way.num_ranks
        assert way.samples in (1, 2, 4, 8)


def test_messages_between_nodes_take_longer(folder: Path) -> None:
    profile, nodes = _profile(folder), Machine(2, 2, 10_000)
    assert nodes.crossing_share(1, 4) == pytest.approx(1 / 3) and nodes.crossing_share(2, 2) == 1
    assert nodes.crossing_share(4, 1) == 0
    seconds = [_found(profile, machine, FIRST, pp=4).seconds for machine in (Machine(1, 4, 10_000), nodes)]
    far = _found(profile, nodes, Assumptions(is_far=True, is_safe=False), pp=4).seconds
    assert seconds[0] < seconds[1] < far


def test_bandwidths_between_nodes_may_be_missing(folder: Path) -> None:
    (folder / "p2p_inter_node.csv").unlink()
    profile = _profile(folder)
    seconds = [_found(profile, machine, FIRST, pp=4).seconds for machine in (Machine(2, 2, 10_000), FOUR)]
    assert seconds[0] == seconds[1]


def test_an_incomplete_profile_is_refused(folder: Path) -> None:
    file = folder / "gpt_tiny_mbs4_tp2_algo0.csv"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-1]))
    with pytest.raises(ValueError, match="other operators"):
        _profile(folder)
    file.write_text("\n".join([*lines[:-1], "gpt-post-process,1.0"]))
    with pytest.raises(ValueError, match=r"gpt_tiny_mbs4_tp2_algo0\.csv is not a profile"):
        _profile(folder)
    file.unlink()
    with pytest.raises(ValueError, match=r"gpt_tiny_mbs4_tp2_algo0\.csv is not a profile"):
        _profile(folder)


def test_a_plan_becomes_a_configuration_with_a_number_for_each_operator(folder: Path) -> None:
    profile = _profile(folder)
    plan = _found(profile, Machine(1, 4, 1050), SAFE)
    config = config_of(plan, profile.units, {"model_name": "gpt"}, 16)
    stages = _stages(profile, plan)
    assert config["num_ops_in_each_stage"] == [len(names) for names, _ in stages]
    assert config["recompute_ops"] == [list(map(int, flags)) for _, flags in stages]
    assert config["checkpoint_activations"] == [any(flags) for _, flags in stages] == [True, False]
    assert config["model_parallel_size_of_each_op"] == [[2] * len(names) for names, _ in stages]
    assert (config["num_stages"], config["num_gpus"], config["micro_batch_size"]) == (2, [2, 2], 1)
    assert (config["model_name"], config["global_batch_size"]) == ("gpt", 16)


MODEL = """
import argparse, csv, json
parser = argparse.ArgumentParser()
for name in ("initial-point", "save-to-csv", "profiled-time-path"):
    parser.add_argument(f"--{name}")
for name in ("memory-limit", "num-nodes", "num-gpus-per-node"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--micro-batch-size", nargs="+", type=int)
options = parser.parse_args()
plan = json.load(open(options.initial_point))
open(options.profiled_time_path + "p2p_intra_node.csv").close()
with open(options.save_to_csv, "w") as file:
    writer = csv.writer(file)
    writer.writerow(["stage-index", "time", "memory(total)", "memory(normal)", "memory(reserved)"])
    for stage, num_ops in enumerate(plan["num_ops_in_each_stage"]):
        writer.writerow([f"stage-{stage}", f"{1000 * num_ops}.00", f"{options.memory_limit}.50", "1.00", "1.00"])
"""


def test_the_score_is_that_of_the_slowest_stage_by_the_model_in_the_checkout(folder: Path) -> None:
    checkout = folder.parent.parent
    (checkout / "search").mkdir()
    (checkout / "search/aceso_cost_model.py").write_text(MODEL)
    score = score_of(checkout, "test", {"num_ops_in_each_stage": [3, 7, 5]}, Machine(1, 4, 12_000))
    assert score.seconds == 7 and score.stage_bytes == (round(12_000.5 * MIB),) * 3


def test_a_checkout_whose_model_fails_or_is_missing_is_refused(folder: Path) -> None:
    checkout = folder.parent.parent
    with pytest.raises(ValueError, match="no cost model of Aceso"):
        score_of(checkout, "test", {}, FOUR)
    (checkout / "search").mkdir()
    (checkout / "search/aceso_cost_model.py").write_text("raise KeyError(16)")
    with pytest.raises(ValueError, match=r"KeyError: 16"):
        score_of(checkout, "test", {}, FOUR)


def test_without_a_checkout_the_part_has_no_cases_and_says_so() -> None:
    assert not aceso_part.cases(False, 0)
    (note,) = aceso_part.notes([])
    assert "--aceso" in note
    every = [str(case) for case in aceso_part.cases(False, 0, aceso=Path("anywhere"))]
    assert len(set(every)) == len(every) and not any("anywhere" in case for case in every)


def test_a_part_gets_the_folder_that_it_has_an_option_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders: list[Any] = []

    def cases(quick: bool, seed: int, data: Path | None) -> list[Any]:
        folders.append(data)
        return []

    with_option: Any = ModuleType("one")
    other: Any = ModuleType("other")
    for part in (with_option, other):
        part.__dict__.update(TITLE="", ABOUT="", HEADER=("case",), figures=lambda results: {})
    with_option.__dict__.update(OPTIONS={"data": "a folder"}, cases=cases)
    other.__dict__.update(cases=lambda quick, seed: [])
    for arguments in ([], ["--data", "here"]):
        monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
        run_parts("", "Title", "command", {"one": with_option, "other": other}, 1)
        assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {}
    assert folders == [None, Path("here")]


def _profile(folder: Path) -> Profile:
    return Profile(folder, "tiny", 3, 4)


def _found(profile: Profile, machine: Machine, assumed: Assumptions, pp: int | None = None) -> StagedPlan:
    ways = [way for way in ways_of(profile, machine, assumed) if pp in (None, way.num_stages)]
    plan = search_or_none(ways, machine.devices, batch=16)
    assert plan is not None
    return plan


def _row(name: str, index: int, num: int, tp: int) -> str:
    forward = (900 + 37 * index) * num / tp * (1 + 0.1 * (tp - 1))  # µs, less efficient the more GPUs share it
    size = 0.0 if name == NAMES[-1] else 4.0 * num
    activations = {"enc-attention-score": 60, "enc-attention-softmax": 60, "enc-attention-dropout": 90}.get(name, 6)
    cells = [forward, 2 * forward, 4.0 * num, size, 6 / tp, activations * num / tp, 20.0 * num, 60.0 * num]
    return ",".join([name, *(f"{cell:.3f}" for cell in cells)])


def _stages(profile: Profile, plan: StagedPlan) -> list[tuple[list[str], list[bool]]]:
    """Operators of each stage, and whether each is recomputed."""
    stages = []
    for start, end in pairwise(accumulate(plan.cut, initial=0)):
        units = [(profile.units[index], index in plan.recomputed) for index in range(start, end)]
        names = [name for unit, _ in units for name in unit]
        stages.append((names, [flag for unit, flag in units for _ in unit]))
    return stages


def _costs(profile: Profile, plan: StagedPlan) -> list[tuple[float, float]]:
    """Seconds of a micro-batch and bytes of each stage as Aceso counts them, operator by operator."""
    stages = _stages(profile, plan)
    operators = profile.operators[plan.micro_batch, plan.spread.tp]
    return [
        (_seconds([operators[name] for name in names], flags), _bytes(operators, names, flags, len(stages) - index))
        for index, (names, flags) in enumerate(stages)
    ]


def _seconds(every: Sequence[Operator], flags: Sequence[bool]) -> float:
    passes = sum(
        operator.forward_seconds * (1 + flag) + operator.backward_seconds
        for operator, flag in zip(every, flags, strict=True)
    )
    rates = {0: 1.0, 4: 20e3, 8: 30e3, 16: 40e3, 32: 40e3}  # MB per second, of a message of half the size
    sizes = [size / MIB for size in (every[0].input_bytes, every[-1].output_bytes)]
    return passes + sum(size / rates[round(size)] for size in sizes)


def _bytes(operators: Operators, names: Sequence[str], flags: Sequence[bool], in_flight: int) -> float:
    every = [operators[name] for name in names]
    shares = {"enc-attention-softmax": 0.0, "enc-attention-dropout": 1.5}
    kept = [operators[name].activation_bytes * shares.get(name, 1.0) for name in names]
    saved = largest = current = 0.0
    for here, both in enumerate(map(all, pairwise(flags))):
        current = current + kept[here] if both else 0.0
        saved += kept[here] if both else 0.0
        largest = max(largest, current)
    weights = sum(operator.weight_bytes for operator in every)
    reserved = max(operator.forward_reserved_bytes for operator in every) + max(
        operator.backward_reserved_bytes for operator in every
    )
    held = every[0].input_bytes + sum(kept) - saved
    return 8 * weights + in_flight * held + largest + max(reserved, weights)
