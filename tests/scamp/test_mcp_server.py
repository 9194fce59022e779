"""Agents ask a service by the Model Context Protocol, over stdio and HTTP, and change nothing unless they may."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from scamp_service.lifecycle import StudyState
from scamp_service.store.store import Store
from tests.services.processes import ROOT, environment
from tests.services.serving import SPEC, fill, free_port, served, settings_in
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.full
mcp = pytest.importorskip("mcp")

MODEL = """
def tiny():
    import torch

    return torch.nn.Linear(4, 2), lambda batch: torch.ones(batch, 4), lambda model, x: model(x).square().mean()
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[str, Store]]:
    with served(settings_in(tmp_path / "data", port=free_port())) as (address, store):
        fill(store, num_trials=3)
        yield address, store


def variables(tmp_path: Path, address: str) -> dict[str, str]:
    return environment(tmp_path / "data", SCAMP_ADDRESS=address, PYTHONPATH=str(ROOT))


def ask(server: Any, talk: Callable[[Any], Awaitable[None]], **headers: str) -> None:
    async def talk_to_it() -> None:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        async with httpx2.AsyncClient(headers=headers) as http:
            transport = streamable_http_client(server, http_client=http) if headers else server
            async with mcp.Client(transport) as client:
                await talk(client)

    asyncio.run(talk_to_it())


def over_stdio(tmp_path: Path, address: str, *options: str) -> Any:
    return mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "scamp", "mcp", *options],
        env=variables(tmp_path, address),
        cwd=tmp_path,
    )


async def call(client: Any, tool: str, **arguments: Any) -> Any:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    structured = answer.structured_content
    return structured.get("result", structured)


def test_an_agent_reads_studies_over_stdio_and_has_no_tool_that_changes_them(
    service: tuple[str, Store], tmp_path: Path
) -> None:
    address, _ = service
    (tmp_path / "model.py").write_text(MODEL)

    async def talk(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == {
            *("list_studies", "study_status", "list_trials", "explain_trial", "study_results", "estimate", "screen"),
        }
        assert all(tool.annotations.read_only_hint for tool in tools.values())
        (study,) = await call(client, "list_studies", live=True)
        assert (study["id"], study["page"]) == (1, f"{address}/studies/1")
        assert (await call(client, "study_status", study=1))["objective"]["metric"] == "accuracy"
        running = await call(client, "list_trials", study=1, states=["RUNNING"])
        assert [trial["number"] for trial in running] == [1]
        assert [trial["number"] for trial in await call(client, "list_trials", study=1, after=0, limit=1)] == [1]
        waiting = await call(client, "explain_trial", study=1, number=2)
        assert "waits for its plan" in waiting["reason"] and waiting["blocked"] == "plan"
        assert (await call(client, "explain_trial", study=1, number=0))["attempts"][0]["outcome"] == "DONE"
        results = await call(client, "study_results", study=1)
        assert [trial["value"] for trial in results["best_trials"]] == [0.53]
        assert "needs a device of 5 MiB" in await call(client, "estimate", source="model.py:tiny")
        missing = await client.call_tool("study_status", {"study": 7})
        assert missing.is_error and "there is no study 7" in missing.content[0].text
        outside = await client.call_tool("estimate", {"source": "../other.py:Model"})
        assert outside.is_error and "where `scamp mcp` was started" in outside.content[0].text

    ask(over_stdio(tmp_path, address), talk)


def test_with_leave_an_agent_submits_enqueues_and_stops(
    service: tuple[str, Store], tmp_path: Path, warm_traces: None
) -> None:
    address, store = service

    async def talk(client: Any) -> None:
        tools = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
        changing = {name: hints.destructive_hint for name, hints in tools.items() if not hints.read_only_hint}
        assert changing == {"submit": False, "enqueue": False, "stop": True}
        study = (await call(client, "submit", study=SPEC))["id"]
        assert await call(client, "enqueue", study=study, candidates=[{"lr": 0.01}]) == [0]
        assert "STOPPING" in await call(client, "stop", study=study)
        assert store.studies.get(study).state is StudyState.STOPPING

    ask(over_stdio(tmp_path, address, "--allow-changes"), talk)


def test_over_http_it_answers_on_the_loopback_and_wants_the_token_of_the_service(
    service: tuple[str, Store], tmp_path: Path
) -> None:
    address, _ = service
    port, token = free_port(), "a-token-of-the-service"
    command = [sys.executable, "-m", "scamp", "mcp", "--http", str(port)]
    env = variables(tmp_path, address)
    refused = subprocess.run([*command, "--host=0.0.0.0"], env=env, capture_output=True, text=True)
    assert refused.returncode == 2 and "set SCAMP_API_TOKEN" in refused.stderr
    url = f"http://127.0.0.1:{port}/mcp"
    with subprocess.Popen(command, env={**env, "SCAMP_API_TOKEN": token}, cwd=tmp_path) as process:
        try:
            until(lambda: _answers(url), "the server")
            assert httpx.post(url, json={}, timeout=PATIENCE_SECONDS).status_code == 401
            ask(url, _lists, Authorization=f"Bearer {token}")
        finally:
            process.terminate()
    with subprocess.Popen(command, env=env, cwd=tmp_path) as process:
        try:
            until(lambda: _answers(url), "the server")
            ask(url, _lists)
        finally:
            process.terminate()


async def _lists(client: Any) -> None:
    (study,) = await call(client, "list_studies")
    assert study["id"] == 1


def _answers(url: str) -> bool:
    try:
        return bool(httpx.post(url, json={}, timeout=PATIENCE_SECONDS).status_code)
    except httpx.TransportError:
        return False
