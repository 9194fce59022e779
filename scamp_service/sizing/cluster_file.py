"""Reads a cluster that nobody here need have: a file of nodes, or the short form ``8x4xV100-16``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from estimators.devices.catalogue import KINDS, gpu
from estimators.devices.kind import DeviceKind
from estimators.model import MIB
from placement.model import VIRTUAL_KIND, Cluster, Device
from scamp_service.cluster.devices.gpu_nodes import usable_mib
from scamp_service.errors import InvalidInput
from scamp_service.settings import Settings
from scamp_service.sizing.calibration import calibrated

MOST_DEVICES = 20_000
MOST_ON_A_NODE = 1024
"""Devices of a cluster in the short form, which a client of the API may name."""


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
        language = "JSON" if file.suffix.lower() == ".json" else "YAML"
        raise InvalidInput(f"{file} is not {language}: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        raise InvalidInput(f"{file}: {_mistakes(error)}") from None
    return _named(spec, str(file), settings)


def cluster_named(text: str, settings: Settings) -> NamedCluster:
    """The cluster that ``text`` names as ``NODES x DEVICES x KIND``, such as ``8x4xV100-16``. No file is read.

    ``8xA100-40`` is one node of eight, ``8xA100`` the same, and several such parts are joined with commas. ``virtual``
    devices have the size and speed of this machine's. Raises ``InvalidInput`` with one line that says what to correct.
    """
    nodes: list[NodeSpec] = []
    for part in text.split(","):
        match = re.fullmatch(r"(?:(\d{1,5})x)?(\d{1,5})x([A-Za-z][\w-]*)", part.strip())
        if match is not None and int(match[2]) > MOST_ON_A_NODE:
            raise InvalidInput(
                f"the node {part.strip()!r} has {match[2]} devices, and at most {MOST_ON_A_NODE} are allowed: write "
                "NODESxDEVICESxKIND for several nodes, such as 8x4xV100-16"
            )
        if match is None or int(match[1] or 1) < 1 or int(match[2]) < 1:
            raise InvalidInput(
                f"cannot read the cluster {part.strip()!r}: write NODESxDEVICESxKIND, such as 8x4xV100-16 for 8 nodes "
                "of 4 GPUs, or 8xA100-40 for one node of 8; join several with commas, or name a file"
            )
        nodes += [NodeSpec(kind=_smallest(match[3]), count=int(match[2]))] * int(match[1] or 1)
    if (count := sum(node.count for node in nodes)) > MOST_DEVICES:
        raise InvalidInput(f"the cluster {text} has {count} devices, and at most {MOST_DEVICES} are allowed")
    return _named(ClusterSpec.model_construct(nodes=nodes), text, settings)


def _smallest(kind: str) -> str:
    """The kind itself, or if there are several sizes of it and none is named, the smallest: A100 is A100-40."""
    sizes = [device.name for device in KINDS if device.name.upper().startswith(f"{kind.upper()}-")]
    return min(sizes, key=lambda name: int(name.rpartition("-")[2]), default=kind)


def _named(spec: ClusterSpec, source: str, settings: Settings) -> NamedCluster:
    kinds: dict[str, DeviceKind] = {}
    devices: list[Device] = []
    own_kinds: dict[str, DeviceKind] = {}
    for number, node in enumerate(spec.nodes):
        if node.kind not in own_kinds:
            own_kinds[node.kind] = _kind(source, node, settings)
        kind = own_kinds[node.kind]
        kinds[kind.name] = kind
        mib = _mib(source, node, kind, settings)
        name = f"node{number}"
        devices += (Device(f"{name}/{index}", name, index, kind.name, mib) for index in range(node.count))
    if VIRTUAL_KIND in kinds and len(kinds) > 1:
        raise InvalidInput(f"{source}: virtual devices and GPUs cannot be in one cluster")
    largest = {kind: max(node.count for node in spec.nodes if own_kinds[node.kind].name == kind) for kind in kinds}
    return NamedCluster(Cluster(tuple(devices)), {name: _linked(kind, largest[name]) for name, kind in kinds.items()})


def _mistakes(error: ValidationError) -> str:
    """The mistakes in one line, each with its place in the file."""
    mistakes = []
    for detail in error.errors(include_url=False, include_input=False):
        where = ".".join(map(str, detail["loc"])) or "the file"
        mistakes.append(f"{where}: {detail['msg'][0].lower()}{detail['msg'][1:]}")
    return "; ".join(mistakes[:5]) + "; a cluster has `nodes: [{kind: V100-32, count: 8}, …]`"


def _kind(source: str, node: NodeSpec, settings: Settings) -> DeviceKind:
    if node.kind == VIRTUAL_KIND:
        cpu = calibrated(settings.data_dir)
        if cpu is None:
            raise InvalidInput(f"{source}: the speed of virtual devices is not known here; run `scamp calibrate`")
        return replace(cpu, name=VIRTUAL_KIND)
    try:
        gpu_kind = gpu(node.kind)
    except ValueError as error:
        raise InvalidInput(f"{source}: {error}, or {VIRTUAL_KIND}") from None
    return replace(calibrated(settings.data_dir, gpu_kind.name) or gpu_kind, name=gpu_kind.name)


def _mib(source: str, node: NodeSpec, kind: DeviceKind, settings: Settings) -> int:
    if kind.name == VIRTUAL_KIND:
        return node.mib or settings.device_mib
    if kind.memory is None:
        raise InvalidInput(f"{source}: {node.kind!r} is not a GPU")
    offered_mib = usable_mib(int(kind.memory.total.value) // MIB, settings.max_gangs_per_device)
    if node.mib is not None and node.mib > offered_mib:
        raise InvalidInput(f"{source}: a device of kind {kind.name} offers at most {offered_mib} MiB, not {node.mib}")
    return node.mib or offered_mib


def _linked(kind: DeviceKind, most_devices: int) -> DeviceKind:
    """The kind with links of nodes of at most this many devices."""
    if kind.links is None or kind.links.domain_size.value <= most_devices:
        return kind
    size = replace(kind.links.domain_size, value=most_devices)
    return replace(kind, links=replace(kind.links, domain_size=size))
