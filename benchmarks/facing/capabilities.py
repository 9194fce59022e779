"""The capabilities of ScaMP, and where each is on the four faces: REST, Python, the command line and the dashboard.

``python -m benchmarks.facing.capabilities docs/faces.md`` writes that page from this table. A test compares it with the
code: every operation, method and command is in it, or in ``APART`` with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STATIC = Path(__file__).resolve().parent.parent.parent / "api"


@dataclass(frozen=True, slots=True)
class Place:
    """A place on the dashboard: its words, and a text that stands in a file of ``api`` where it is made."""

    words: str
    file: str
    text: str


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing that people do. Empty: the face does not have it."""

    name: str
    operations: str
    """Ids of the operations in the OpenAPI document, with spaces."""
    methods: str
    """Methods of ``scamp.Client`` or names of the package, with spaces."""
    commands: str
    """Commands, with commas; words after the first ones are options."""
    place: Place | None

    @property
    def has_all(self) -> bool:
        return bool(self.operations and self.methods and self.commands and self.place)


def _on(words: str, file: str, text: str) -> Place:
    return Place(words, file, text)


def _study(words: str, text: str) -> Place:
    return Place(f"study: {words}", "templates/study.html", text)


def _trial(words: str, text: str) -> Place:
    return Place(f"trial: {words}", "templates/trial.html", text)


CAPABILITIES: Sequence[Capability] = (
    Capability("submit a study with its files", "create_study", "submit", "submit",
               _on("New study", "templates/new.html", "Submit study")),
    Capability("check a study and screen its space before", "check_study screen_study", "check screen", "screen",
               _on("New study: *What fits*", "templates/new.html", 'id="fits"')),
    Capability("list studies", "list_studies", "studies", "list",
               _on("Studies", "static/studies/list.js", "rows")),
    Capability("find studies by words, tag, state, owner, project", "list_studies", "studies", "list --owner",
               _on("Studies: *Find*", "templates/studies.html", 'id="search"')),
    Capability("sort studies", "list_studies", "studies", "list --sort",
               _on("Studies: headings", "static/studies/search.js", "sort")),
    Capability("progress, best trial and summary of a study", "get_study", "study", "status",
               _study("head", 'id="best"')),
    Capability("follow what happens", "follow_events", "events wait", "events",
               _on("every page, live", "static/live.js", "/v1/events")),
    Capability("all that runs now: devices, gangs, what waits and why", "get_cluster", "cluster", "top",
               _on("Cluster", "static/cluster/waiting.js", "reason")),
    Capability("more devices: when would the queue be done", "what_if", "what_if", "what-if",
               _on("Cluster: *More devices*", "static/cluster/what_if.js", "what-if")),
    Capability("rename a study", "describe_study", "describe", "describe --name",
               _study("*Name and tags…*", 'id="described-name"')),
    Capability("tag a study", "describe_study", "describe", "describe --tag",
               _study("*Name and tags…*", 'id="described-tags"')),
    Capability("write a note", "describe_study", "describe", "describe --note",
               _study("*Name and tags…*", 'id="described-note"')),
    Capability("archive a study", "describe_study", "describe", "describe --archive",
               _study("*Name and tags…*", 'id="described-archived"')),
    Capability("change limits and the target", "extend_study", "extend", "extend",
               _study("*Limits…*", 'id="limit-target"')),
    Capability("pause and resume a study", "pause_study resume_study", "pause resume", "pause, resume",
               _study("*Pause study*", 'id="pause"')),
    Capability("prioritise a study", "prioritize_study", "prioritize", "prioritize",
               _study("*Limits…*", 'id="limit-priority"')),
    Capability("stop a study", "stop_study", "stop", "stop", _study("*Stop study*", 'id="stop"')),
    Capability("delete a study", "delete_study", "delete", "delete", _study("*Delete study*", 'id="delete"')),
    Capability("run a study again, the same or changed", "clone_study create_study", "clone", "clone",
               _study("*Copy…*", 'id="copy"')),
    Capability("read a study's file", "get_study_file", "study_file", "status --yaml",
               _on("study: Study file", "static/study/file.js", "Study file")),
    Capability("read the files that were sent", "get_study_code", "study_code", "status --code",
               _on("study: Study file", "static/study/file.js", "code")),
    Capability("where a study comes from: command, commit, packages", "get_provenance", "provenance",
               "status --provenance", _on("study: Study file", "static/study/file.js", "provenance")),
    Capability("try a candidate of one's own", "enqueue_trials", "enqueue", "enqueue",
               _study("*Add candidate*", 'id="add"')),
    Capability("tell a result that was measured elsewhere", "enqueue_trials", "enqueue", "enqueue --value",
               _study("*Add candidate*", 'id="candidate-value"')),
    Capability("retry failed trials", "retry_trials", "retry", "retry", _study("*Retry failed trials*", 'id="retry"')),
    Capability("stop one trial", "stop_trial", "stop_trial", "stop", _trial("*Stop trial*", 'id="stop"')),
    Capability("pause and resume one trial", "change_trial", "change_trial", "pause, resume",
               _trial("*Pause trial*", 'id="pause"')),
    Capability("prioritise one trial", "change_trial", "change_trial", "prioritize --trial",
               _trial("*Start first*", 'id="first"')),
    Capability("delete one trial", "delete_trial", "delete_trial", "delete", _trial("*Delete trial*", 'id="delete"')),
    Capability("list trials with reasons", "list_trials", "trials trials_frame", "trials",
               _on("study: Trials", "static/study/table/trials.js", "Trials")),
    Capability("sort and filter trials", "get_order list_trials", "trials trials_frame", "trials --where",
               _on("study: Trials, *Filter*", "static/study/table/filter.js", "where")),
    Capability("one trial: plan, reasons, attempts, peaks", "get_trial list_peaks get_timeline", "trial peaks timeline",
               "show", _on("trial", "static/trial/attempts.js", "Attempts")),
    Capability("learning curves", "list_metrics list_curves", "metrics", "show",
               _on("study, trial: curves", "static/trial/curves.js", "Curves")),
    Capability("logs, followed", "list_logs", "logs", "logs --follow", _on("trial: Log", "static/trial/log.js", "Log")),
    Capability("search logs", "list_logs", "logs", "logs --search",
               _on("trial: Log, *Search*", "static/trial/log.js", "search")),
    Capability("files and pictures that a trial keeps", "list_files get_file", "files download", "files, download",
               _on("trial: Files", "static/trial/files.js", "Files")),
    Capability("weights of a trial", "get_checkpoint", "checkpoint weights best_trained", "weights",
               _on("trial: Files", "static/trial/files.js", "checkpoint")),
    Capability("export trials: CSV, JSON lines, Parquet", "download_trials", "download_trials trials_text", "export",
               _on("study: Trials, *CSV*", "static/client.js", "trials.csv")),
    Capability("importance of parameters", "get_importances", "importances", "importances",
               _on("study: Importances", "static/study/parameters/importances.js", "mportance")),
    Capability("Pareto front of several objectives", "get_front", "study", "trials",
               _on("study: Pareto front", "static/study/front.js", "front")),
    Capability("copies and weights of others: lineage", "get_lineage", "trials", "trials",
               _on("study: Lineage", "static/study/lineage.js", "Lineage")),
    Capability("history and relations of parameters", "get_history get_candidates", "trials_frame", "trials",
               _on("study: History", "static/study/history.js", "card(")),
    Capability("compare studies: what differs, best values", "get_study list_curves", "differences", "compare",
               _on("Compare", "static/compare/differences.js", "What differs")),
    Capability("memory learned from earlier trials", "list_learned", "learned", "status",
               _on("study: Memory", "static/study/memory.js", "card(")),
    Capability("who was told what", "list_deliveries list_study_deliveries", "deliveries", "deliveries",
               _on("study: Notices", "static/study/notices.js", "card(")),
    Capability("test receivers of notices", "test_receivers test_study_receivers", "test_receivers",
               "deliveries --test", _on("study: Notices, *Test*", "static/study/notices.js", "Test")),
    Capability("who I am and what I may", "get_me", "me", "whoami", _on("Team", "templates/team.html", "summary")),
    Capability("add users", "create_user list_users", "users.add users.list", "users add, users list",
               _on("Team: Users", "static/team.js", "Users")),
    Capability("change users and their quotas", "change_user", "users.change", "users change",
               _on("Team: Users", "static/team.js", "max_priority")),
    Capability("give roles in projects", "grant_role list_members", "users.grant users.members", "users grant",
               _on("Team: Users", "static/team.js", "members")),
    Capability("make, list and revoke tokens", "create_token list_tokens revoke_token",
               "tokens.create tokens.list tokens.revoke", "tokens create, tokens list, tokens revoke",
               _on("Team: Tokens", "static/team.js", "Tokens")),
    Capability("who changed a study", "list_changes", "changes", "audit --study",
               _on("study: Changes", "static/study/changes.js", "changes")),
    Capability("audit log", "list_audit download_audit", "audit", "audit",
               _on("Team: Changes", "static/team.js", "Changes")),
    Capability("device-hours by person, project and month", "get_usage", "usage", "usage",
               _on("Team: Device-hours", "static/team.js", "/v1/usage")),
)  # fmt: skip

