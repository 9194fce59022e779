"""Prints a study in a terminal: while it runs, its trials by state, best value and device fill; then a leaderboard.

It works on the JSON of the API and of ``summary``, so ``scamp run`` and ``scamp submit`` show the same.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from scamp.cli.terminal import plain
from scamp.shown import first_names, shown_metric, shown_mib, shown_value

MIB = 2**20
DEFAULT_PROJECT = "default"
COLOURS = {
    "WAITING": "grey58",
    "QUEUED": "yellow",
    "RUNNING": "bright_blue",
    "PAUSED": "magenta",
    "COMPLETED": "green",
    "PRUNED": "cyan",
    "FAILED": "red",
    "INFEASIBLE": "dark_orange",
    "CANCELLED": "grey50",
}
EXPLAINED = ("WAITING", "QUEUED", "PRUNED", "FAILED", "INFEASIBLE", "CANCELLED")
WARNING = "dark_orange"
BAR = 24


def live_view(summary: Mapping[str, Any], spec: Mapping[str, Any], cluster: Mapping[str, Any]) -> RenderableType:
    """The block that is redrawn while a study runs: states, best value, and a bar of reserved MiB for each device."""
    counts = summary["trials"]
    style = WARNING if summary["no_success"] else "dim"
    line = Text.assemble((f"{plain(summary['name'])} ", "bold"), (f"{summary['state_text'].lower()} ", style))
    for state, colour in COLOURS.items():
        if counts.get(state):
            line.append(f" {counts[state]} {state.lower()}", style=colour)
    line.append(f" of {_plural(num_wanted(counts, spec), 'trial')}", style="dim")
    parts: list[RenderableType] = [line, Text(_best_line(summary, spec["objective"]["metric"]))]
    why = without_devices(cluster)
    parts.append(Text(why, "dim") if why else device_bars(cluster["devices"], summary["study"]))
    if not why and cluster.get("detail"):
        parts.append(Text(plain(cluster["detail"]), "dim"))
    return Group(*parts)


def without_devices(cluster: Mapping[str, Any]) -> str:
    """Why nothing can run, in one line; empty once there are devices."""
    if cluster.get("devices"):
        return ""
    detail = f": {cluster['detail']}" if cluster.get("detail") else ""
    return plain(f"cluster: {cluster.get('status', 'starting')}{detail}")


def listed_line(study: Mapping[str, Any], width: int) -> str:
    """A study in one line of the list of studies; ``width`` is that of the longest state."""
    spec, counts = study["spec"], study["trials"]
    states = " ".join(f"{count} {state.lower()}" for state, count in counts.items()) or "0"
    words = [f"{states} of {_plural(num_wanted(counts, spec), 'trial')}"]
    if spec.get("project", DEFAULT_PROJECT) != DEFAULT_PROJECT:
        words.append(f"project {spec['project']}")
    if spec.get("priority", 0):
        words.append(f"priority {spec['priority']}")
    if seconds := study.get("device_seconds"):
        words.append(f"{seconds / 3600:.3g} device-hours")
    words += [f"#{tag}" for tag in study.get("tags", ())]
    if study.get("owner"):
        words.append(f"by {study['owner']}")
    return f"{study['id']:>5}  {study['state_text']:<{width}}  {study['name']}  {', '.join(words)}"


def num_wanted(counts: Mapping[str, int], spec: Mapping[str, Any]) -> int:
    """Number of trials of a study that there are or will be."""
    return max(int(spec["budget"]["trials"]), sum(counts.values()))


def leaderboard(trials: Iterable[Mapping[str, Any]], spec: Mapping[str, Any], rows: int = 12) -> RenderableType:
    """Table of the best ``rows`` trials, then all trials without a finite value, such as failed and infeasible ones.

    With several objectives it has a column for each, and begins with the Pareto front, whose trials have a star: those
    that no other completed trial dominates. A parameter is shown where it differs from the study's ``fixed`` value.
    Each of ``COSTS`` has a column if it is known of any trial: predicted for the gang alone on its host, and measured.
    Completed repeats of a trial are in its value. Below the table are the reasons: why trials were proposed, wait, were
    pruned or have failed.
    """
    every, objectives = list(trials), spec.get("objectives") or [spec["objective"]]
    trials = [trial for trial in every if not _is_counted(trial)]
    names = [objective["metric"] for objective in objectives]
    valued = _best_first([t for t in trials if _is_compared(t)], objectives)
    front = {trial["number"] for trial, is_on_front in valued if is_on_front}
    uncompared = [t for t in trials if not _is_compared(t)]
    table = Table(title=None, box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    shown = [*(trial for trial, _ in valued[:rows]), *uncompared]
    costs = {name: cost for name, cost in COSTS.items() if any(map(cost, shown))}
    for heading, right in [("trial", True), ("state", False), *((name, True) for name in names),
                           ("plan", False), *((name, True) for name in costs), ("parameters", False)]:  # fmt: skip
        justify: JustifyMethod = "right" if right else "left"
        no_wrap = heading == "state" or heading in costs
        table.add_column(Text(plain(heading)), justify=justify, overflow="fold", no_wrap=no_wrap)
    for trial in shown:
        first, last = _row(trial, spec["fixed"], names, trial["number"] in front)
        table.add_row(*first, *(cost(trial) for cost in costs.values()), last)
    hidden = len(valued) - rows
    if hidden > 0:
        table.caption = f"and {hidden} more: scamp trials {trials[0]['study_id']}"
    num_repeats = len(every) - len(trials)
    beside = [Text(f"the values are means, over {_plural(num_repeats, 'repeat')} that are not shown", "dim")]
    return Group(table, *(beside if num_repeats else ()), *reasons(shown))


def _best_first(
    trials: Sequence[Mapping[str, Any]], objectives: Sequence[Mapping[str, Any]]
) -> list[tuple[Mapping[str, Any], bool]]:
    """Trials with finite values, completed ones first, and whether each is on the Pareto front of several objectives.

    Completed trials come by their non-domination rank, and those of equal rank by the first objective.
    """
    order = {"COMPLETED": 0, "RUNNING": 1, "PRUNED": 2}
    keyed: list[tuple[Any, Mapping[str, Any], bool]] = []
    for state in {trial["state"] for trial in trials}:
        group = [trial for trial in trials if trial["state"] == state]
        points = [_costs(trial["values"], objectives) for trial in group]
        for trial, point, rank in zip(group, points, ranks(points), strict=True):
            is_on_front = len(objectives) > 1 and state == "COMPLETED" and not rank
            keyed.append(((order.get(state, 3), rank, point, trial["number"]), trial, is_on_front))
    return [(trial, is_on_front) for _, trial, is_on_front in sorted(keyed, key=lambda row: row[0])]


def _costs(values: Sequence[float], objectives: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """The value of each objective, the smaller the better."""
    return tuple(
        -value if objective["direction"] == "maximize" else value
        for value, objective in zip(values, objectives, strict=True)
    )


def ranks(points: Sequence[tuple[float, ...]]) -> list[int]:
    """Non-domination rank of each point of costs: 0 on the Pareto front, 1 on that of the others, and so on.

    Points are sorted first. Each then joins the first front that has no point which dominates it; bisection finds that
    front (Zhang et al. 2015, "An Efficient Approach to Nondominated Sorting").
    """
    fronts: list[list[tuple[float, ...]]] = []
    rank_of: dict[tuple[float, ...], int] = {}
    for point in sorted(set(points)):

        def is_free(front: list[tuple[float, ...]], point: tuple[float, ...] = point) -> bool:
            return not any(all(a <= b for a, b in zip(other, point, strict=True)) for other in reversed(front))

        rank = bisect_left(fronts, True, key=is_free)
        if rank == len(fronts):
            fronts.append([])
        fronts[rank].append(point)
        rank_of[point] = rank
    return [rank_of[point] for point in points]


def _excess(percent: float) -> str:
    """How much more was needed than predicted; percents above some hundred say nothing."""
    return f"{percent:.0f} % more than" if percent < 100 else f"{int(1 + percent / 100):,} times the MiB"


def closing_words(summary: Mapping[str, Any]) -> str:
    """A study's summary, a fact on each line: states, ranks, sharing of devices, prediction errors, best trial."""
    error = summary["prediction_error_pct"]
    degrees = ", ".join(f"{count} on {degree}" for degree, count in summary["degrees"].items())
    states = ", ".join(f"{count} {state.lower()}" for state, count in summary["trials"].items())
    words = [summary["state_text"]] if summary["no_success"] else []
    words += [f"{states or 'no trials'} in {summary['wall_seconds']:.0f} s", f"ranks: {degrees or 'none'}"]
    colocated = _plural(summary["colocated"], "gang")
    if summary["colocated"]:
        words.append(f"up to {colocated} on one device; {summary['healed']} healed after out of memory")
    if summary["used_mib_seconds"]:
        used, reserved = summary["used_mib_seconds"], summary["reserved_mib_seconds"]
        words.append(f"used {100 * used / reserved:.0f} % of the memory that was reserved")
    if (busy := summary["busy_share"]) is not None:
        words.append(f"devices {100 * busy:.0f} % busy")
    if (waiting := summary["communication_seconds"]) > 0:
        words.append(f"{100 * waiting / summary['device_seconds']:.0f} % of device time in communication")
    if summary["spared"]:
        spared = _plural(summary["spared"], "trial")
        words.append(f"{spared} ran with memory learned from earlier trials and did not run out of memory")
    failed = summary["out_of_memory"]["attempts"]
    if error["median"] is not None:
        which = " of attempts that had enough of it" if failed else ""
        within = f"{error['median']:.1f} % (median), {error['max']:.1f} % (worst), by tensors"
        words.append(f"peak memory{which} predicted within {within}")
    if summary["is_uneven"]:
        words.append("peak memory predicted for the largest samples, so most steps need less")
    if (slip := summary["step_error_pct"])["median"] is not None:
        within = f"{slip['median']:.0f} % (median), {slip['max']:.0f} % (worst)"
        words.append(f"step times, predicted for gangs alone on their hosts, within {within}")
    if failed:
        least = _excess(summary["out_of_memory"]["least_excess_pct"])
        words.append(f"{_plural(failed, 'attempt')} out of memory, the worst needed at least {least} predicted")
    if corrections := [family for family in summary["learned"] if family["extra_bytes"]]:
        words.append(f"learned: {', '.join(map(_correction, corrections))}")
    if (bound := summary["regret_bound"]) is not None:
        words.append(f"no candidate is likely to be better by more than {bound:.3g}")
    if front := summary["front"]:
        numbers = ", ".join(str(point["trial"]) for point in front)
        words.append(f"{_plural(len(front), 'trial')} on the Pareto front: {numbers}")
    if best := summary["best"]:
        values = ", ".join(
            f"{name} {shown_metric(name, value)}"
            for name, value in summary["best_metrics"].items()
            if value is not None
        )
        words.append(f"best trial {best['trial']}: {values}")
    return "\n".join(words)


