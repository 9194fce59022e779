"""The cluster as its controller has recorded it, with the controller itself. Its JSON is made and read here.

An event tells clients the same (``store.events.ClusterState``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from placement.model import Device
from scamp_service.model import Json

_DEVICE = tuple(field.name for field in fields(Device))


@dataclass(frozen=True, slots=True)
class RecordedDevice:
    """A device that can be used, or that is closed for a while."""

    device: Device
    closed: str = ""
    """Why no gang is placed on it now; empty if it is open."""

    def to_json(self) -> Json:
        return {**asdict(self.device), "closed": self.closed}

    @classmethod
    def from_json(cls, data: Json) -> RecordedDevice:
        return cls(Device(*(data[name] for name in _DEVICE)), data.get("closed", ""))


@dataclass(frozen=True, slots=True)
class ContainedError:
    """An error that a controller survived. Times are seconds since the epoch."""

    doing: str
    """The failed act, in words."""
    error: str
    study_id: int
    """The study that it concerns; 0: none alone."""
    first_at: float
    last_at: float
    times: int = 1


@dataclass(frozen=True, slots=True)
class RecordedController:
    """The process that leads, or led last."""

    host: str
    pid: int
    since: float
    """Seconds since the epoch when it began to lead."""
    errors: tuple[ContainedError, ...] = ()
    """Errors that it has survived, or those before it, the newest last."""

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Json) -> RecordedController:
        return cls(data["host"], data["pid"], data["since"], tuple(ContainedError(**error) for error in data["errors"]))


@dataclass(frozen=True, slots=True)
class RecordedCluster:
    """The state of the cluster."""

    status: str
    detail: str
    """Why the cluster is not ready, why some GPUs offer nothing, or that this is a rehearsal; empty otherwise."""
    devices: tuple[RecordedDevice, ...] = ()
    speed: str = ""
    """How well the speed of the devices is known, in words."""
    controller: RecordedController | None = None

    def to_json(self) -> Json:
        return {
            "status": self.status,
            "detail": self.detail,
            "devices": [device.to_json() for device in self.devices],
            "speed": self.speed,
            "controller": self.controller.to_json() if self.controller else {},
        }

    @classmethod
    def from_json(cls, data: Json) -> RecordedCluster:
        """The state as any version has recorded it: earlier ones have written less."""
        controller = data.get("controller")
        return cls(
            data["status"],
            data["detail"],
            tuple(map(RecordedDevice.from_json, data["devices"])),
            data.get("speed", ""),
            RecordedController.from_json(controller) if controller else None,
        )


STARTING = RecordedCluster("starting", "")
"""Stands for a cluster that no controller has recorded yet."""
