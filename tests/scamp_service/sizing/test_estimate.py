"""`scamp estimate` says what a study does: same traces, same policy."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from estimators.devices.catalogue import KINDS, gpu
from estimators.devices.kind import DeviceKind, Figure, Rate
from estimators.memory import VIRTUAL_MARGIN, Margin
from estimators.model import CATEGORIES, MIB, Layout, Plan, Prediction
from estimators.peaks.envelope import Line, PeakTable
from estimators.profile import ModelProfile
from estimators.work import StepWork, Work
from placement.model import Cluster
from placement.option import Evidence, NoPlan, Option
from placement.planning.answers import ChosenPlan
from scamp_service.cli.tables.estimate import as_table, footnotes, headline
from scamp_service.cluster.devices.gpu_nodes import GPU_CONTEXT_MIB
from scamp_service.control.executor import Unsized
from scamp_service.errors import InvalidInput
from scamp_service.model import Sized
from scamp_service.settings import Settings
from scamp_service.sizing.candidates import candidates_of
from scamp_service.sizing.estimate import Estimator, equal_devices, estimate, target
from scamp_service.sizing.estimated import UNVERIFIED, Estimate
from scamp_service.sizing.sizer import ProcessSizer
from scamp_service.sizing.tracing.options import Tracing
from scamp_service.sizing.tracing.trace_pool import TracePool
from tests.conftest import Scamp
from tests.sizing import USER, MemoryBlobs, Sizing

pytestmark = pytest.mark.full

EXAMPLES = Path(__file__).parents[3] / "examples"
RANDOM_STATE_BYTES = 5056  # kept by each block that is recomputed
MEDIUM = {"depth": 4, "width": 128, "heads": 4, "batch": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="module")
def pool(warm_traces: None) -> Iterator[TracePool]:
    """One for all estimators: each start takes seconds."""
    with TracePool(2) as started:
        yield started


@pytest.fixture(scope="module")
def estimator(folder: Path, pool: TracePool) -> Estimator:
    return Estimator("vit_digits", None, Tracing(folder, pool=pool))


def plans(estimate: Estimate) -> list[tuple[int, bool]]:
    return [(option.plan.dp_shard, option.plan.recompute) for option in estimate.options]


@pytest.mark.parametrize(
    ("cluster", "kind"), [(equal_devices(2, 20), None), (equal_devices(2, 600, "L4"), "L4")], ids=["virtual", "gpu"]
)
def test_all_plans_are_compared_and_a_study_takes_and_reserves_what_the_estimate_says(
    cluster: Cluster, kind: str | None, folder: Path, pool: TracePool
) -> None:
    estimator = Estimator("vit_digits", None, Tracing(folder, pool=pool), gpu(kind) if kind else None)
    answer = estimator.estimate(MEDIUM, cluster)
    assert plans(answer) == [(1, False), (1, True), (2, False), (2, True)]
    sizer = ProcessSizer(MemoryBlobs(), folder)
    try:
        sized = Sizing(sizer).size(MEDIUM, cluster=cluster)
    finally:
        sizer.close()
    assert isinstance(sized, Sized) and isinstance(answer.choice, ChosenPlan)
    assert (sized.plan, sized.prediction.reserved_mib) == (answer.choice.plan, answer.choice.prediction.reserved_mib)
    assert sized.reason == answer.choice.reason


LINKED = DeviceKind("linked", {"matmul": Rate(0.0, 1e-6, 0.0)}, "made up", links=gpu("H100").links)


def test_a_study_traces_wider_plans_with_their_seconds_beside_the_plan_of_an_estimate(
    folder: Path, pool: TracePool
) -> None:
    estimator = Estimator("vit_digits", None, Tracing(folder, pool=pool), LINKED)
    answer = estimator.estimate(MEDIUM, equal_devices(2, 96))
    assert isinstance(answer.choice, ChosenPlan) and answer.choice.wider == ()
    sizer = ProcessSizer(MemoryBlobs(), folder, kind_of=lambda cluster: LINKED)
    try:
        sized = Sizing(sizer).size(MEDIUM, cluster=equal_devices(2, 96))
    finally:
        sizer.close()
    assert isinstance(sized, Sized) and (sized.plan, sized.reason) == (answer.choice.plan, answer.reason)
    narrow, wide = sized.choices
    assert (narrow.plan, narrow.step_seconds) == (sized.plan, sized.choice.step_seconds)
    assert wide.plan.world_size == 2
    assert narrow.step_seconds
    assert wide.step_seconds
    assert 1 < narrow.step_seconds / wide.step_seconds < 2
    assert narrow.communication_share == 0.0
    assert 0 < (wide.communication_share or 0.0) < 1


def test_the_parts_of_each_plan_add_up_and_the_largest_micro_batch_is_where_it_stops_to_fit(
    estimator: Estimator,
) -> None:
    data = estimator.estimate(MEDIUM, equal_devices(2, 96)).to_json()
    for option in data["options"]:
        assert sum(option["parts"].values()) == option["peak_bytes"]
        assert option["parts"].keys() <= set(CATEGORIES)
        assert option["fits"] and option["largest_micro_batch"] >= 32 // option["plan"]["dp_shard"]
    single, recompute = data["options"][:2]
    assert recompute["parts"]["activations"] < single["parts"]["activations"] / 2
    tight = estimator.estimate({**MEDIUM, "batch": single["largest_micro_batch"]}, equal_devices(1, 96))
    loose = estimator.estimate({**MEDIUM, "batch": single["largest_micro_batch"] + 1}, equal_devices(1, 96))
    assert tight.options[0].plan.num_micro_batches == 1 < loose.options[0].plan.num_micro_batches
    largest, one_more = (
        estimator.estimate({**MEDIUM, "batch": data["largest_batch"] + more}, equal_devices(2, 96)) for more in (0, 2)
    )
    assert any(option.plan.num_micro_batches == 1 for option in largest.options)
    assert all(option.plan.num_micro_batches > 1 for option in one_more.options)


@pytest.mark.parametrize(
    ("offered_mib", "largest", "more"), [(17, 8, True), (14, 4, True), (10, 1, False), (1, 0, False)]
)
def test_the_largest_micro_batch_is_marked_where_larger_ones_were_not_traced(
    offered_mib: int, largest: int, more: bool
) -> None:
    curve = PeakTable(tuple((size, Line(0, (9 + size) * MIB)) for size in (1, 2, 4, 8)))
    profile = ModelProfile("", 1, 1, {Layout(): curve}, {Layout(): StepWork(Work(), Work(), Work())})
    option = Option(Plan(1), Prediction(9 * MIB), offered_mib)
    answer = Estimate({}, 8, profile, [option], NoPlan("no plan"), Margin(0, 0, 0, 0))
    assert (answer.largest_micro_batch(option), answer.may_be_larger(option)) == (largest, more)
    assert answer.to_json()["options"][0]["larger_untraced"] == more
    console = Console(file=io.StringIO(), width=80)
    console.print(as_table(answer))
    assert (f"≥{largest}" in console.file.getvalue()) == more  # type: ignore[attr-defined]


def test_an_estimate_of_the_largest_batch_is_that_of_the_batch_that_a_study_chooses(estimator: Estimator) -> None:
    chosen = estimator.estimate({**MEDIUM, "batch": "largest"}, equal_devices(2, 96))
    same = estimator.estimate({**MEDIUM, "batch": chosen.batch}, equal_devices(2, 96))
    assert 1 < chosen.batch < 1024 and chosen.choice == same.choice
    assert chosen.reason == f"{same.reason}; {chosen.batch_reason}"


def test_plans_that_cannot_fit_say_what_they_would_need_at_least(estimator: Estimator) -> None:
    answer = estimator.estimate(MEDIUM, equal_devices(1, 14))
    assert isinstance(answer.choice, NoPlan) and answer.options[0].evidence is Evidence.STATES
    assert answer.largest_micro_batch(answer.options[0]) == 0
    assert answer.largest_batch is None
    console = Console(file=io.StringIO(), width=80)
    console.print(headline(answer), as_table(answer))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "depth=4 width=128" in text
    assert "states" in text
    assert "≥" in text
    assert "…" not in text


def test_seconds_are_told_where_something_was_calibrated_and_one_rank_works_alone(
    estimator: Estimator, folder: Path, pool: TracePool
) -> None:
    assert {
        option["step_seconds"] for option in estimator.estimate(MEDIUM, equal_devices(2, 96)).to_json()["options"]
    } == {None}
    slow = DeviceKind("slow", {"matmul": Rate(0.0, 1e-6, 0.0)}, "made up")
    answer = Estimator("vit_digits", None, Tracing(folder, pool=pool), slow).estimate(MEDIUM, equal_devices(2, 96))
    plain, recompute, *gangs = (data["step_seconds"] for data in answer.to_json()["options"])
    assert plain is not None
    assert recompute is not None
    assert recompute > plain
    assert gangs == [None, None]
    linked = replace(slow, links=gpu("H100").links)
    joined = (
        Estimator("vit_digits", None, Tracing(folder, pool=pool), linked)
        .estimate(MEDIUM, equal_devices(2, 96))
        .to_json()
    )
    assert [data["step_seconds"] for data in joined["options"][:2]] == [plain, recompute]
    assert all(data["communication_share"] > 0 for data in joined["options"][2:])
    assert "inside_bytes_per_second" in joined["device"]["figures"]
    products = answer.profile.work[Layout()].step(32, 1).of("matmul")[1]
    assert (
        plain == pytest.approx(1e-6 * products) and products > 0.9 * 32 * answer.profile.work[Layout()].per_sample.flops
    )


def shown(result: Estimate) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(headline(result), as_table(result), *footnotes(result))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("expandable", [False, True])
def test_on_a_gpu_the_allocator_decides_and_what_is_outside_of_it_counts(
    estimator: Estimator, folder: Path, pool: TracePool, expandable: bool
) -> None:
    tensors = estimator.estimate(MEDIUM, equal_devices(2, 96)).to_json()
    on_gpu = Estimator("vit_digits", None, Tracing(folder, pool=pool), gpu("H100"), expandable)
    answer = on_gpu.estimate(MEDIUM, equal_devices(2, 1100, "H100"))
    data = answer.to_json()
    assert data["device"]["name"] == "H100" and all(
        option["unverified"] == list(UNVERIFIED) for option in data["options"]
    )
    assert tensors["device"] is None
    assert all(figure["source"] for figure in data["device"]["figures"].values())
    for option, of_tensors in zip(data["options"], tensors["options"], strict=True):
        of_host = of_tensors["parts"].pop("objects")  # of autograd
        slack = option["parts"].pop("slack")
        random_states = of_tensors["peak_bytes"] - of_host - (option["peak_bytes"] - slack)  # on the host, too
        assert slack > 0
        assert random_states % RANDOM_STATE_BYTES == 0
        assert (random_states > 0) == option["plan"]["recompute"]
        assert of_tensors["parts"].pop("workspace", 0) == 0  # of a CPU's kernels; none is alive at this peak
        assert sum(of_tensors["parts"].values()) == sum(option["parts"].values()) + random_states
        ranks = option["plan"]["dp_shard"]
        assert option["outside_bytes"] == (384 + (544 if ranks == 2 else 0)) * 2**20
        assert option["smallest_capacity_bytes"] == option["peak_bytes"] + option["outside_bytes"]
        assert option["reserved_mib"] > option["peak_bytes"] / 2**20 + (544 if ranks == 2 else 0)
        assert option["step_seconds"] >= option["compute_seconds"] > 0
        assert (option["communication_share"] > 0) == (ranks == 2)
    text = shown(answer)
    assert "unverified: out, least, max, step, comm" in text
    assert "not measured any H100" in text
    assert "…" not in text


def test_what_was_measured_of_a_gpu_replaces_what_was_known_of_its_kind(
    tmp_path: Path, folder: Path, pool: TracePool
) -> None:
    usual_kind = gpu("H100")
    assert usual_kind.memory is not None
    memory = replace(usual_kind.memory, context=Figure(500 * MIB, "measured", "made up"))
    kind = replace(usual_kind, provenance="measured today", verified=True, memory=memory)
    (tmp_path / "device_kinds").mkdir()
    (tmp_path / "device_kinds" / "h100.json").write_text(json.dumps(asdict(kind)))
    cluster, found_kind = target(Settings(data_dir=tmp_path), "H100", 2, 2000)
    assert found_kind == kind
    assert cluster.devices[0].kind == "H100"
    estimate = Estimator("vit_digits", None, Tracing(folder, pool=pool), found_kind).estimate(MEDIUM, cluster)
    for option in estimate.to_json()["options"]:
        alone = option["plan"]["dp_shard"] == 1
        assert option["outside_bytes"] == (500 + 64 + (0 if alone else 544)) * MIB
        assert option["unverified"] == (["smallest_capacity_bytes"] if alone else list(UNVERIFIED))
    text = " ".join(shown(estimate).split())
    assert "measured today" in text and "unverified: least, max; gangs: all" in text
    with pytest.raises(InvalidInput, match="'cpu' is not a GPU"):
        target(Settings(data_dir=tmp_path), "cpu", 1, None)


@pytest.mark.sample
@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_every_kind_of_gpu_offers_the_memory_that_it_has(kind: str) -> None:
    cluster, device_kind = target(Settings(), kind.lower(), 3, None)
    assert [device.kind for device in cluster.devices] == [kind] * 3 and device_kind == gpu(kind)
    assert device_kind.memory is not None
    contexts_mib = 4 * GPU_CONTEXT_MIB  # of the gangs that may share it
    assert cluster.devices[0].capacity_mib == int(device_kind.memory.total.value) // 2**20 - contexts_mib
    smaller, _ = target(Settings(), kind, None, 8_000)
    assert [device.capacity_mib for device in smaller.devices] == [8_000]


def test_a_plan_that_fits_a_gpu_by_its_tensors_alone_is_refused(folder: Path, pool: TracePool) -> None:
    on_gpu = Estimator("vit_digits", None, Tracing(folder, pool=pool), gpu("T4"))
    room = on_gpu.estimate(MEDIUM, equal_devices(1, 1000, "T4")).options[0].prediction.reserved_mib
    assert on_gpu.estimate(MEDIUM, equal_devices(1, room, "T4")).options[0].fits
    tight = on_gpu.estimate(MEDIUM, equal_devices(1, room - 1, "T4"))
    none = on_gpu.estimate(MEDIUM, equal_devices(1, 6, "T4"))
    assert tight.options[0].plan.num_micro_batches > 1
    assert isinstance(none.choice, NoPlan) and none.smallest_capacity_bytes(none.options[0]) is None
    assert "≥" in shown(none) and "states" in shown(none)


def test_the_function_tells_what_the_command_tells(
    estimator: Estimator, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCAMP_DATA_DIR", str(folder / "data"))
    (folder / "data").mkdir()
    (folder / "data" / "profiles").symlink_to(folder)
    answer = estimate("vit_digits", MEDIUM, device="A100-40", count=2)
    assert plans(answer) == [(1, False), (1, True), (2, False), (2, True)]
    for arguments, complaint in (
        ({"device": "A100"}, "unknown device 'A100': choose one of P100"),
        ({"device": "H100", "mib": 90_000}, "a device of kind H100 offers at most 78960 MiB, not 90000"),
        ({"device": "H100", "count": 0}, "at least one device"),
    ):
        with pytest.raises(InvalidInput, match=complaint):
            estimate("vit_digits", MEDIUM, **arguments)


def test_a_users_file_is_estimated_and_its_refusals_are_told(folder: Path, pool: TracePool) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("mine.py", USER)
    estimator = Estimator("mine.py:Mine", packed.getvalue(), Tracing(folder, pool=pool))
    assert estimator.estimate({"width": 8}, equal_devices(1, 96)).batch == 6
    with pytest.raises(InvalidInput, match=r"mine.py:Mine with width=7: width must be even"):
        estimator.estimate({"width": 7}, equal_devices(1, 96))
    with pytest.raises(InvalidInput, match=r"no such model"):
        estimator.estimate({"broken": True}, equal_devices(1, 96))


HINTED = """
from workloads.models.stdlib_gpt import StdlibGpt
from workloads.protocol import hints