def next_line(summary: Mapping[str, Any], scamp: str = "scamp") -> str:
    """The number of a study that has ended, and the commands that are useful next.

    ``scamp`` is the command with what must stand before it.
    """
    study = summary["study"]
    if summary["best"]:
        first = f"`{scamp} weights {study}` writes the best model"
    elif summary["front"]:
        first = f"`{scamp} weights {study} TRIAL` writes the model of a trial"
    else:
        first = f"`{scamp} logs {study} TRIAL` shows what a trial has printed"
    return f"study {study}: {first}, and `{scamp} trials {study}` lists all trials"


def _correction(family: Mapping[str, Any]) -> str:
    where = f" (study {', '.join(map(str, family['studies']))})" if family["studies"] else ""
    trials = f"{_plural(family['num_trials'], 'trial')} of a family with layout {family['layout']}"
    return f"+{shown_mib(family['extra_bytes'])} MiB from {trials}{where}"


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _best_line(summary: Mapping[str, Any], metric: str) -> str:
    best, front = summary["best"], summary["front"]
    if front:
        numbers = ", ".join(str(point["trial"]) for point in front[:20]) + (" and more" if len(front) > 20 else "")
        return f"Pareto front: {_plural(len(front), 'trial')} ({numbers})"
    if not best:
        return f"{metric}: none yet"
    bound = summary["regret_bound"]
    left = "" if bound is None else f"; at most {bound:.3g} left to gain"
    plan = f" ({best['plan']})" if best["plan"] else ""  # other programs' trials have none
    return f"best {metric} {shown_metric(metric, best['value'])} by trial {best['trial']}{plan}{left}"


