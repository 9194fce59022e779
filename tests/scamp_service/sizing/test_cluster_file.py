"""Cluster files describe nodes and links, and a mistake gets one line."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from scamp_service.errors import InvalidInput
from scamp_service.settings import ROOT, Settings
from scamp_service.sizing.cluster_file import NamedCluster, cluster_named, read_cluster


def read(folder: Path, text: str) -> NamedCluster:
    file = folder / "cluster.yaml"
    file.write_text(text)
    return read_cluster(file, Settings(data_dir=folder))


def test_a_node_has_devices_of_one_kind_and_may_offer_less_than_all(tmp_path: Path) -> None:
    described = read(tmp_path, "nodes: [{kind: v100-32, count: 2}, {kind: P100, count: 3, mib: 9000}]")
    assert [(device.node, device.kind) for device in described.cluster.devices] == [("node0", "V100-32")] * 2 + [
        ("node1", "P100")
    ] * 3
    fast, slow = described.cluster.devices[0].capacity_mib, described.cluster.devices[-1].capacity_mib
    assert 30_000 < fast < 32_512
    assert slow == 9000
    assert set(described.kinds) == {"V100-32", "P100"} and described.fastest.name == "V100-32"
    assert len(described.of_kind(described.fastest).devices) == 2


def test_fast_links_end_at_the_node(tmp_path: Path) -> None:
    described = read(tmp_path, "nodes: [{kind: H100, count: 2}, {kind: H100, count: 4}, {kind: T4, count: 16}]")
    sizes = {name: kind.links.domain_size.value for name, kind in described.kinds.items() if kind.links is not None}
    assert sizes == {"H100": 4, "T4": 8}
    assert len(described.cluster.devices) == 22


def test_of_equally_fast_kinds_that_with_more_memory_is_the_first(tmp_path: Path) -> None:
    assert read(tmp_path, "nodes: [{kind: V100-16, count: 1}, {kind: V100-32, count: 1}]").fastest.name == "V100-32"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes: [{kind: V200, count: 1}]", "unknown device 'V200': choose one of P100, V100-16"),
        ("nodes: [{kind: V200, count: 1}]", "RTX4090, or virtual"),
        ("nodes: [{kind: T4, count: 0}]", "nodes.0.count: input should be greater than or equal to 1"),
        ("nodes: [{kind: T4}]", "nodes.0.count: field required"),
        ("nodes: [{kind: T4, count: 1, gib: 3}]", "nodes.0.gib: extra inputs are not permitted"),
        ("nodes: [{kind: T4, count: 1, mib: 99999}]", "a device of kind T4 offers at most"),
        ("nodes: []", "nodes: list should have at least 1 item"),
        ("- T4", "the file: input should be"),
        ("nodes: [{", "is not YAML"),
    ],
)
def test_a_bad_file_gets_one_line_that_names_the_mistake(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(tmp_path, text)
    assert words in str(refused.value)
    assert "cluster.yaml" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read the cluster"):
        read_cluster(tmp_path / "none.yaml", Settings(data_dir=tmp_path))


def test_the_example_is_valid(tmp_path: Path) -> None:
    described = read_cluster(ROOT / "examples" / "cluster.yaml", Settings(data_dir=tmp_path))
    assert len(described.cluster.devices) == 16 and len(described.kinds) == 2


def test_a_cluster_has_a_short_form(tmp_path: Path) -> None:
    described = cluster_named("2x4xV100-16,8xA100", Settings(data_dir=tmp_path))
    assert Counter((device.node, device.kind) for device in described.cluster.devices) == {
        ("node0", "V100-16"): 4,
        ("node1", "V100-16"): 4,
        ("node2", "A100-40"): 8,
    }
    assert described.fastest.name == "A100-40" and set(described.kinds) == {"V100-16", "A100-40"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8", "NODESxDEVICESxKIND"),
        ("/etc/passwd.yaml", "NODESxDEVICESxKIND"),
        ("0x4xV100-16", "NODESxDEVICESxKIND"),
        ("4xB100", "unknown device 'B100'"),
        ("2000xH100", "2000 devices, and at most 1024"),
        ("9999x8xH100", "79992 devices, and at most 20000"),
        ("1x4xvirtual", "run `scamp calibrate`"),
    ],
)
def test_a_bad_short_form_gets_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        cluster_named(text, Settings(data_dir=tmp_path))
