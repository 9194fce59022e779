"""Prints this machine's GPUs as a table in a terminal; without a GPU, the virtual devices that studies run on."""

from __future__ import annotations

from rich.table import Table

from scamp_service.cluster.devices.gpus import Gpu, GpuLinks
from scamp_service.settings import Settings


def as_table(gpus: tuple[Gpu, ...]) -> Table:
    """One row for each GPU. ``others`` is the memory held by processes that are not ScaMP's."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ["GPU", "name", "MiB", "others", "free", "links", "--device"]:
        numeric = heading in ("GPU", "MiB", "others", "free")
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=heading != "links")
    for gpu in gpus:
        name = gpu.name + " (MIG)" * gpu.mig + " (memory errors)" * gpu.worn_out
        numbers = [str(number) for number in (gpu.total_mib, gpu.other_processes_mib, gpu.free_mib)]
        table.add_row(str(gpu.index), name, *numbers, _words(gpu.links), gpu.kind or "")
    return table


def without_gpus(settings: Settings) -> str:
    """One line for a machine on which NVML finds no GPU: the number and size of its virtual devices."""
    count = settings.virtual_devices * settings.virtual_nodes
    mibs = list(map(settings.mib_of_device, range(settings.virtual_devices)))
    sizes = f"{count} × {mibs[0]}" if len(set(mibs)) == 1 else f"{count} of {', '.join(map(str, mibs))}"
    return f"NVML finds no GPU on this machine: studies run on virtual devices, {sizes} MiB"


def _words(links: GpuLinks) -> str:
    ends = [f"{num} to GPU {peer}" for peer, num in links.peers]
    ends += [f"{links.num_switched} to a switch"] if links.num_switched else []
    nvlinks = [f"{links.num_nvlinks} NVLinks" + (f" ({', '.join(ends)})" if ends else "")] if links.num_nvlinks else []
    generation = f" {links.pcie_generation}" if links.pcie_generation else ""
    pcie = [f"PCIe{generation} × {links.pcie_width}"] if links.pcie_width else []
    return ", ".join(nvlinks + pcie)
