"""Says where a rank keeps its files: a path of the controller's host means nothing on another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scamp_service.host import kernel
from scamp_service.settings import Settings


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders of one host, which ``kernel`` names: for unpacked user code, and for checkpoints.

    ``url`` is the object storage of the checkpoints; empty if all hosts share the folder.
    """

    kernel: str
    code: Path
    checkpoints: Path
    url: str = ""

    @classmethod
    def of_controller(cls, settings: Settings, checkpoints: Path, url: str = "") -> Folders:
        """Folders of this host, where the controller runs with these settings.

        A user of their own for ranks cannot look into the data directory.
        """
        holds_code = checkpoints if settings.user_code_user else settings.data_dir
        return cls(kernel(), holds_code.absolute() / "code", checkpoints.absolute(), url)

    def here(self) -> Folders:
        """The folders on the host of this process.

        On another host than the controller's, ``SCAMP_DATA_DIR`` and ``SCAMP_CHECKPOINT_DIR`` of ``ray start`` name
        them. Without the latter, the folder for checkpoints is expected at the same path as on the controller's host,
        unless object storage has them: then each host has a folder of its own.
        """
        if self.kernel == kernel():
            return self
        settings = Settings()
        return Folders(
            kernel(),
            settings.data_dir.absolute() / "code",
            settings.checkpoints if settings.checkpoint_dir or self.url else self.checkpoints,
            self.url,
        )