class Hinted(StdlibGpt):
    def build_model(self):
        model = super().build_model()
        hints.split(model.blocks, degree=self.params["degree"])
        if "default" in self.params:
            hints.stage(hints.default(model, self.params["default"]).blocks[1])
        return model
"""


def test_how_many_trials_share_a_process_is_told(folder: Path, pool: TracePool) -> None:
    candidates = candidates_of(str(EXAMPLES / "lora" / "text_lora.py:TextLora"), {"width": 256}, 1, None)
    estimator = Estimator(candidates.workload, candidates.code, Tracing(folder, pool=pool))
    answer = estimator.estimate({"width": 256, "batch": 4}, equal_devices(1, 60))
    pack = answer.pack
    assert pack is not None
    alone_mib = answer.options[0].prediction.reserved_mib
    assert (pack.own_mib, pack.shared_mib) == (alone_mib - pack.shared_mib, answer.profile.frozen_bytes // MIB)
    assert pack.shared_mib + pack.members * pack.own_mib <= 60 < pack.shared_mib + (pack.members + 1) * pack.own_mib
    assert pack.members > 60 // alone_mib
    assert answer.to_json()["pack"]["members"] == pack.members
    assert estimator.estimate({"width": 256, "batch": 4}, equal_devices(1, alone_mib)).pack is None


def test_a_study_and_an_estimate_obey_the_hints_of_a_model_and_name_them(folder: Path, pool: TracePool) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("hinted.py", HINTED)
    estimator = Estimator("hinted.py:Hinted", packed.getvalue(), Tracing(folder, pool=pool))
    answer = estimator.estimate({"degree": 2, "batch": 4}, equal_devices(2, 96))
    hint = "the model asks for tensor parallelism of degree 2 (hint split at blocks)"
    assert isinstance(answer.choice, ChosenPlan) and answer.choice.plan.tp == answer.choice.plan.world_size == 2
    assert answer.reason.endswith(f"; {hint}") and [option.plan for option in answer.options] == [answer.choice.plan]
    blobs = MemoryBlobs()
    sizer = ProcessSizer(blobs, folder)
    try:
        sizing, files = Sizing(sizer), {"workload": "hinted.py:Hinted", "code": blobs.put(packed.getvalue())}
        sized = sizing.size({"degree": 2, "batch": 4}, cluster=equal_devices(2, 96), **files)
        alone = sizing.size({"degree": 2, "batch": 4}, cluster=equal_devices(1, 96), **files)
        contradiction = sizing.size({"degree": 2, "default": "split"}, cluster=equal_devices(2, 96), **files)
    finally:
        sizer.close()
    assert isinstance(sized, Sized) and (sized.plan, sized.reason) == (answer.choice.plan, answer.reason)
    assert isinstance(alone, Unsized) and alone.infeasible
    assert alone.reason == f"{hint}: this takes 2 devices, and there are 1"
    assert isinstance(contradiction, Unsized) and contradiction.infeasible
    assert 'stage() at blocks.1 contradicts default("split") at the model' in contradiction.reason


def test_an_estimate_without_a_plan_that_hints_allow_says_why(folder: Path, pool: TracePool) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("hinted.py", HINTED)
    estimator = Estimator("hinted.py:Hinted", packed.getvalue(), Tracing(folder, pool=pool))
    answer = estimator.estimate({"degree": 2, "batch": 4}, equal_devices(1, 96))
    assert not answer.options
    assert "this takes 2 devices, and there are 1" in answer.reason
    assert shown(answer)
    with pytest.raises(InvalidInput, match=r"split\(degree=8\) at blocks: 8 ranks cannot divide blocks.0 evenly"):
        estimator.estimate({"degree": 8}, equal_devices(1, 96))


FUNCTIONS = """
import torch
from torch import nn
from types import SimpleNamespace

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
    def forward(self, x, target=None):
        for layer in self.layers:
            x = layer(x).relu()
        return x if target is None else SimpleNamespace(loss=(x - target).square().mean())

