"""Commands about users, their roles in projects, tokens, and who changed what."""

from __future__ import annotations

import csv
import json
import sys
from datetime import datetime
from itertools import islice
from typing import Annotated, Any

import typer
from rich.table import Table

from scamp.cli.service import Address, Token, client_of
from scamp.cli.terminal import AsJson, out

app = typer.Typer()
users = typer.Typer(no_args_is_help=True, help="Add users, and give them roles in projects.")
tokens = typer.Typer(no_args_is_help=True, help="Make and revoke tokens.")
app.add_typer(users, name="users")
app.add_typer(tokens, name="tokens")

Name = Annotated[str, typer.Argument(help="name of the user")]
Project = Annotated[str, typer.Option(help="the project")]
TokenRole = Annotated[str, typer.Option(help="what it may do at most: viewer, editor or admin")]
OneProject = Annotated[str | None, typer.Option(help="the only project that it is for; default: all of the user's")]
Limit = Annotated[str | None, typer.Option(help="most devices at once, over all trials of the user, or none")]
Days = Annotated[float | None, typer.Option(help="days until it expires; 0: it never does")]


LIMITS = {
    "devices": ("device", "devices"),
    "trials": ("trial", "trials"),
    "device_hours": ("device-hour", "device-hours"),
    "max_priority": ("as priority", "as priority"),
}
"""Quotas, and the words for one and for several."""


@app.command()
def whoami(address: Address = "", token: Token = "", as_json: AsJson = False) -> None:
    """Show who you are to the service, and what you may do."""
    me = client_of(address, token).me()
    if as_json:
        print(json.dumps(me))
        return
    roles = [f"{role} in {project}" for project, role in me["roles"].items()]
    roles = ["admin of the service"] * me["is_admin"] + roles
    limits = f"; this token may do what {me['most']} may" if me["most"] != "admin" else ""
    limits += f", in {me['project']} alone" if me["project"] else ""
    name = me["name"] or "nobody in particular"
    out.print(f"{name}: {', '.join(roles) or 'without a role'}{limits}", markup=False, soft_wrap=True)


@users.command(name="list")
def list_users(address: Address = "", token: Token = "", as_json: AsJson = False) -> None:
    """List users with their roles."""
    rows = client_of(address, token).users.list()
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("User", "Roles", "Quota", "Since", "", box=None)
    for row in rows:
        roles = [f"{role} in {project}" for project, role in row["roles"].items()]
        roles = ["admin of the service"] * row["is_admin"] + roles
        limits = [f"{row[key]:g} {words[row[key] != 1]}" for key, words in LIMITS.items() if row[key] is not None]
        notes = ["service"] * (row["kind"] == "service") + ["disabled"] * (row["disabled_at"] is not None)
        table.add_row(row["name"], ", ".join(roles), ", ".join(limits), _day(row["created_at"]), ", ".join(notes))
    out.print(table if rows else "there are no users: whoever reaches the service may do everything")


@users.command(name="add")
def add_user(
    name: Name,
    admin: Annotated[bool, typer.Option("--admin", help="may do everything; the first user must be one")] = False,
    service: Annotated[bool, typer.Option("--service", help="a program: it has tokens, but no password")] = False,
    email: Annotated[str, typer.Option(help="address for mail")] = "",
    password: Annotated[bool, typer.Option("--password", help="ask for a password, to log in on the pages")] = False,
    role: Annotated[str | None, typer.Option(help="role in --project: viewer, editor or admin")] = None,
    project: Project = "default",
    address: Address = "",
    token: Token = "",
) -> None:
    """Add a user, and print a token for it once.

    From the first user on, the service lets in only who has a token or a password.
    """
    client = client_of(address, token, to_change=True)
    secret = typer.prompt("Password", hide_input=True, confirmation_prompt=True) if password else None
    kind = {"is_admin": admin, "is_service": service}
    made = client.users.add(name, **kind, email=email, password=secret, role=role, project=project)
    _show_secret(made["secret"])


@users.command(name="grant")
def grant_role(
    name: Name,
    role: Annotated[str, typer.Argument(help="viewer, editor, admin, or none to take it away")],
    project: Project = "default",
    address: Address = "",
    token: Token = "",
) -> None:
    """Give a user a role in a project, instead of any other."""
    client_of(address, token, to_change=True).users.grant(name, None if role == "none" else role, project)


@users.command(name="change")
def change_user(
    name: Name,
    admin: Annotated[bool | None, typer.Option("--admin/--no-admin", help="of the whole service")] = None,
    disabled: Annotated[bool | None, typer.Option("--disable/--enable", help="refuse all its tokens")] = None,
    email: Annotated[str | None, typer.Option(help="address for mail")] = None,
    password: Annotated[bool, typer.Option("--password", help="ask for a new password")] = False,
    devices: Limit = None,
    trials: Annotated[str | None, typer.Option(help="most trials that run at once, or none")] = None,
    device_hours: Annotated[str | None, typer.Option(help="most devices × hours in a calendar month, or none")] = None,
    max_priority: Annotated[str | None, typer.Option(help="largest priority of the user's studies, or none")] = None,
    address: Address = "",
    token: Token = "",
) -> None:
    """Change a user; everybody may change one's own address and password."""
    changes: dict[str, Any] = {"is_admin": admin, "is_disabled": disabled, "email": email}
    limits = {"devices": devices, "trials": trials, "device_hours": device_hours, "max_priority": max_priority}
    if password:
        changes["password"] = typer.prompt("New password", hide_input=True, confirmation_prompt=True)
    changes = {key: value for key, value in changes.items() if value is not None}
    changes |= {key: None if text == "none" else text for key, text in limits.items() if text is not None}
    client_of(address, token, to_change=True).users.change(name, **changes)


