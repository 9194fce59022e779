"""Options of the processes, read from environment variables ``SCAMP_*``. Options of one study are in ``StudySpec``."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from placement.packing.device_time import IdleRule
from placement.packing.projects import Project
from scamp_service.access.model import Role
from scamp_service.errors import InvalidInput, Refused
from scamp_service.receivers import MOST_RECEIVERS, Network, Receiver, expect_url, is_forbidden_host
from scamp_service.user_environment import hide_environment

ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds ScaMP's packages (the checkout). Child processes import them from here."""


LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Addresses that only this machine reaches."""
MIN_TOKEN = 16
"""Characters of an API token."""
SECRETS = ("api_token", "database_url", "notify", "oidc", "smtp_url")
"""Settings that users' code must not read. They reach our own child processes through a pipe."""
SECRETS_PIPE = "SCAMP_SECRETS_PIPE"
OBJECT_STORAGE = ("s3", "gs", "gcs", "az", "abfs", "abfss")
"""Kinds of URLs that name object storage."""


class ProjectSettings(BaseModel):
    """The share of a project, and its quotas; see ``placement.packing.projects.Project``."""

    model_config = ConfigDict(extra="forbid")

    weight: float = Field(default=1.0, description="share of the devices, relative to other projects", gt=0)
    devices: int | None = Field(default=None, description="most devices at once", ge=1)
    trials: int | None = Field(default=None, description="most running trials at once", ge=1)
    device_hours: float | None = Field(default=None, description="most devices × hours in a calendar month", gt=0)
    mib_hours: float | None = Field(default=None, description="most MiB × hours in all", gt=0)
    max_priority: int | None = Field(default=None, description="largest priority of its studies", ge=-100, le=100)

    def to_project(self) -> Project:
        """The project as placement knows it."""
        return Project(self.devices, self.trials, self.device_hours, self.mib_hours, self.weight)


class OidcSettings(BaseModel):
    """An OpenID Connect provider, at which users log in; see ``api.access.oidc``."""

    model_config = ConfigDict(extra="forbid")

    issuer: str = Field(description="URL of the provider", pattern=r"https?://.+")
    client_id: str = Field(description="id of ScaMP at the provider")
    client_secret: str = Field(default="", description="its secret; empty for a public client")
    scopes: str = Field(default="openid profile email", description="scopes to ask for, with spaces")
    name_claim: str = Field(default="preferred_username", description="claim that has the name of a user")
    groups_claim: str = Field(default="groups", description="claim that lists the groups of a user")
    groups: dict[str, Literal["admin"] | dict[str, Role]] = Field(
        default={}, description="roles by group and project; `admin` for an admin of the service"
    )


