"""The command line of the package scamp: the commands that ask a service.

A user's mistake prints one line on stderr and exits with code 2; a study that fails exits with code 1. Where
scamp-server is installed, ``scamp`` has its commands as well (``scamp_service.cli.main``).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import typer.completion
from typer.core import TyperGroup

from scamp import __version__
from scamp.cli import interrupts
from scamp.cli.accounts import app as accounts
from scamp.cli.exchanging import app as exchanging
from scamp.cli.following import CHECKING, tail, warn, word_of
from scamp.cli.looking import app as looking
from scamp.cli.mirroring import app as mirroring
from scamp.cli.notices import app as notices
from scamp.cli.progress import EXPLAINED, closing_words, leaderboard, listed_line, live_view, reasons
from scamp.cli.service import Address, SomeTrials, StudyId, Token, client_of
from scamp.cli.terminal import (
    AsJson,
    Changes,
    StudyFile,
    WorkingDir,
    err,
    escape_what_cannot_be_shown,
    out,
    utf8_file,
    whole_number,
)
from scamp.cli.trial_files import app as trial_files
from scamp.cli.what_if import app as what_if
from scamp.errors import ScampError
from scamp.installed import NotInstalled
from scamp.shown import shown_value


class CommandLine(TyperGroup):
    """Help in plain text, as that of rich takes a quarter of a second more, with the first sentence of each command."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands; Click would cut each sentence after 45 characters."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, shown.get_short_help_str(300)) for name, shown in commands if shown and not shown.hidden]
            )