@tokens.command(name="list")
def list_tokens(
    every: Annotated[bool, typer.Option("--all", help="those of all users")] = False,
    address: Address = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """List your tokens; no command shows a secret again."""
    rows = client_of(address, token).tokens.list(every=every)
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("Id", "User", "Name", "May", "Expires", "Last used", "", box=None)
    for row in rows:
        may = "as its user" if row["role"] == "admin" else f"at most as {row['role']}"
        may += f", in {row['project']}" if row["project"] else ""
        revoked = "revoked" if row["revoked_at"] is not None else ""
        expires, used = _day(row["expires_at"], "never"), _day(row["last_used_at"], "never")
        table.add_row(str(row["id"]), row["user"], row["name"], may, expires, used, revoked)
    out.print(table if rows else "there are no tokens")


@tokens.command(name="create")
def create_token(
    name: Annotated[str, typer.Argument(help="what it is for, such as laptop")],
    user: Annotated[str | None, typer.Option(help="whose it is; default: yours")] = None,
    role: TokenRole = "admin",
    project: OneProject = None,
    days: Days = 90.0,
    address: Address = "",
    token: Token = "",
) -> None:
    """Make a token, and print its secret this one time."""
    client = client_of(address, token, to_change=True)
    made = client.tokens.create(name, user=user, role=role, project=project, days=days or None)
    _show_secret(made["secret"])


@tokens.command(name="revoke")
def revoke_token(
    number: Annotated[int, typer.Argument(help="its id, as `scamp tokens list` shows it")],
    address: Address = "",
    token: Token = "",
) -> None:
    """Make a token invalid for ever, and end the sessions that began with it."""
    client_of(address, token, to_change=True).tokens.revoke(number)


USE_COLUMNS = ("period", "project", "owner", "device_hours", "busy_share", "mib_hours")


@app.command()
def usage(
    first: Annotated[str | None, typer.Option(help="first day, such as 2026-03-01; default: of this month")] = None,
    last: Annotated[str | None, typer.Option(help="last day; default: today")] = None,
    by: Annotated[str, typer.Option(help="sum up by day, week or month")] = "month",
    address: Address = "",
    token: Token = "",
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="print CSV")] = False,
) -> None:
    """Show how many device-hours each owner has used in each project, and how busy the devices were."""
    rows = client_of(address, token).usage(first=first, last=last, by=by)
    if as_json:
        print(json.dumps(rows))
        return
    if as_csv:
        writer = csv.DictWriter(sys.stdout, USE_COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return
    table = Table("From", "Project", "Owner", "Device-hours", "Busy", "GiB·hours", box=None)
    for row in rows:
        busy = "–" if row["busy_share"] is None else f"{100 * row['busy_share']:.0f} %"
        hours = f"{row['device_hours']:.2f}", busy, f"{row['mib_hours'] / 1024:.2f}"
        table.add_row(row["period"], row["project"], row["owner"] or "–", *hours)
    total = sum(row["device_hours"] for row in rows)
    table.caption = f"{total:.2f} device-hours in all"
    out.print(table if rows else "no device was used in this time")


@app.command()
def audit(
    user: Annotated[str | None, typer.Option(help="only changes by this user")] = None,
    study: Annotated[int | None, typer.Option(help="only changes of this study")] = None,
    rows: Annotated[int, typer.Option(help="how many of the newest", min=1)] = 50,
    address: Address = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Show who changed what, the newest first."""
    client = client_of(address, token)
    if study is not None and user is None:
        changes = list(islice(client.changes(study), rows))  # whoever may read a study may read its changes
    else:
        changes = client.audit(actor=user, study_id=study, limit=rows)
    if as_json:
        print(json.dumps(changes))
        return
    for change in changes:
        when = datetime.fromtimestamp(change["time"]).isoformat(" ", "seconds")
        who = f"{change['actor'] or 'anybody'} ({change['address']})" if change["address"] else change["actor"]
        about = f" study {change['study_id']}" if change["study_id"] else ""
        detail = ", ".join(f"{key} {value}" for key, value in change["detail"].items() if value is not None)
        out.print(f"{when}  {who}: {change['action']}{about}  {detail}", markup=False, soft_wrap=True)


def _show_secret(secret: str) -> None:
    out.print(f"its token, shown this one time: {secret}", markup=False, soft_wrap=True)
    out.print("use it with: export SCAMP_API_TOKEN=…, or on the page to log in", markup=False, soft_wrap=True)


def _day(time: float | None, otherwise: str = "") -> str:
    return datetime.fromtimestamp(time).date().isoformat() if time is not None else otherwise
