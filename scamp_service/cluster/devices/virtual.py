"""Virtual devices: shares of a host's memory that stand for GPUs."""

from placement.model import VIRTUAL_KIND, Device

VIRTUAL_DEVICE = "virtual_device"
"""Ray's resource; a node has one unit for each of its virtual devices."""


def is_virtual(device: Device) -> bool:
    """Whether the device is a virtual one; otherwise it is a GPU."""
    return device.kind == VIRTUAL_KIND
