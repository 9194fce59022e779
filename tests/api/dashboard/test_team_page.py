"""The page of the team: the first user is added on it, gives roles, makes tokens and sees who changed what."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from api.access.sessions import COOKIE
from scamp_service.access.model import Role, UserKind
from scamp_service.settings import Settings
from scamp_service.store.store import Store
from tests.api.dashboard.serving import serving
from tests.services.serving import fill, full_spec

SECRET = re.compile(r"scamp_[\w-]{43}")


@pytest.mark.full
def test_a_team_moves_in_on_the_page(browser: Browser, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    store = Store(settings.url)
    with serving(settings) as address:
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}/team")
        expect(page.locator("#summary")).to_contain_text("There are no users")
        page.fill("#users-card [name=name]", "anna")
        page.fill("#users-card [name=password]", "correct horse")
        page.check("#users-card [name=is_admin]")
        page.click("text=Add a user")
        expect(page.locator("#secret")).to_contain_text(SECRET)  # from here on one has to log in
        page.click("#panels >> text=Log in")
        page.fill("#user", "anna")
        page.fill("#token", "correct horse")
        page.click("text=Log in")
        expect(page.locator("#summary")).to_have_text("You are anna: admin of the service.")
        page.fill("#users-card [name=name]", "bob")
        page.click("text=Add a user")
        expect(page.locator("#secret")).to_contain_text(SECRET)
        page.select_option("#users-card [name=user]", "bob")
        page.fill("#users-card [name=project]", "vision")
        page.click("text=Give a role")
        expect(page.locator("#users-card tbody")).to_contain_text("viewer in vision")
        assert store.users.members() == [("bob", "vision", Role.VIEWER)]
        page.fill("#tokens-card [name=name]", "laptop")
        page.click("text=Make a token")
        expect(page.locator("#secret")).to_contain_text("Token laptop")
        page.click("[title='Revoke laptop of anna']")
        expect(page.locator("#tokens-card tr", has_text="laptop")).to_contain_text("revoked")
        expect(page.locator("#changes-card tbody tr").first).to_contain_text("revoke token")
        page.click("[title='Disable bob']")
        expect(page.locator("[title='Enable bob']")).to_be_visible()
        page.fill("#users-card [name=name]", "carol")
        store.users.grant("bob", "speech", Role.EDITOR)  # by somebody else
        expect(page.locator("#users-card tbody")).to_contain_text("editor in speech")
        expect(page.locator("#users-card [name=name]")).to_have_value("carol")
        expect(page.locator("#uses-aside")).to_have_text("this month and the 2 before")
        page.select_option("#uses-card [name=period]", "week")
        expect(page.locator("#uses-aside")).to_have_text("this week and the 4 before")
        assert not errors
        page.close()
    store.close()


@pytest.mark.full
def test_a_study_is_described_found_and_archived(browser: Browser, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    store = Store(settings.url)
    for name in ("resnet", "spirals"):
        store.studies.create(full_spec(name=name), now=1.0)
    with serving(settings) as address:
        page = browser.new_page()
        page.goto(f"{address}/studies/1")
        page.click("#edit")
        page.fill("#described-tags", "baseline, paper")
        page.fill("#described-note", "the one to beat")
        page.click("#description >> text=Change")
        expect(page.locator("#subtitle")).to_contain_text("#baseline · #paper")
        expect(page.locator("#note")).to_have_text("the one to beat")
        page.goto(address)
        expect(page.locator("#rows tr")).to_have_count(2)
        page.fill("[name=words]", "beat")
        expect(page.locator("#rows tr")).to_have_count(1)
        store.requests.describe(1, {"archived": True}, now=2.0)
        expect(page.locator("#summary")).to_have_text("There are no such studies.")  # live
        page.check("[name=archived]")
        expect(page.locator("#rows .name")).to_have_text("resnet")
        page.goto(f"{address}/?archived=1&state=COMPLETED")
        expect(page.locator("#summary")).to_have_text("There are no such studies.")
        page.select_option("[name=state]", "RUNNING")
        expect(page.locator("#rows .name")).to_have_text("resnet")
        store.requests.describe(2, {"archived": True}, now=3.0)
        page.select_option("[name=sort]", "name")
        expect(page.locator("#rows .name")).to_have_text(["resnet", "spirals"])
        assert page.url.endswith("/?state=RUNNING&sort=name&archived=1")
        page.close()
    store.close()


@pytest.mark.browser
def test_a_viewer_sees_no_button_that_is_refused(browser: Browser, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    store = Store(settings.url)
    study = fill(store).id
    secrets = [
        store.users.create(name, UserKind.PERSON, is_admin=name == "root", email="", token_until=1e12, now=1.0)[1]
        for name in ("root", "eva", "otto")
    ]
    project = store.studies.project(study)
    store.users.grant("eva", project, Role.VIEWER)
    store.users.grant("otto", project, Role.EDITOR)
    changing = "#stop, #pause, #edit, #add, #extend, #copy, #first, a[href*=like], nav a[href='/new']"
    with serving(settings) as address:
        for secret, count in zip(secrets, (True, False, True), strict=True):
            context = browser.new_context()
            context.add_cookies([{"name": COOKIE, "value": secret, "url": address}])
            page = context.new_page()
            for path in (f"/studies/{study}", f"/studies/{study}/trials/1"):
                page.goto(address + path)
                expect(page.locator("#connection")).to_have_text("Live")
                assert any(each.is_visible() for each in page.locator(changing).all()) is count, (path, count)
            page.goto(f"{address}/new")
            expect(page.locator("#submit")).to_be_visible(visible=count)
            context.close()
    store.close()