def device_bars(devices: Sequence[Mapping[str, Any]], study_id: int | None) -> Table:
    """A bar of reserved MiB for each device, with its gangs, those of the study first."""
    table = Table.grid(padding=(0, 1))
    for device in devices:
        capacity = device["capacity_mib"]
        reserved = sum(gang["mib_per_rank"] for gang in device["gangs"])
        full = min(BAR, round(BAR * reserved / capacity))
        bar = Text("█" * full + "░" * (BAR - full), style="bright_blue")
        names = _gang_names(device["gangs"], study_id)
        closed = Text(f" closed: {plain(device['closed'])}" if device.get("closed") else "", WARNING)
        table.add_row(Text(device["id"], "dim"), bar, f"{reserved}/{capacity} MiB", Text(names, "dim") + closed)
    return table


def _gang_names(gangs: Sequence[Mapping[str, Any]], study_id: int | None) -> str:
    """The trials of gangs on a device, those of this study first, such as ``#5 #7; study 2: #1``."""
    numbers: dict[int | None, list[str]] = {study_id: []}
    for gang in gangs:
        numbers.setdefault(gang["study_id"], []).append(f"#{gang['number']}")
    first, *others = ((study, " ".join(names)) for study, names in numbers.items())
    return "; ".join(filter(None, [first[1], *(f"study {study}: {names}" for study, names in others)]))