APART: Mapping[str, Sequence[tuple[str, str]]] = {
    "operations": (
        ("is_alive is_ready", "for supervisors and load balancers"),
        ("get_dashboard", "the dashboard itself"),
    ),
    "methods": (("close", "of the connection"), ("address", "of the connection")),
    "commands": (
        ("run, serve, demo, controller", "start a service, or a study without one"),
        ("estimate, plan, devices, calibrate, simulate", "answer on this machine, without a service"),
        ("import", "reads a database of Optuna"),
        ("mirror, mcp", "show studies in other tools ([page](trackers.md))"),
        ("completion, webhook-secret", "set up a shell and a receiver"),
        ("doctor, backup, restore", "for those who run a service"),
    ),
}
"""Things on one face alone, and why."""


def page() -> str:
    """``docs/faces.md``."""
    rows = [
        f"| {each.name} | {_code(each.operations.split())} | {_code(each.methods.split())} | "
        f"{_code(each.commands.split(', '))} | {each.place.words if each.place else ''} |"
        for each in CAPABILITIES
    ]
    apart = [f"- {_code(names.replace(',', '').split())}: {why}" for face in APART.values() for names, why in face]
    return "\n".join(
        [
            "# The same on every face",
            "",
            "What ScaMP can do, and where: as operations of the [REST API](api.md), methods of `scamp.Client`,",
            "commands of `scamp`, and places on the [dashboard](dashboard.md). This page is written by",
            "`python -m benchmarks.facing.capabilities`, and compared with the code by a test",
            "([measured](benchmarks/faces.md)).",
            "",
            "| capability | REST | Python | `scamp` | dashboard |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "On one face alone:",
            "",
            *apart,
            "",
        ]
    )


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