def own(width: int):
    return Net(width), lambda batch: {"x": torch.zeros(batch, width), "target": torch.zeros(batch, width)}

def given(width: int, momentum=0.0):
    def loss(model, batch):
        return model(*batch).square().mean()
    return Net(width), lambda batch: (torch.zeros(batch, width),), loss, lambda p: torch.optim.SGD(p, 0.1, momentum)

def bare(width: int):
    return Net(width), lambda batch: torch.zeros(batch, width)

class Mixed(Net):
    def __init__(self, width):
        super().__init__(width)
        self.turn, self.shift = (nn.Parameter(torch.zeros(width, dtype=t)) for t in (torch.cfloat, torch.float))
    def forward(self, x):
        return super().forward(torch.fft.ifft(torch.fft.fft(x) * self.turn).real + self.shift)

def mixed(width: int):
    return Mixed(width), lambda batch: torch.zeros(batch, width), lambda model, batch: model(batch).mean()

def wrong():
    return Net(4)

def endless():
    while True:
        pass
"""


def test_a_function_that_makes_a_model_is_enough(folder: Path, pool: TracePool) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("nets.py", FUNCTIONS)

    def function(name: str, kind: DeviceKind | None = None) -> Estimator:
        return Estimator(f"nets.py:{name}", packed.getvalue(), Tracing(folder, pool=pool), kind)

    def state_bytes(estimator: Estimator, **params: Any) -> int:
        return estimator.estimate(params, equal_devices(1, 96)).profile.state_bytes

    def refuses(estimator: Estimator, complaint: str, **params: Any) -> None:
        with pytest.raises(InvalidInput, match=complaint):
            estimator.estimate(params, equal_devices(1, 96))

    num_params = 3 * (32 * 32 + 32)
    few = 64  # AdamW's counts of steps, the loss
    plain, with_inputs = function("own"), function("given")
    assert state_bytes(plain, width=32) == pytest.approx(4 * 4 * num_params, abs=few)
    refuses(plain, r"own\(width: int\) cannot be called with these parameters: missing a required argument: 'width'")
    refuses(plain, "unexpected keyword argument 'depht'", width=8, depht=3)
    peaks = [
        maker.estimate({"width": 32, "batch": 2}, equal_devices(1, 1024)).options[0].prediction.parts["scratch"]
        for maker in (plain, function("own", gpu("H100")))
    ]
    assert peaks[1] >= 4 * num_params > peaks[0], "on a GPU AdamW updates all parameters at once"
    assert state_bytes(with_inputs, width=32, batch=4) == pytest.approx(2 * 4 * num_params, abs=few)
    assert state_bytes(with_inputs, width=32, momentum=0.9) == pytest.approx(3 * 4 * num_params, abs=few)
    refuses(function("bare"), r"returns a tensor of shape \[\d+, 8\], which is not a loss", width=8)
    mixed = function("mixed").estimate({"width": 32, "batch": 4}, equal_devices(4, 96))
    assert [option.plan.world_size for option in mixed.options] == [1, 1] and isinstance(mixed.choice, ChosenPlan)
    assert "FSDP expects uniform original parameter dtype" in mixed.refused
    endless = Estimator("nets.py:endless", packed.getvalue(), Tracing(folder, pool=pool, seconds=3))
    refuses(endless, r"nets\.py, line \d+: (pass|while True:)\ntook (more|longer) than .*\n→ .* --seconds 12")
    refuses(function("wrong"), r"must return \(model, inputs\[, loss\[, optimizer\]\]\), not Net")
    with pytest.raises(InvalidInput, match="defines no class or function none"):
        function("none")


@pytest.mark.sample
def test_the_command_prints_a_table_or_json_and_one_line_for_a_mistake(tmp_path: Path, scamp: Scamp) -> None:
    study = tmp_path / "study.yaml"
    spec: dict[str, Any] = {
        "name": "small",
        "workload": "vit_digits",
        "objective": {"metric": "accuracy"},
        "space": {"width": {"choice": [16, 32]}},
        "fixed": {"depth": 1, "heads": 2, "batch": 8},
        "search": {"sampler": "grid"},
        "budget": {"trials": 2},
    }
    study.write_text(json.dumps(spec))
    command = (tmp_path / "data", "estimate", study, "--count", "1", "--mib", "32")
    both = json.loads(scamp(*command, "--candidates", "2", "--json").stdout)
    assert [answer["params"]["width"] for answer in both] == [16, 32]
    assert both[0]["plan"]["micro_batch"] == 8 and both[0]["num_params"] < both[1]["num_params"]
    shown = scamp(*command, "--param", "width=16")
    assert "1 rank, micro-batch 8: one rank needs" in shown.stdout and f"{both[0]['num_params']:,}" in shown.stdout
    for arguments, complaint in (
        (["--param", "widht=16"], "has no parameter 'widht': width, depth, heads, batch"),
        (["--param", "heads=3"], "must be a multiple of heads (3)"),
        (["--expandable-segments"], "name a GPU with --device"),
    ):
        failed = scamp(*command, *arguments)
        said = [line for line in failed.stderr.splitlines() if not line.startswith("tracing ")]
        assert failed.returncode == 2
        assert len(said) == 1
        assert complaint in said[0]


def test_without_a_size_of_the_devices_all_peaks_are_shown_and_how_large_devices_must_be(
    estimator: Estimator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCAMP_DEVICE_MIB", raising=False)
    cluster, _ = target(Settings(), None, 2, None, any_size=True)
    answer = estimator.estimate(MEDIUM, cluster)
    with_size = estimator.estimate(MEDIUM, equal_devices(2, 10_000))
    assert [option.prediction for option in answer.options] == [option.prediction for option in with_size.options]
    least = min(answer.options, key=lambda option: option.prediction.reserved_mib)
    assert f"needs a device of {answer.options[0].prediction.reserved_mib} MiB" in answer.reason
    assert f"least: {least.prediction.reserved_mib} MiB per device on {least.plan}" in answer.reason
    text = shown(answer)
    assert "≥" not in text and "max" not in text
    data = answer.to_json()
    assert {option["offered_mib"] for option in data["options"]} == {None} and data["reason"] == answer.reason
    assert {option["largest_micro_batch"] for option in data["options"]} == {None}


@pytest.mark.parametrize("place", ["mib", "environment", "device", "study"])
def test_a_size_that_was_named_is_kept(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCAMP_DEVICE_MIB", raising=False)
    if place == "environment":
        monkeypatch.setenv("SCAMP_DEVICE_MIB", "77")
    cluster, _ = target(
        Settings(),
        "T4" if place == "device" else None,
        None,
        77 if place in ("mib", "device") else None,
        any_size=place != "study",
    )
    assert cluster.devices[0].capacity_mib == (77 if place != "study" else 96)


SLOW = DeviceKind("slow", {"matmul": Rate(0.0, 1e-6, 0.0)}, "made up")


@pytest.mark.sample
@pytest.mark.parametrize("scale_mib", [9, 999, 9_999, 1_000_000])
@pytest.mark.parametrize("kind", [SLOW, gpu("H100")], ids=["virtual", "gpu"])
def test_large_figures_fit_eighty_columns(scale_mib: int, kind: DeviceKind, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(100, 128, dp_shard=64, recompute=True)
    peak = scale_mib * MIB
    parts = dict.fromkeys(("parameters", "gradients", "optimizer", "activations", "gathered", "scratch", "batch"), peak)
    work = StepWork(Work(), Work(), Work())
    profile = ModelProfile("", 10**9, 10**9, {}, dict.fromkeys((Layout(), plan.layout), work))
    options = [
        Option(
            replace(plan, recompute=recompute),
            Prediction(peak, parts=parts),
            2 * scale_mib,
            Evidence.AT_LEAST if recompute else Evidence.TRACED,
        )
        for recompute in (False, True)
    ]
    answer = Estimate({"width": 64}, 128 * 64 * 100, profile, options, NoPlan("no plan"), VIRTUAL_MARGIN, kind)
    monkeypatch.setattr(Estimate, "smallest_capacity_bytes", lambda self, option: peak)
    monkeypatch.setattr(Estimate, "largest_micro_batch", lambda self, option: 999_999)
    lines = shown(answer).splitlines()
    table = lines[[line.startswith("ranks") for line in lines].index(True) :][:3]
    assert "…" not in "".join(table)
    assert max(map(len, lines[2:5])) <= 80
    assert "128×100" in table[1]
