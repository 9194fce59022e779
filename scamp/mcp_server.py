"""A server of the Model Context Protocol, by which agents ask a service, and change its studies if they may.

Tools give small parts of what the REST API answers. Where scamp-server is installed, two of them give what
`scamp estimate` and `scamp screen` print.
"""

from __future__ import annotations

import hmac
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from scamp import __version__
from scamp.client import Client
from scamp.errors import InvalidInput, Refused, ScampError
from scamp.installed import has_server

LOOPBACK = ("127.0.0.1", "localhost", "::1")
INSTRUCTIONS = """\
ScaMP tunes deep-learning models on a cluster of GPUs. A study has trials; a trial is one candidate of its search space.
Trials are addressed by the number of their study and their number in it. Every state has a reason in words."""
OF_TRIAL = (
    *("number", "state", "value", "values", "params", "reason", "waits_for", "plan_text", "step", "num_oom"),
    *("measured_step_seconds", "predicted_step_seconds", "reserved_mib", "finished_at"),
)
OF_STUDY = ("id", "name", "state", "state_text", "reason", "trials", "best", "owner", "project", "tags", "finished_at")


def mcp_server(client: Client, *, allow_changes: bool = False) -> MCPServer:
    """The server that asks the service of ``client``; only with ``allow_changes`` it has tools that change studies."""
    server = MCPServer("scamp", version=__version__, instructions=INSTRUCTIONS)
    tools = _Tools(client)
    reading: list[Callable[..., Any]] = [
        *(tools.list_studies, tools.study_status, tools.list_trials, tools.explain_trial, tools.study_results)
    ]
    if has_server():
        reading += [estimate, screen]
    for function in reading:
        server.add_tool(_in_words(function), annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    if allow_changes:
        for function, is_destructive in ((tools.submit, False), (tools.enqueue, False), (tools.stop, True)):
            annotations = ToolAnnotations(
                read_only_hint=False,
                destructive_hint=is_destructive,
                idempotent_hint=is_destructive,
                open_world_hint=False,
            )
            server.add_tool(_in_words(function), annotations=annotations)
    return server


def serve_http(server: MCPServer, host: str, port: int, token: str | None) -> None:
    """Serve over streamable HTTP at ``/mcp`` until it is interrupted.

    With a token, whoever calls must send it, as to the service. Raises ``Refused`` for a host that others can reach
    without one.
    """
    if not token and host not in LOOPBACK:
        raise Refused(f"on {host} others could use your service: set SCAMP_API_TOKEN, which they then must send")
    import uvicorn

    app = server.streamable_http_app(host=host, stateless_http=True)

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers") or ())
        expected = f"Bearer {token}".encode()
        if scope["type"] == "http" and token and not hmac.compare_digest(headers.get(b"authorization", b""), expected):
            await send({"type": "http.response.start", "status": 401, "headers": [(b"www-authenticate", b"Bearer")]})
            await send({"type": "http.response.body", "body": b"send the token of the service as a bearer token\n"})
            return
        await app(scope, receive, send)

    uvicorn.run(guarded, host=host, port=port, log_level="warning")


class _Tools:
    """The tools that ask the service."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list_studies(self, words: str = "", live: bool = False, limit: int = 20) -> list[dict[str, Any]]:
        """List studies by ascending number, with their trials by state and the best one.

        words: only studies with each of these words in name, tags, note, owner or project. live: only those that have
        not ended.
        """
        return [self._study(study) for study in islice(self._client.studies(words=words, live=live), limit)]

    def study_status(self, study: int) -> dict[str, Any]:
        """Tell how far a study is: its state and why, trials by state, its best trial, its search space and budget."""
        found_study = self._client.study(study)
        spec = {name: found_study["spec"].get(name) for name in ("workload", "objective", "space", "search", "budget")}
        return {**self._study(found_study), **spec, "summary": found_study["summary"]}

    def list_trials(
        self, study: int, states: Sequence[str] = (), after: int = -1, limit: int = 20
    ) -> list[dict[str, Any]]:
        """List trials of a study by number, those after a number, with state, value, parameters, reason and plan.

        states: only trials in these, such as RUNNING, QUEUED, COMPLETED, PRUNED, FAILED or INFEASIBLE.
        """
        trials = self._client.trials(study, states=tuple(states))
        return [self._trial(trial) for trial in islice((t for t in trials if t["number"] > after), limit)]

    def explain_trial(self, study: int, number: int) -> dict[str, Any]:
        """Tell why a trial waits, has failed or was stopped, why it has its plan, and what its attempts came to.

        blocked: what a waiting trial lacks. starts_in_seconds: when it starts, by a simulation of the queue.
        """
        trial = self._client.trial(study, number)
        of_attempt = ("attempt", "state", "outcome", "detail", "plan_text", "devices", "placement_reason")
        answer = {
            **self._trial(trial),
            "plan_reason": trial["plan_reason"],
            "proposal_reason": trial["proposal_reason"],
            "attempts": [{name: attempt[name] for name in of_attempt} for attempt in trial["attempts"]],
            "log": [line["text"] for line in self._client.logs(study, number, after=-1, limit=20)],
        }
        for row in self._client.cluster()["waiting"]:
            if row["trial_id"] == trial["id"]:
                answer |= {"blocked": row["blocked"], "starts_in_seconds": row["starts_in_seconds"]}
        return answer

    def study_results(self, study: int, limit: int = 10) -> dict[str, Any]:
        """Tell a study's best completed trials, its Pareto front if it has several objectives, and how much each
        parameter matters."""
        found_study = self._client.study(study)
        objective = found_study["spec"]["objective"]
        trials = [t for t in self._client.trials(study, states=("COMPLETED",)) if t["value"] is not None]
        trials.sort(key=lambda trial: trial["value"], reverse=objective["direction"] == "maximize")
        return {
            **self._study(found_study),
            "objective": objective,
            "best_trials": [self._trial(trial) for trial in trials[:limit]],
            "front": found_study["summary"]["front"],
            "importances": self._client.importances(study)["items"],
        }

    def submit(self, study: dict[str, Any] | str) -> dict[str, Any]:
        """Submit a study: its specification, or the path of a YAML file, whose workload file is sent along."""
        return self._study(self._client.submit(_own_path(study) if isinstance(study, str) else study))

    def enqueue(self, study: int, candidates: list[dict[str, Any]]) -> list[int]:
        """Try candidates, each a mapping of parameters, in addition to a study's budget; returns their numbers."""
        return self._client.enqueue(study, candidates)

    def stop(self, study: int, trials: Sequence[int] = ()) -> str:
        """Stop a study for good, or only the trials with these numbers. What they reported is kept."""
        for number in trials:
            self._client.stop_trial(study, number)
        return "stopped" if trials else f"the study is {self._client.stop(study)['state']}"

    def _study(self, study: Mapping[str, Any]) -> dict[str, Any]:
        return {name: study[name] for name in OF_STUDY} | {"page": f"{self._client.address}/studies/{study['id']}"}

    def _trial(self, trial: Mapping[str, Any]) -> dict[str, Any]:
        page = f"{self._client.address}/studies/{trial['study_id']}/trials/{trial['number']}"
        return {name: trial[name] for name in OF_TRIAL} | {"page": page}


def estimate(source: str, params: dict[str, Any] | None = None, device: str = "", count: int = 0) -> str:
    """Predict memory and step time of a candidate under each plan, without running it.

    source: the path of a study, or FILE.py:Class. device and count: GPUs that need not be here, such as 8 × H100.
    """
    given_params = [f"--param={name}={value}" for name, value in (params or {}).items()]
    return _printed("estimate", source, *given_params, *_devices(device, count))


def screen(study_file: str, candidates: int = 200, device: str = "", count: int = 0) -> str:
    """Predict how much of a study's search space fits on devices, and on how many of them."""
    return _printed("screen", study_file, f"--candidates={candidates}", *_devices(device, count))


def _devices(device: str, count: int) -> list[str]:
    return [*([f"--device={device}"] if device else []), *([f"--count={count}"] if count else [])]


def _printed(command: str, source: str, *options: str) -> str:
    """Text that a command of scamp-server prints. It runs as a process of its own, as it imports the user's code."""
    _own_path(source.partition(":")[0])
    done = subprocess.run(
        [sys.executable, "-m", "scamp", command, *options, "--", source],
        env={**os.environ, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise InvalidInput(done.stderr.strip().removeprefix("scamp: "))
    return done.stdout


def _own_path(path: str) -> Path:
    """A path in the folder in which the server was started: agents choose no other code to run."""
    if not Path(path).resolve().is_relative_to(Path.cwd()):
        raise InvalidInput(f"{path} is not in {Path.cwd()}, where `scamp mcp` was started")
    return Path(path)


def _in_words(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose errors an agent reads."""

    @wraps(function)
    def tool(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except ScampError as error:
            raise ToolError(str(error)) from error

    return tool