class Settings(BaseSettings):
    """Options of ``scamp serve`` and its processes. Each field is an environment variable, ``host`` is SCAMP_HOST.

    An empty variable counts as unset. Folders are absolute, because the processes have different working directories.
    Raises ``InvalidInput`` that names the variables with wrong values.
    """

    model_config = SettingsConfigDict(env_prefix="SCAMP_", extra="ignore", env_ignore_empty=True)

    data_dir: Path = Field(default=Path.home() / ".scamp", description="database, checkpoints, logs, tokens")
    checkpoint_dir: str = Field(
        default="",
        description="checkpoints: a folder that all hosts see, or object storage such as s3://bucket/scamp; "
        "default: in data_dir",
    )
    checkpoint_cache: str = Field(
        default="", description="each host's folder for checkpoints in object storage; default: in data_dir"
    )
    database_url: str = Field(default="", description="SQLAlchemy URL; default: SQLite in the data directory")
    host: str = Field(default="127.0.0.1", description="address that the API listens on")
    port: int = Field(default=8100, description="port of the API; unset: 8100 or the next free one", ge=1, le=65535)
    api_token: str = Field(default="", description="bearer token; required when host is not a loopback address")
    ray_address: str = Field(default="", description="existing Ray cluster; default: start a local one")
    ray_ends: bool = Field(
        default=False, description="the existing Ray cluster ends with the service: trials write checkpoints first"
    )
    autoscale_devices: int = Field(
        default=0, description="most devices to ask the autoscaler of an existing Ray cluster for; 0: none", ge=0
    )
    virtual_devices: int = Field(default=4, description="memory-budgeted devices per node without GPUs", ge=1)
    device_mib: int = Field(default=96, description="memory of one virtual device", ge=1)
    device_mibs: Annotated[tuple[int, ...], NoDecode] = Field(
        default=(), description="memory of a node's first virtual devices if they differ, such as 128,48"
    )
    stop_seconds: float = Field(
        default=5.0, description="seconds in which trials may write a checkpoint when a service and its Ray end", ge=0
    )
    keep_seconds: float = Field(
        default=60.0, description="seconds in which a trial that is paused, or gives devices back, may do so", ge=0
    )
    virtual_nodes: int = Field(default=1, description="Ray nodes of the local cluster", ge=1)
    rehearsal_gpus: str = Field(
        default="", description="file of GPUs to rehearse with: ranks train on the CPU; see docs/gpus.md"
    )
    self_calibration: bool = Field(default=True, description="measure this machine's speed once, in idle time")
    idle_pct: float = Field(
        default=10, description="a trial's devices are idle while they are less busy than this; 0: never", ge=0, le=100
    )
    idle_minutes: float = Field(default=30, description="minutes after which such a trial counts as idle", ge=1)
    idle_pauses: bool = Field(default=False, description="pause trials whose devices have been idle for so long")
    max_gangs_per_device: int = Field(default=4, description="gangs that may share one device", ge=1)
    projects: dict[str, ProjectSettings] = Field(
        default={},
        description='share of the devices and quotas of projects, as JSON: {"vision": {"weight": 2, "devices": 8}}',
    )
    max_priority: int = Field(
        default=100,
        description="largest priority of studies whose project has no max_priority of its own",
        ge=-100,
        le=100,
    )
    requests_per_minute: int | None = Field(
        default=None, description="most requests of one user in a minute; default: no limit", ge=1
    )
    oidc: OidcSettings | None = Field(
        default=None,
        description='where users log in, as JSON: {"issuer": "https://id.example.org", "client_id": "scamp", '
        '"groups": {"ml": {"vision": "editor"}, "ops": "admin"}}',
    )
    notify: list[Receiver] = Field(
        default=[],
        description='who is told what of all studies, as JSON: [{"email": "ada@example.org", "on": ["study.ended"]}]',
        max_length=MOST_RECEIVERS,
    )
    notify_networks: str = Field(
        default="", description="private networks that webhooks may reach, such as 10.1.0.0/16,127.0.0.1"
    )
    smtp_url: str = Field(
        default="", description="server that sends e-mail, such as smtp://user:password@mail.example.org:587"
    )
    mail_from: str = Field(default="", description="sender of e-mail; default: scamp@ and the name of this host")
    policy: str = Field(
        default="pack", description="how trials are placed: pack, elastic, min-degree, or static-N for N devices each"
    )
    keep_checkpoints_days: float | None = Field(
        default=None, description="days that checkpoints stay after the end of their study; default: always", ge=0
    )
    keep_logs_days: float | None = Field(
        default=None, description="days that logs of trials stay after the end of their study; default: always", ge=0
    )
    keep_events_days: float | None = Field(
        default=None, description="days that events stay after the end of their study; default: always", ge=0
    )
    keep_traces_days: float | None = Field(
        default=None, description="days that a trace stays after it was last read; default: always", ge=0
    )
    lease_seconds: float = Field(
        default=10.0, description="a controller silent for longer may be replaced", gt=0, le=3600
    )

    trusted_proxies: str = Field(
        default="", description="addresses of reverse proxies whose X-Forwarded-* headers count, such as 127.0.0.1"
    )
    pass_environment: str = Field(
        default="", description="further environment variables that users' code may read, such as DATASETS,WANDB_*"
    )
    user_code_user: str = Field(
        default="",
        description="Unix user that runs users' code; ScaMP must then run as root; default: its own",
    )

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise InvalidInput("; ".join(map(_mistake, error.errors()))) from None
        except SettingsError as error:  # of the fields that are JSON
            name = next(name for name in ("notify", "oidc", "projects") if f'"{name}"' in str(error))
            example = Settings.model_fields[name].description.partition("JSON: ")[2]  # type: ignore[union-attr]
            raise InvalidInput(f"SCAMP_{name.upper()} must be JSON, such as {example}") from None

    @field_validator("host")
    @classmethod
    def _without_brackets(cls, host: str) -> str:
        return host.removeprefix("[").removesuffix("]")

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, folder: Path) -> Path:
        return Path(_absolute_path(str(folder)))

    @field_validator("rehearsal_gpus")
    @classmethod
    def _absolute_file(cls, file: str) -> str:
        return _absolute_path(file) if file else ""

    @field_validator("device_mibs", mode="before")
    @classmethod
    def _sizes(cls, sizes: Any) -> Any:
        if isinstance(sizes, str):
            sizes = [size for size in sizes.strip("[ ]").split(",") if size]  # our own processes pass JSON on
        try:
            mibs = tuple(map(int, sizes))
        except ValueError:
            mibs = (0,)
        if min(mibs, default=1) < 1:
            raise ValueError("must be whole MiB, such as 128,48")
        return mibs

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, policy: str) -> str:
        from placement.packing.policies import NAMES, policy_named  # with numpy, which few commands need

        try:
            policy_named(policy)
        except ValueError:
            raise ValueError(f"must be one of {', '.join(NAMES)}, such as static-8") from None
        return policy

    @field_validator("notify_networks", "trusted_proxies")
    @classmethod
    def _known_networks(cls, networks: str) -> str:
        _networks(networks)
        return networks

    @field_validator("smtp_url")
    @classmethod
    def _mail_server(cls, url: str) -> str:
        if url:
            expect_url(url, "smtp", "smtps")
        return url

    @field_validator("checkpoint_dir")
    @classmethod
    def _folder_or_objects(cls, folder: str) -> str:
        kind, separator, place = folder.partition("://")
        if not separator:
            return _absolute_path(folder) if folder else ""
        if kind not in OBJECT_STORAGE or not place.strip("/"):
            raise ValueError(f"must be a folder, or a bucket: {', '.join(f'{kind}://' for kind in OBJECT_STORAGE)}")
        if "?" in place or ":" in place.partition("/")[0].partition("@")[0]:
            raise ValueError("must have no password: credentials come from the environment, as AWS_ACCESS_KEY_ID")
        return folder.rstrip("/")

    @field_validator("checkpoint_cache")
    @classmethod
    def _absolute_if_any(cls, folder: str) -> str:
        return _absolute_path(folder) if folder else ""

    @property
    def idle_rule(self) -> IdleRule:
        """When a gang is idle."""
        return IdleRule(self.idle_pct / 100, 60 * self.idle_minutes)

    def expect_access(self, *, has_users: bool = False) -> None:
        """Raise ``Refused`` for an address that other machines can reach where neither a token nor users are, and for
        a token easy to guess."""
        token, is_open = self.api_token, not (self.api_token or has_users or self.oidc)
        if is_open and self.host not in LOOPBACK:
            raise Refused(
                f"{self.host} can be reached from other machines: set SCAMP_API_TOKEN to at least {MIN_TOKEN} "
                "characters (`openssl rand -hex 16` makes one), or listen on 127.0.0.1"
            )
        if is_open and self.trusted_proxies:
            raise Refused("SCAMP_TRUSTED_PROXIES makes ScaMP reachable through a proxy: set SCAMP_API_TOKEN as well")
        if token and (len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token):
            raise Refused(
                f"SCAMP_API_TOKEN must be at least {MIN_TOKEN} printable ASCII characters without spaces; "
                "`openssl rand -hex 16` makes one"
            )

    def expect_priority(self, project: str, priority: int) -> None:
        """Raise ``InvalidInput`` for a priority that studies of ``project`` may not have."""
        project_most = self.projects[project].max_priority if project in self.projects else None
        most = self.max_priority if project_most is None else project_most
        if priority > most:
            raise InvalidInput(f"priority is {priority}, but studies of project {project!r} may have at most {most}")

    def expect_receivers(self, receivers: Sequence[Receiver]) -> None:
        """Raise ``InvalidInput`` for receivers that this service may not, or cannot, send to."""
        for receiver in receivers:
            if receiver.email is not None and not self.smtp_url:
                raise InvalidInput(
                    f"no e-mail can be sent to {receiver.email}: SCAMP_SMTP_URL of the service is not set"
                )
            if receiver.webhook is not None and is_forbidden_host(receiver.webhook, self.reachable_networks):
                raise InvalidInput(
                    f"webhooks may not go to {receiver.shown}, a private address, unless SCAMP_NOTIFY_NETWORKS of the "
                    "service names its network"
                )

    @property
    def reachable_networks(self) -> tuple[Network, ...]:
        """The private networks that webhooks may reach."""
        return _networks(self.notify_networks)

    @property
    def proxy_networks(self) -> tuple[Network, ...]:
        """Addresses of reverse proxies whose ``X-Forwarded-*`` headers count."""
        return _networks(self.trusted_proxies)

    def expect_autoscaler(self) -> None:
        """Raise ``InvalidInput`` if an autoscaler is to be asked for devices, but Ray is to be started here."""
        if self.autoscale_devices and not self.ray_address:
            raise InvalidInput(
                f"SCAMP_AUTOSCALE_DEVICES is {self.autoscale_devices}, but a Ray that ScaMP starts itself has no "
                "autoscaler: name your Ray cluster with SCAMP_RAY_ADDRESS, or unset it"
            )

    def mib_of_device(self, index: int) -> int:
        """MiB of one of a node's virtual devices."""
        return self.device_mibs[index] if index < len(self.device_mibs) else self.device_mib

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints on this host, absolute."""
        chosen = self.checkpoint_cache if self.checkpoint_url else self.checkpoint_dir
        return Path(chosen or self.data_dir / "checkpoints")

    @property
    def checkpoint_url(self) -> str:
        """The object storage that has the checkpoints; empty if a folder has them."""
        return self.checkpoint_dir if "://" in self.checkpoint_dir else ""

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the study database."""
        return self.database_url or sqlite_url(self.data_dir / "scamp.db")


