"""Finds all places in which users' code keeps values, and restores them after passes that do not count."""

from __future__ import annotations

from pathlib import Path

from tests.workloads.resumed import CASES
from workloads.loading import forget_user_code, load_workload
from workloads.training.checkpoints.kept import Changes
from workloads.training.checkpoints.owners import Snapshot, holding, owners_of


def test_passes_that_do_not_count_leave_nothing_anywhere(tmp_path: Path) -> None:
    (tmp_path / "cases.py").write_text(CASES)
    forget_user_code(tmp_path)
    for name in ("Global", "Closure", "Shared", "Hooked", "Frozen"):
        workload = load_workload(f"cases.py:{name}", tmp_path)({})
        model = workload.build_model()
        optimizer = workload.optimizer(model)

        def losses(workload=workload, model=model, optimizer=optimizer) -> list[float]:
            passes = []
            for step in range(2, 4):
                workload.on_step(step, 8, optimizer)
                loss = workload.loss(model, workload.train_batch(range(16)))
                loss.backward()
                passes.append(float(loss.detach()))
            return passes

        owners = owners_of(workload, model, optimizer)
        changes, snapshot = Changes(owners), Snapshot(owners)
        before = losses()
        assert [*changes.found(owners)]
        snapshot.restore()
        assert losses() == before, name


def test_only_functions_that_hold_nothing_are_left_out() -> None:
    class Owner:
        pass

    def plain() -> None:
        pass

    def keeps(history: list[int] = [0]) -> list[int]:  # noqa: B006
        return history

    owner = Owner()
    owners = holding({"": owner, "plain": plain, "keeps": keeps})
    assert [*owners] == ["", "keeps"]
    snapshot = Snapshot(owners)
    owner.first = True  # type: ignore[attr-defined]
    keeps().append(1)
    assert snapshot.restore() and not vars(owner) and keeps() == [0]


def test_owners_have_names_that_a_second_workload_has_as_well(tmp_path: Path) -> None:
    (tmp_path / "cases.py").write_text(CASES)
    names = []
    for _ in range(2):
        forget_user_code(tmp_path)
        workload = load_workload("cases.py:Shared", tmp_path)({})
        names.append([*owners_of(workload, workload.build_model())])
    assert names[0] == names[1] and len(set(names[0])) == len(names[0])
    assert any("weigh" in name for name in names[0]) and "file cases scaled" in names[0]