def _row(
    trial: Mapping[str, Any], fixed: Mapping[str, Any], metrics: Sequence[str], is_on_front: bool
) -> tuple[list[RenderableType], RenderableType]:
    """The cells before those of ``COSTS``, and the one after them."""
    state = trial["state"]
    numbers = trial["values"] if len(metrics) > 1 else [trial["value"]]
    spreads = [*trial["deviations"], *[None] * len(numbers)]
    values = [
        "" if value is None else shown_metric(name, value) + ("" if spread is None else f" ± {spread:.2g}")
        for name, value, spread in zip(metrics, numbers, spreads, strict=False)
    ]
    varied = {name: value for name, value in trial["params"].items() if name not in fixed or fixed[name] != value}
    tail = " ".join(f"{name}={_short(value)}" for name, value in varied.items())
    if trial["parent_number"] is not None:
        beginning = {"BRANCH": "a copy", "REPEAT": "a repeat"}.get(trial["origin"], "begins with weights")
        tail += f" ({beginning} of trial {trial['parent_number']})"
    number = f"{'*' if is_on_front else ''}{trial['number']}"
    return [number, Text(state.lower(), COLOURS.get(state, "")), *values, trial.get("plan_short") or ""], Text(
        tail, "dim"
    )


def _memory(trial: Mapping[str, Any]) -> str:
    if not trial["expected_bytes"]:
        return ""
    measured = shown_mib(trial["measured_bytes"]) if trial["measured_bytes"] else "–"
    return f"{shown_mib(trial['expected_bytes'])}/{measured}"


def _step(trial: Mapping[str, Any]) -> str:
    seconds = trial["predicted_step_seconds"], trial["measured_step_seconds"]
    return "/".join(map(_ms, seconds)) if any(seconds) else ""


def _waiting(trial: Mapping[str, Any]) -> str:
    if trial["measured_communication_share"] is None:
        return ""
    shares = trial["predicted_communication_share"], trial["measured_communication_share"]
    return "/".join("–" if share is None else f"{share:.0%}" for share in shares)


def _checking(trial: Mapping[str, Any]) -> str:
    return f"{trial['check_share']:.1%}" if trial["check_share"] else ""


COSTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "MiB\npred/meas": _memory,
    "ms/step\npred/meas": _step,
    "waiting\npred/meas": _waiting,
    "checks": _checking,
}
"""Columns of the leaderboard with what a trial needs, by heading; empty where nothing is known. Waiting and checking
are shares of a step."""


def reasons(trials: Iterable[Mapping[str, Any]]) -> list[Text]:
    """Reasons of trials, each whole and in a line for all trials that have it."""
    numbers: dict[str, list[str]] = {}
    for trial in trials:
        if trial["proposal_reason"]:
            numbers.setdefault(f": {plain(trial['proposal_reason'])}", []).append(str(trial["number"]))
        if trial["reason"] and (not _is_compared(trial) or trial["state"] in EXPLAINED):
            words = f" {trial['state'].lower()}: {plain(' '.join(trial['reason'].split()))}"
            numbers.setdefault(words, []).append(str(trial["number"]))
    return [
        Text(f"trial{'s' if len(those) > 1 else ''} {first_names(those)}{words}", "dim")
        for words, those in numbers.items()
    ]


def _is_compared(trial: Mapping[str, Any]) -> bool:
    """Whether the trial has a value of every objective that can be compared: one that is finite."""
    return all(value is not None and math.isfinite(value) for value in (trial["value"], *trial["values"]))


def _is_counted(trial: Mapping[str, Any]) -> bool:
    """Whether the trial counts in the value of the one that it repeats."""
    return (trial["origin"], trial["state"]) == ("REPEAT", "COMPLETED")


def _ms(seconds: float | None) -> str:
    return f"{1000 * seconds:.3g}" if seconds and seconds < 1 else f"{1000 * seconds:.0f}" if seconds else "–"


def _short(value: Any) -> str:
    return plain(shown_value(value))