app = typer.Typer(
    cls=CommandLine,
    help="ScaMP tunes models that may not fit on one GPU.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def run(app: typer.Typer) -> None:
    """Run a command line and exit: 0 success, 1 a failed study, 2 a user's mistake, 130 interrupted."""
    escape_what_cannot_be_shown()
    app.callback()(_options)
    if "_SCAMP_COMPLETE" in os.environ:  # a shell asks for completions
        typer.completion.completion_init()  # type: ignore[attr-defined]
    try:
        interrupts.raise_on_interrupt()
        # It returns the code of a command's typer.Exit, also of an interrupt; None means success.
        if (code := app(prog_name="scamp", standalone_mode=False)) == interrupts.EXIT_CODE:
            raise KeyboardInterrupt
        sys.exit(code)
    except (typer.Abort, KeyboardInterrupt) as reason:
        interrupts.end_silently()
        err.print("scamp: aborted" if isinstance(reason, typer.Abort) else "scamp: interrupted")
        sys.exit(interrupts.EXIT_CODE)
    except (ScampError, NotInstalled) as error:
        err.print(f"scamp: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
    except Exception as error:
        if hasattr(error, "format_message"):  # a mistake in the arguments
            err.print(f"scamp: {error.format_message()}", markup=False, soft_wrap=True)
            sys.exit(2)
        raise


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"scamp {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="show the version and exit", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """ScaMP tunes models that may not fit on one GPU."""


@app.command()
def submit(
    study: StudyFile,
    changes: Changes = None,
    address: Address = "",
    token: Token = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="follow the study to its end")] = True,
    working_dir: WorkingDir = None,
    as_json: AsJson = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="any unique text; a submission that is repeated with it creates only one study")
    ] = None,
) -> None:
    """Submit a study to a service, and follow it to its end."""
    from scamp.study_file import changed, files_of, read_study
    from scamp.user_code.bundling import bundle_code

    spec = changed(read_study(study), changes or ())
    client = client_of(address, token, to_change=True)
    files = files_of(spec)
    code = bundle_code(study, files[0], working_dir, files[1:]) if files else None
    with err.status(CHECKING):
        folder = working_dir or study.parent
        created = client.submit(spec, code=code, idempotency_key=idempotency_key, working_dir=folder)
    warn(created["warnings"])
    if not as_json:
        out.print(f"study {created['id']}: {client.address}/studies/{created['id']}")
    if wait and not tail(client, created["id"], as_json=as_json):
        raise typer.Exit(1)
    if as_json and not wait:
        print(json.dumps(created))


@app.command(name="list")
def list_studies(
    words: Annotated[list[str] | None, typer.Argument(help="words in name, tags, note, owner or project")] = None,
    state: Annotated[list[str] | None, typer.Option(help="only in this state, such as RUNNING; repeatable")] = None,
    tag: Annotated[str | None, typer.Option(help="only with this tag")] = None,
    owner: Annotated[str | None, typer.Option(help="only those of this user")] = None,
    project: Annotated[str | None, typer.Option(help="only those of this project")] = None,
    archived: Annotated[bool, typer.Option("--archived", help="archived ones instead")] = False,
    sort: Annotated[Literal["id", "name", "owner", "project", "state"], typer.Option(help="order of the list")] = "id",
    address: Address = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """List the studies of a service, or those with some words."""
    client = client_of(address, token)
    filters: dict[str, Any] = {
        "states": state or (),
        "tag": tag,
        "owner": owner,
        "project": project,
        "words": " ".join(words or ()),
    }
    studies = list(client.studies(**filters, archived="only" if archived else "no", sort=sort))
    if as_json:
        print(json.dumps(studies))
        return
    width = max((len(study["state_text"]) for study in studies), default=0)
    for study in studies:
        out.print(listed_line(study, width), markup=False, soft_wrap=True)
    if not studies:
        none = "there are no studies yet; `scamp submit STUDY.yaml` makes one"
        out.print("there are no such studies" if any(filters.values()) or archived else none)
    if any(study["state"] == "RUNNING" for study in studies) and not client.cluster()["controller_alive"]:
        err.print("the controller does not run, so no trial is started: run `scamp serve`", soft_wrap=True)


@app.command()
def status(
    study: StudyId,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="print the study's file instead, to change and submit again")
    ] = False,
    code: Annotated[Path | None, typer.Option(help="write the files that were sent with it here, as a zip")] = None,
    provenance: Annotated[
        bool, typer.Option("--provenance", help="print the command, git commit and packages that it comes from")
    ] = False,
    address: Address = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Show the progress of one study in a few lines."""
    client = client_of(address, token)
    if as_yaml:
        with utf8_file(None) as stream:
            stream.write(client.study_file(study))
        return
    if code is not None:
        client.study_code(study, code)
        return
    if provenance:
        print(json.dumps(client.provenance(study), indent=None if as_json else 2))
        return
    view = client.study(study)
    if as_json:
        print(json.dumps(view))
        return
    warn(view["warnings"])
    out.print(live_view(view["summary"], view["spec"], client.cluster()))
    out.print(closing_words(view["summary"]), markup=False, soft_wrap=True)
    if view["summary"]["no_success"]:
        for line in reasons(client.trials(study)):
            out.print(line, soft_wrap=True)
    if view["reason"]:
        out.print(f"{word_of(view['summary'])}: {view['reason']}", markup=False, soft_wrap=True)


@app.command()
def trials(
    study: StudyId,
    where: Annotated[
        str, typer.Option(help="only trials for which this is true, such as 'lr < 1e-3 and accuracy > 0.9'")
    ] = "",
    address: Address = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """List the trials of a study, the best first."""
    client = client_of(address, token)
    spec = client.study(study)["spec"]
    rows = list(client.trials(study, where=where))
    if as_json:
        print(json.dumps(rows))
        return
    out.print(leaderboard(rows, spec, rows=len(rows)))


@app.command()
def importances(study: StudyId, address: Address = "", token: Token = "", as_json: AsJson = False) -> None:
    """Show how much each parameter matters to be among the best tenth of a study's trials."""
    answer = client_of(address, token).importances(study)
    if as_json:
        print(json.dumps(answer))
        return
    for item in answer["items"]:
        out.print(f"{item['share']:>5.0%}  {item['name']}", markup=False, soft_wrap=True)
    if not answer["items"]:
        words = "importances are known once 8 trials have a value and differ in at least one parameter"
        out.print(f"{words}; {answer['num_trials']} have one", soft_wrap=True)
    elif answer["is_rough"]:
        out.print(f"from {answer['num_trials']} trials: rough", soft_wrap=True)


@app.command()
def logs(
    study: StudyId,
    trial: Annotated[int, typer.Argument(help="the trial's number", parser=whole_number, metavar="TRIAL")],
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="keep printing new lines until the trial ends")
    ] = False,
    search: Annotated[str, typer.Option(help="only lines that contain this text")] = "",
    address: Address = "",
    token: Token = "",
) -> None:
    """Print the log of a trial and, on stderr, why it has failed or waits."""
    client = client_of(address, token)
    after = 0
    while True:
        page = client.logs(study, trial, after=after, search=search)
        for line in page:
            after = line["id"]
            out.print(f"{line['attempt']}.{line['rank']}  {line['text']}", markup=False, soft_wrap=True)
        if page:
            continue
        view = client.trial(study, trial)
        if not follow or view["finished_at"]:
            break
        time.sleep(0.5)
    if not after:
        err.print(f"trial {trial} of study {study} has printed nothing{' with this text' * bool(search)}")
    if view["reason"] and view["state"] in EXPLAINED:
        err.print(f"{view['state'].lower()}: {view['reason']}", markup=False, soft_wrap=True)


@app.command()
def events(
    study: Annotated[
        int | None, typer.Argument(help="only this study's", parser=whole_number, metavar="[STUDY]", show_default=False)
    ] = None,
    after: Annotated[int | None, typer.Option(help="begin after the event with this number; 0: all", min=0)] = None,
    address: Address = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Follow what happens to studies, trials and devices, a line for each event, until Ctrl-C."""
    for event in client_of(address, token).events(after, study_id=study):
        if as_json:
            print(json.dumps(event), flush=True)
            continue
        clock = time.strftime("%H:%M:%S", time.localtime(event["time"]))
        where = f"study {event['study_id']}  " if event["study_id"] else ""
        words = " ".join(f"{name}={shown_value(value)}" for name, value in event["data"].items() if value is not None)
        out.print(f"{event['id']}  {clock}  {where}{event['kind']}  {words}", markup=False, soft_wrap=True)


@app.command()
def stop(
    study: StudyId,
    trials: SomeTrials = None,
    address: Address = "",
    token: Token = "",
) -> None:
    """Stop a study, or some of its trials. What does not end by itself is cancelled; what was reported is kept."""
    client = client_of(address, token, to_change=True)
    for number in trials or ():
        trial = client.stop_trial(study, number)
        out.print(f"trial {number} of study {study} is {trial['state'].lower()}")
    if not trials:
        out.print(f"study {study} is {client.stop(study)['state'].lower()}")


@app.command()
def describe(
    study: StudyId,
    name: Annotated[str | None, typer.Option(help="another name")] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="its tags instead of those before; repeatable; '' for none")
    ] = None,
    note: Annotated[str | None, typer.Option(help="its note instead of the one before")] = None,
    archived: Annotated[bool | None, typer.Option("--archive/--restore", help="list it only with --archived")] = None,
    address: Address = "",
    token: Token = "",
) -> None:
    """Change the name, tags or note of a study, or archive it."""
    tags = None if tag is None else [word for word in tag if word]
    client_of(address, token, to_change=True).describe(study, name=name, tags=tags, note=note, archived=archived)


@app.command()
def delete(
    study: StudyId,
    trials: SomeTrials = None,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    address: Address = "",
    token: Token = "",
) -> None:
    """Delete a study that has ended, or trials that have, with all metrics, logs, files and checkpoints."""
    client = client_of(address, token, to_change=True)
    if not yes:
        view = client.study(study)
        name = f"study {study} ({view['name']})"
        words = f"{name} with its {sum(view['trials'].values())} trials"
        if trials:
            words = f"trial{'s' * (len(trials) > 1)} {', '.join(map(str, trials))} of {name}"
        typer.confirm(f"Delete {words}? This cannot be undone.", abort=True)
    for number in trials or ():
        client.delete_trial(study, number)
        out.print(f"trial {number} of study {study} is deleted")
    if not trials:
        client.delete(study)
        out.print(f"study {study} is deleted")


app.add_typer(looking)
app.add_typer(exchanging)
app.add_typer(accounts)
app.add_typer(trial_files)
app.add_typer(what_if)
app.add_typer(notices)
app.add_typer(mirroring)
