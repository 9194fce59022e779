"""``scamp doctor``: the table of all checks, and their answers. It changes nothing, and works beside a running service.

A check is a function in ``machine``, ``storage`` or ``service``. Where the service itself refuses to start, the check
calls the same code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from functools import partial

from scamp_service.settings import Settings
from scamp_service.upkeep import machine, service, storage
from scamp_service.upkeep.finding import Doubt, Finding, finding

OF_THE_MACHINE: Mapping[str, Callable[[], str]] = {
    "python": machine.python,
    "packages": machine.packages,
    "torch": machine.torch,
    "GPUs": machine.gpus,
    "shared memory": machine.shared_memory,
    "open files": machine.open_files,
    "processes": machine.processes,
    "temporary files": machine.temporary_files,
    "proxies": machine.proxies,
    "names": machine.names,
    "clock": machine.clock,
    "Ray's tokens": machine.ray_tokens,
}
OF_THE_SERVICE: Mapping[str, Callable[[Settings], str]] = {
    "service": service.service,
    "leftovers": service.leftovers,
    "access": service.access,
    "port": service.port,
    "notices": service.notices,
    "autoscaler": service.autoscaler,
    "Ray": service.ray,
    "virtual devices": service.virtual_devices,
    "user code": service.user_code,
    "data directory": storage.data_directory,
    "disk": storage.disk,
    "owner": storage.owner,
    "secrets": storage.secrets,
    "dates": storage.dates,
    "database": storage.database,
    "checkpoints": storage.checkpoints,
}


def findings(settings: Callable[[], Settings]) -> Iterator[Finding]:
    """The answers of all checks, in the order of the tables; of the machine's alone if ``settings`` raises."""
    read: list[Settings] = []

    def read_settings() -> str:
        read.append(settings())
        _expect_known(os.environ)
        return f"{len(read[0].model_fields_set)} of {len(Settings.model_fields)} are set"

    yield finding("settings", read_settings)
    checks = {**OF_THE_MACHINE, **{name: partial(check, *read) for name, check in OF_THE_SERVICE.items() if read}}
    with ThreadPoolExecutor(len(checks)) as pool:
        yield from pool.map(finding, checks.keys(), checks.values())


def _expect_known(environment: Iterable[str]) -> None:
    """Raise ``Doubt`` if a variable has nearly the name of a setting."""
    for variable in environment:
        name = variable.removeprefix("SCAMP_").lower()
        if not variable.startswith("SCAMP_") or name in Settings.model_fields:
            continue
        if similar := get_close_matches(name, Settings.model_fields, n=1, cutoff=0.85):
            raise Doubt(f"{variable} is no setting and has no effect: did you mean SCAMP_{similar[0].upper()}?")