def sqlite_url(file: Path) -> str:
    """SQLAlchemy URL of a SQLite file. A path is not part of a URL as it is: ``%`` and ``?`` have a meaning there."""
    return f"sqlite:///{quote(str(file), safe=' +/')}"


def _absolute_path(folder: str) -> str:
    try:
        folder.encode()
    except UnicodeEncodeError:  # the name of a folder is any bytes, but what is shown and stored is text
        raise ValueError("must be a path in UTF-8") from None
    return str(Path(folder).expanduser().absolute())


def _networks(text: str) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError("must be IP addresses or networks, such as 10.1.0.0/16,127.0.0.1") from None


def _mistake(error: Any) -> str:
    """One error of a ``ValidationError``, as a sentence that names the environment variable."""
    name = str(error["loc"][0])
    is_secret = name in SECRETS or "://" in str(error["input"])  # somebody may have put a password into it
    value = "" if is_secret else f" is {error['input']!r}, but"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input should ").removeprefix("must ")
    message = "be a mapping in JSON" if "valid dictionary or" in message else message
    return f"SCAMP_{name.upper()}{value} must {message}"


def settings_of_process() -> Settings:
    """Settings of a process of ours: from its environment and, if the service started it, from its pipe of secrets.

    The secrets are removed from the environment, so that no process started later inherits them.
    """
    pipe = os.environ.pop(SECRETS_PIPE, "")
    if pipe:
        with open(int(pipe)) as stream:
            secrets: dict[str, str] = json.load(stream)
    else:
        secrets = {}
    settings = Settings(**secrets)
    withhold_secrets()
    return settings


def withhold_secrets() -> None:
    """Remove the secrets from the environment: every process started from here on, Ray's too, would inherit them.

    Whatever else users' code may not read stays, but its processes do not see it in ``/proc`` any more.
    """
    for name in SECRETS:
        os.environ.pop(f"SCAMP_{name.upper()}", None)
    hide_environment()
