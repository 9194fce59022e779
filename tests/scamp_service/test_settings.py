"""Wrong variables are named in one line; folders mean the same in every process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlalchemy as sa

from placement.packing.projects import Project
from scamp_service.errors import InvalidInput
from scamp_service.receivers import Receiver
from scamp_service.settings import Settings
from scamp_service.store.database import expect_shared_database
from scamp_service.store.store import Store


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SCAMP_PORT", "abc", "SCAMP_PORT is 'abc', but must be a valid integer"),
        ("SCAMP_VIRTUAL_DEVICES", "0", "SCAMP_VIRTUAL_DEVICES is '0', but must be greater than or equal to 1"),
        ("SCAMP_LEASE_SECONDS", "inf", "SCAMP_LEASE_SECONDS is 'inf', but must be less than or equal to 3600"),
        ("SCAMP_LEASE_SECONDS", "nan", "SCAMP_LEASE_SECONDS is 'nan'"),
        ("SCAMP_DEVICE_MIBS", "128,x", "SCAMP_DEVICE_MIBS is '128,x', but must be whole MiB"),
        ("SCAMP_POLICY", "foo", "SCAMP_POLICY is 'foo', but must be one of pack, "),
        ("SCAMP_OIDC", "{bad", "SCAMP_OIDC must be a mapping in JSON"),
        ("SCAMP_OIDC", '"bad"', "SCAMP_OIDC must be a mapping in JSON"),
        ("SCAMP_CHECKPOINT_DIR", "ftp://b", "SCAMP_CHECKPOINT_DIR must be a folder, or a bucket: s3://"),
        ("SCAMP_CHECKPOINT_DIR", "s3://key:secret@b", "SCAMP_CHECKPOINT_DIR must have no password"),
    ],
)
def test_a_wrong_variable_is_named_in_one_line(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput) as wrong:
        Settings()
    assert str(wrong.value).startswith(said) and "\n" not in str(wrong.value)


def test_all_wrong_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCAMP_PORT", "0")
    monkeypatch.setenv("SCAMP_DEVICE_MIB", "1e3")
    with pytest.raises(InvalidInput, match=r"SCAMP_PORT.*; SCAMP_DEVICE_MIB"):
        Settings()


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATA_DIR", "PORT", "KEEP_LOGS_DAYS", "CHECKPOINT_DIR"):
        monkeypatch.setenv(f"SCAMP_{name}", "")
    settings = Settings()
    assert (settings.data_dir, settings.port, settings.keep_logs_days) == (Path.home() / ".scamp", 8100, None)
    assert settings.checkpoints == Path.home() / ".scamp" / "checkpoints"


@pytest.mark.parametrize(("sizes", "mibs"), [("128, 48", (128, 48)), ("[128,48]", (128, 48)), ("[]", ())])
def test_sizes_of_devices_are_read_as_a_user_writes_them_and_as_our_processes_pass_them_on(
    sizes: str, mibs: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCAMP_DEVICE_MIBS", sizes)
    assert Settings().device_mibs == mibs


def test_folders_are_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(data_dir=Path("data"), checkpoint_dir="~/kept")
    assert (settings.data_dir, settings.checkpoints) == (tmp_path / "data", Path.home() / "kept")


@pytest.mark.parametrize(
    "name", ["a%20b", "a?timeout=7", "a#b", "a b+c@d:e", "Ü%", "{x}%s", ":memory:", "file:a?uri=true", "a\nb"]
)
def test_a_data_directory_may_have_any_name(name: str, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / name)
    Store(settings.url).close()
    assert [folder.name for folder in tmp_path.iterdir()] == [name] and (tmp_path / name / "scamp.db").is_file()
    assert sa.make_url(settings.url).database == str(tmp_path / name / "scamp.db"), "what other programs make of it"


@pytest.mark.parametrize("name", ["SCAMP_DATA_DIR", "SCAMP_CHECKPOINT_DIR"])
def test_a_folder_whose_name_is_no_text_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environb, name.encode(), b"/tmp/\xff")
    with pytest.raises(InvalidInput, match=rf"{name} is .*, but must be a path in UTF-8"):
        Settings()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///scamp.db", "mysql://a:secret@h/b", "no"])
def test_a_database_that_processes_cannot_share_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="write sqlite:///") as wrong:
        expect_shared_database(url)
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize("url", ["sqlite:////data/scamp.db", "postgresql://host/scamp"])
def test_a_database_that_processes_can_share_is_accepted(url: str) -> None:
    expect_shared_database(url)


def test_projects_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCAMP_PROJECTS", '{"vision": {"weight": 2, "devices": 16}}')
    assert Settings().projects["vision"].to_project() == Project(weight=2.0, devices=16)
    monkeypatch.setenv("SCAMP_PROJECTS", '{"vision": {"max_priority": 50}}')
    monkeypatch.setenv("SCAMP_MAX_PRIORITY", "0")
    Settings().expect_priority("vision", 50)
    Settings().expect_priority("default", -10)
    for project, priority in (("vision", 51), ("default", 1)):
        with pytest.raises(InvalidInput, match=f"priority is {priority}, but studies of project '{project}'"):
            Settings().expect_priority(project, priority)
    for wrong in ('{"vision": {"gpus": 16}}', "vision=2"):
        monkeypatch.setenv("SCAMP_PROJECTS", wrong)
        with pytest.raises(InvalidInput, match="SCAMP_PROJECTS"):
            Settings()


def test_receivers_are_json_and_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCAMP_NOTIFY", '[{"webhook": "https://example.org/secret", "on": ["trial.failed"]}]')
    (receiver,) = Settings().notify
    assert receiver.address == "https://example.org/secret" and receiver.on == ["trial.failed"]
    for wrong, words in (
        ('[{"webhook": "https://example.org/secret", "on": ["nothing"]}]', "SCAMP_NOTIFY must be 'study.ended'"),
        ('[{"on": ["trial.failed"]}]', "SCAMP_NOTIFY must have either webhook"),
        ("https://example.org/secret", "SCAMP_NOTIFY must be JSON, such as"),
    ):
        monkeypatch.setenv("SCAMP_NOTIFY", wrong)
        with pytest.raises(InvalidInput, match=words) as refused:
            Settings()
        assert "secret" not in str(refused.value)


def test_receivers_that_cannot_be_sent_to_are_refused() -> None:
    mail, hook = Receiver(email="ada@example.org"), Receiver(webhook="http://10.1.2.3:8080/secret")
    with pytest.raises(InvalidInput, match=r"no e-mail can be sent to ada@example\.org: SCAMP_SMTP_URL"):
        Settings().expect_receivers([mail])
    with pytest.raises(
        InvalidInput, match=r"webhooks may not go to http://10\.1\.2\.3:8080/…, .* SCAMP_NOTIFY_NETWORKS"
    ):
        Settings(notify_networks="10.2.0.0/16").expect_receivers([hook])
    Settings(notify_networks="10.2.0.0/16, 10.1.2.3", smtp_url="smtp://mail.test").expect_receivers([mail, hook])


@pytest.mark.parametrize(
    ("option", "value"),
    [("notify_networks", "10.1/16x"), ("smtp_url", "mail.example.org"), ("smtp_url", "http://mail.example.org")],
)
def test_a_network_or_a_mail_server_that_is_none_is_refused(option: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=f"SCAMP_{option.upper()}"):
        Settings(**{option: value})


def test_a_ray_that_is_started_here_has_no_autoscaler() -> None:
    with pytest.raises(InvalidInput, match=r"SCAMP_AUTOSCALE_DEVICES is 4, .* name your Ray cluster with SCAMP_RAY"):
        Settings(autoscale_devices=4).expect_autoscaler()
    Settings(autoscale_devices=4, ray_address="10.0.0.1:6379").expect_autoscaler()
