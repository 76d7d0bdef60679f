"""Agents with tools of real MCP servers: names, approval, failures, changes, secrets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import ToolError
from phronomy_ray.journal import ToolCallStatus
from phronomy_ray.kernel.inputs import Decide
from phronomy_ray.mcp import McpServer, close_local, mcp_tools
from phronomy_ray.mcp.access import current
from phronomy_ray.models.scripted import call, calls, final
from phronomy_ray.testing import processes

#: `Site` and `Desk` of the conftest.
Site = Any
Desk = Any


def status_of(desk: Desk) -> list[ToolCallStatus]:
    return [row.status for row in desk.store.tool_calls("ex1")]


async def test_tools_of_a_server_run_like_own_ones(site: Site, desk: Desk) -> None:
    script = [
        calls(
            call("echo", {"text": "hi"}),
            call("add", {"a": 2, "b": 3}),
            call("search", {"where": {"city": "Oslo"}, "filters": [{"field": "f", "value": 1}]}),
            call("fail", {"text": "no such file"}),
        ),
        final("done"),
    ]
    result = await desk.run(desk.engine(script, site.server(approval="none")))
    assert result.output == "done"
    echo, added, found, failed = desk.answers(result)
    assert (echo, added) == ("hi", '{"sum":5}')
    assert found == '{"filters":[{"field":"f","value":1}],"where":{"city":"Oslo"}}'
    assert failed == "Error (mcp_tool_error): no such file"
    ok = ToolCallStatus.SUCCEEDED
    assert status_of(desk) == [ok, ok, ok, ToolCallStatus.FAILED]
    assert desk.store.tool_calls("ex1")[1].result == {"sum": 5}


async def test_arguments_that_break_the_servers_schema_are_refused_here(
    shared_site: Site, desk: Desk
) -> None:
    wrong = [
        {"where": {"city": "oslo"}},
        {"where": {"city": "Oslo"}, "limit": 0},
        {"where": {"city": "Oslo"}, "filters": [{"field": "f", "value": None}]},
        {},
    ]
    script = [calls(*(call("search", arguments) for arguments in wrong)), final("done")]
    result = await desk.run(desk.engine(script, shared_site.server(approval="none")))
    told = desk.answers(result)
    for text, place in zip(told, ("$.where.city", "$.limit", "$.filters[0].value", "$.where"), strict=True):
        assert place in text
    assert not shared_site.calls("search")


async def test_approval_is_required_unless_said_otherwise_and_sees_where_the_call_goes(
    shared_site: Site, desk: Desk
) -> None:
    engine = desk.engine(
        [calls(call("site_echo", {"text": "x"})), final("done")], shared_site.server(prefix="site_")
    )
    result = await desk.run(engine, until="suspended")
    assert result.suspended
    (request,) = result.approvals
    assert request.tool_name == "site_echo"
    assert not shared_site.calls("echo")
    await engine.decide(Decide("ex1", request.approval_request_id, True, "bob"))
    assert desk.answers(await desk.run(engine)) == ["x"]
    assert shared_site.calls("echo") == 1


async def test_a_rule_of_the_server_decides_which_calls_need_a_human(shared_site: Site, desk: Desk) -> None:
    seen: list[Any] = []

    def rule(request: Any) -> bool:
        seen.append(request)
        return bool(request.tool_name == "add")

    script = [calls(call("echo", {"text": "x"})), calls(call("add", {"a": 1, "b": 1})), final("done")]
    engine = desk.engine(script, shared_site.server(approval=rule))
    result = await desk.run(engine, until="suspended")
    assert [item.tool_name for item in result.approvals] == ["add"]
    assert desk.answers(result) == ["x"]
    assert seen[0].origin == "mcp"
    assert seen[0].metadata["server"] == "site"
    assert "/mcp" not in seen[0].metadata["server_origin"]


# --- P02 in an agent ------------------------------------------------------------------------------------------------


async def test_P02_a_lost_call_is_told_to_the_model_and_the_next_call_reconnects(
    make_site: Callable[..., Site], desk: Desk
) -> None:
    site = make_site("stdio")
    script = [calls(call("leave", {"code": 3})), calls(call("echo", {"text": "again"})), final("done")]
    result = await desk.run(desk.engine(script, site.server(approval="none", replay="safe")))
    assert result.output == "done"
    lost, again = desk.answers(result)
    assert lost.startswith("Error (mcp_server_lost): ")
    assert "was not repeated" in lost
    assert again == "again"
    assert site.calls("leave") == 1
    assert status_of(desk) == [ToolCallStatus.FAILED, ToolCallStatus.SUCCEEDED]


async def test_P02_a_call_that_is_never_answered_is_a_timed_out_call(shared_site: Site, desk: Desk) -> None:
    script = [calls(call("hang", {}), call("echo", {"text": "x"})), final("done")]
    result = await desk.run(desk.engine(script, shared_site.server(approval="none", timeout_s=0.7)))
    assert desk.answers(result)[0].startswith("Error (mcp_timeout): ")
    assert status_of(desk) == [ToolCallStatus.TIMED_OUT, ToolCallStatus.SUCCEEDED]


async def test_P02_cancelling_the_execution_reaches_the_server(site: Site, desk: Desk) -> None:
    import asyncio

    engine = desk.engine([calls(call("hang", {})), final("x")], site.server(approval="none"))
    await engine.start("ex1", "go")
    async with asyncio.timeout(30):
        while not site.calls("hang"):
            await asyncio.sleep(0.02)
        await engine.cancel("ex1", "enough")
        await desk.run(engine)
        while not site.events("cancelled"):
            await asyncio.sleep(0.02)
    assert status_of(desk) == [ToolCallStatus.CANCELLED]


# --- P04: names -----------------------------------------------------------------------------------------------------


async def test_P04_two_servers_with_the_same_tool_are_an_error_that_names_both(
    shared_site: Site, desk: Desk
) -> None:
    engine = desk.engine([final("x")], shared_site.server(name="a"), shared_site.server(name="b"))
    result = await desk.run(engine)
    assert result.error is not None
    assert result.error.code == "tool_name_collision"
    for word in ("source 'a'", "source 'b'", "prefix"):
        assert word in result.error.message


async def test_P04_a_server_and_a_local_tool_of_one_name_are_an_error(shared_site: Site, desk: Desk) -> None:
    @tool
    async def search(x: int) -> str:
        return "local"

    result = await desk.run(desk.engine([final("x")], search, shared_site.server()))
    assert result.error is not None
    assert result.error.code == "tool_name_collision"
    assert "'search'" in result.error.message


async def test_P04_with_prefixes_both_are_called_and_each_reaches_its_own_server(
    make_site: Callable[..., Site], shared_site: Site, desk: Desk
) -> None:
    sites = [make_site("stdio"), shared_site]
    servers = [
        item.server(name=name, prefix=f"{name}_", approval="none", only=["echo", "search"])
        for item, name in zip(sites, ("a", "b"), strict=True)
    ]
    script = [calls(call("a_echo", {"text": "one"}), call("b_echo", {"text": "two"})), final("done")]
    result = await desk.run(desk.engine(script, *servers))
    assert desk.answers(result) == ["one", "two"]
    assert desk.shown() == ["a_echo", "a_search", "b_echo", "b_search"]
    for item, text in zip(sites, ("one", "two"), strict=True):
        assert [entry["arguments"] for entry in item.events("call")] == [{"text": text}]


# --- changes --------------------------------------------------------------------------------------------------------


async def test_what_was_approved_is_what_runs_also_when_the_server_has_changed_since(
    make_site: Callable[..., Site], desk: Desk
) -> None:
    site = make_site("http")
    engine = desk.engine([calls(call("echo", {"text": "x"})), final("done")], site.server())
    result = await desk.run(engine, until="suspended")
    endpoint = site.server().endpoint
    await current().call(endpoint, "change", {"description": "Something else."}, timeout_s=30)
    await current().list_tools(endpoint, timeout_s=30, refresh=True)
    await engine.decide(Decide("ex1", result.approvals[0].approval_request_id, True, "bob"))
    told = desk.answers(await desk.run(engine))
    assert told[0].startswith("Error (definition_changed): ")
    assert not site.calls("echo")


async def test_a_resumed_turn_has_its_tools_although_the_server_is_down(
    make_site: Callable[..., Site], desk: Desk
) -> None:
    site = make_site("http")
    server = site.server(timeout_s=3.0)
    script = [calls(call("echo", {"text": "x"})), final("done")]
    result = await desk.run(desk.engine(script, server), until="suspended")
    await close_local()
    site.http.kill()
    second = desk.engine(script, server)
    await second.activate()
    await second.decide(Decide("ex1", result.approvals[0].approval_request_id, True, "bob"))
    result = await desk.run(second)
    assert result.output == "done"
    assert desk.answers(result)[0].startswith("Error (mcp_server_lost): ")


async def test_a_server_that_is_down_fails_a_new_execution_unless_it_is_optional(desk: Desk) -> None:
    down = {"url": "http://127.0.0.1:9/mcp", "connect_timeout_s": 5.0}
    result = await desk.run(desk.engine([final("x")], McpServer("down", **down)))
    assert result.error is not None
    assert result.error.code == "mcp_server_lost"
    result = await desk.run(desk.engine([final("x")], McpServer("down", optional=True, **down)), "ex2")
    assert result.output == "x"


# --- explicit use -------------------------------------------------------------------------------------------------


async def test_tools_can_be_listed_for_explicit_use(shared_site: Site, desk: Desk) -> None:
    tools = await mcp_tools(shared_site.server(only=["echo", "add"], approval="none"))
    assert [item.spec.name for item in tools] == ["add", "echo"]
    script = [calls(call("add", {"a": 1, "b": 2}), call("echo", {"text": "x"})), final("done")]
    engine = desk.engine(script, tools[0], tools[1].with_options(requires_approval=False, replay="safe"))
    assert desk.answers(await desk.run(engine)) == ['{"sum":3}', "x"]


async def test_no_secret_of_a_server_is_stored_told_or_logged(
    make_site: Callable[..., Site], desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    site = make_site("http")
    canary = "canary-5c1f0a77"
    server = site.server(headers={"X-Token": canary}, approval="none")
    script = [
        calls(call("reveal", {"name": "x-token"}), call("fail", {"text": "nothing"}), call("refuse", {})),
        final("done"),
    ]
    result = await desk.run(desk.engine(script, server))
    assert desk.answers(result)[0] == "[REDACTED]"
    site.http.kill()
    await desk.run(desk.engine(script, server), "ex2")
    stored = b"".join(path.read_bytes() for path in desk.folder.iterdir())
    assert canary.encode() not in stored
    assert canary not in caplog.text


async def test_what_a_server_writes_beside_its_messages_is_logged_without_its_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    canary = "canary-9b1e44d2"
    chatter = "import os; print('my', os.environ['TOKEN'], flush=True); input()"
    server = McpServer(
        "chatty", command=[sys.executable, "-c", chatter], env={"TOKEN": canary}, connect_timeout_s=10
    )
    with pytest.raises(ToolError):
        await mcp_tools(server)
    await close_local()
    assert "mcp server chatty sent what is no message" in caplog.text
    assert canary not in caplog.text
    assert canary[:10] not in caplog.text


async def test_closing_leaves_no_process(make_site: Callable[..., Site], desk: Desk) -> None:
    import asyncio

    site = make_site("stdio")
    await mcp_tools(site.server())
    assert site.pids()
    await close_local()
    assert not await asyncio.to_thread(processes.wait_dead, site.pids(), timeout_s=10)
