"""Reads a cluster's file: nodes with devices of kinds that nobody here need have, for ``scamp plan --cluster``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from estimators.devices.catalogue import gpu
from estimators.devices.kind import DeviceKind
from estimators.model import MIB
from placement.model import Cluster, Device
from scamp_service.cluster.devices.gpu_nodes import usable_mib
from scamp_service.errors import InvalidInput
from scamp_service.settings import Settings
from scamp_service.sizing.calibration import calibrated


class NodeSpec(BaseModel):
    """A node with ``count`` equal devices; ``mib`` of each may be used, by default all that a node offers."""

    model_config = ConfigDict(extra="forbid")

    kind: str = Field(description="kind of GPU, such as V100-32")
    count: int = Field(ge=1, le=1024)
    mib: int | None = Field(default=None, ge=1)


class ClusterSpec(BaseModel):
    """The file of a cluster."""

    model_config = ConfigDict(extra="forbid")

    nodes: list[NodeSpec] = Field(min_length=1, max_length=1024)


@dataclass(frozen=True, slots=True)
class NamedCluster:
    """Devices, and their kinds by name. The devices of a kind have its links, in domains no larger than its nodes."""

    cluster: Cluster
    kinds: Mapping[str, DeviceKind]

    @property
    def fastest(self) -> DeviceKind:
        """The kind with the fastest matrix products; of equally fast ones, that of the largest devices."""
        return min(self.kinds.values(), key=lambda kind: (kind.rates["matmul"].per_flop, -self._mib(kind)))

    def of_kind(self, kind: DeviceKind) -> Cluster:
        """The devices of one kind."""
        return Cluster(tuple(device for device in self.cluster.devices if device.kind == kind.name))

    def _mib(self, kind: DeviceKind) -> int:
        return max(device.capacity_mib for device in self.cluster.devices if device.kind == kind.name)


def read_cluster(file: Path, settings: Settings) -> NamedCluster:
    """The cluster of a YAML file. Raises ``InvalidInput`` with one line that says what to correct."""
    try:
        spec = ClusterSpec.model_validate(yaml.safe_load(file.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read the cluster {file}: {error}") from None
    except yaml.YAMLError as error:
        raise InvalidInput(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        raise InvalidInput(f"{file}: {_mistakes(error)}") from None
    kinds: dict[str, DeviceKind] = {}
    devices: list[Device] = []
    for number, node in enumerate(spec.nodes):
        kind = _kind(file, node, settings)
        kinds[kind.name] = kind
        mib = _mib(file, node, kind, settings)
        name = f"node{number}"
        devices += (Device(f"{name}/{index}", name, index, kind.name, mib) for index in range(node.count))
    largest = {kind: max(node.count for node in spec.nodes if _same(node.kind, kind)) for kind in kinds}
    return NamedCluster(Cluster(tuple(devices)), {name: _linked(kind, largest[name]) for name, kind in kinds.items()})


def _mistakes(error: ValidationError) -> str:
    """The mistakes in one line, each with its place in the file."""
    found = []
    for detail in error.errors(include_url=False, include_input=False):
        where = ".".join(map(str, detail["loc"])) or "the file"
        found.append(f"{where}: {detail['msg'][0].lower()}{detail['msg'][1:]}")
    return "; ".join(found[:5]) + "; a cluster has `nodes: [{kind: V100-32, count: 8}, …]`"


def _kind(file: Path, node: NodeSpec, settings: Settings) -> DeviceKind:
    try:
        named = gpu(node.kind)
    except ValueError as error:
        raise InvalidInput(f"{file}: {error}") from None
    return replace(calibrated(settings.data_dir, named.name) or named, name=named.name)


def _mib(file: Path, node: NodeSpec, kind: DeviceKind, settings: Settings) -> int:
    if kind.memory is None:
        raise InvalidInput(f"{file}: {node.kind!r} is not a GPU")
    offered_mib = usable_mib(int(kind.memory.total.value) // MIB, settings.max_gangs_per_device)
    if node.mib is not None and node.mib > offered_mib:
        raise InvalidInput(f"{file}: a device of kind {kind.name} offers at most {offered_mib} MiB, not {node.mib}")
    return node.mib or offered_mib


def _same(written: str, name: str) -> bool:
    return written.strip().upper() == name.upper()


def _linked(kind: DeviceKind, most_devices: int) -> DeviceKind:
    """The kind with links of nodes of at most so many devices."""
    if kind.links is None or kind.links.domain_size.value <= most_devices:
        return kind
    size = replace(kind.links.domain_size, value=most_devices)
    return replace(kind, links=replace(kind.links, domain_size=size))
