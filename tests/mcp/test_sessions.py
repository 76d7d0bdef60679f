"""Sessions with real servers, over both transports: calls, losses, deadlines, cancellation, changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from phronomy_ray.errors import ToolError
from phronomy_ray.mcp.connection import McpConnection
from phronomy_ray.mcp.content import tool_value
from phronomy_ray.mcp.endpoint import McpEndpoint
from phronomy_ray.mcp.hub import McpHub
from phronomy_ray.mcp.session import McpSession
from phronomy_ray.testing import processes

#: Longest wait for anything that should come, in seconds.
PATIENCE_S = 30.0
#: `Site` of the conftest.
Site = Any
Open = Callable[[McpEndpoint], McpSession]


async def call(session: McpSession, tool: str, timeout_s: float = PATIENCE_S, **arguments: Any) -> Any:
    """The tool's value, through the mapping that tools use."""
    listing = await session.list_tools(timeout_s=PATIENCE_S)
    found = listing.find(tool)
    result = await session.call(tool, arguments, timeout_s=timeout_s)
    schema = found.output_schema if found is not None else None
    return tool_value(session.endpoint, result, tool=tool, output_schema=schema)


async def failure(coroutine: Any) -> ToolError:
    with pytest.raises(ToolError) as raised:
        await coroutine
    return raised.value


async def eventually(condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.02)


async def gone(pids: set[int]) -> None:
    """The processes end; the loop goes on, for it may have to end them."""
    assert pids
    await eventually(lambda: not any(processes.is_alive(pid) for pid in pids))


# --- calls --------------------------------------------------------------------------------------------------------


async def test_calls_of_every_kind(site: Site, open_session: Open) -> None:
    session = open_session(site.endpoint())
    assert await call(session, "echo", text="hello") == "hello"
    assert await call(session, "add", a=2, b=3) == {"sum": 5}
    nested = {"where": {"city": "Oslo"}, "filters": [{"field": "f", "value": 1}], "order": None}
    assert await call(session, "search", **nested) == nested
    picture = await call(session, "picture")
    assert [part["type"] for part in picture["content"]] == ["text", "image", "resource", "resource_link"]
    assert picture["content"][1]["bytes"] == 8
    error = await failure(call(session, "fail", text="no such file"))
    assert (error.code, error.message) == ("mcp_tool_error", "no such file")
    error = await failure(call(session, "refuse"))
    assert (error.code, error.details["jsonrpc_code"]) == ("mcp_protocol", -32602)
    error = await failure(call(session, "break_promise"))
    assert error.code == "mcp_protocol"
    assert session.connects == 1


async def test_many_calls_share_one_connection_and_run_side_by_side(site: Site, open_session: Open) -> None:
    session = open_session(site.endpoint())
    await call(session, "echo", text="warm")
    started = time.monotonic()
    results = await asyncio.gather(*(call(session, "slow", seconds=0.5) for _ in range(40)))
    assert results == ["after 0.5 s"] * 40
    assert time.monotonic() - started < 10
    assert session.connects == 1
    assert len(site.events("list")) == 1


async def test_the_server_gets_the_idempotency_key(site: Site, open_session: Open) -> None:
    session = open_session(site.endpoint())
    await session.call("echo", {"text": "x"}, timeout_s=PATIENCE_S, idempotency_key="call-1")
    (entry,) = site.events("call")
    assert entry["meta"]["phronomy-ray/idempotency-key"] == "call-1"


async def test_environment_and_headers_reach_the_server_and_come_back_blanked(
    make_site: Callable[..., Site], shared_site: Site, open_session: Open
) -> None:
    local = make_site("stdio")
    session = open_session(local.endpoint(env={"SITE_TOKEN": "canary-token-1"}))
    assert await call(session, "reveal", name="SITE_TOKEN") == "[REDACTED]"
    assert await call(session, "reveal", name="PYTHONPATH") == ""  # nothing else is inherited
    session = open_session(shared_site.endpoint(headers={"X-Site-Token": "canary-token-2"}))
    assert await call(session, "reveal", name="x-site-token") == "[REDACTED]"


async def test_cancelling_a_call_frees_the_caller_at_once_and_reaches_the_server(
    site: Site, open_session: Open
) -> None:
    session = open_session(site.endpoint())
    await call(session, "echo", text="warm")
    task = asyncio.create_task(call(session, "hang"))
    await eventually(lambda: site.calls("hang"))
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 0.5
    await eventually(lambda: site.events("cancelled"))
    assert await call(session, "echo", text="still there") == "still there"
    assert session.connects == 1


# --- P01: one owner per session ---------------------------------------------------------------------------------


async def test_P01_three_servers_are_closed_in_any_order_by_other_tasks(
    make_site: Callable[..., Site],
) -> None:
    sites = [make_site("stdio") for _ in range(3)]
    sessions = [McpSession(item.endpoint(name=f"s{index}")) for index, item in enumerate(sites)]
    for session in sessions:
        await call(session, "echo", text="warm")
    pids = set.union(*(item.pids() for item in sites))
    assert len(pids) == 3
    assert all(processes.is_alive(pid) for pid in pids)
    for session in sessions:  # in the order of opening, which is the wrong one for nested scopes
        await asyncio.create_task(session.close())
    await gone(pids)


async def test_P01_closing_while_a_call_runs_and_while_the_closer_is_cancelled(
    make_site: Callable[..., Site],
) -> None:
    site = make_site("stdio")
    session = McpSession(site.endpoint())
    running = asyncio.create_task(call(session, "hang"))
    await eventually(lambda: site.calls("hang"))
    closing = asyncio.create_task(session.close())
    await asyncio.sleep(0)
    closing.cancel()
    error = await failure(running)
    assert error.code == "mcp_server_lost"
    await gone(site.pids())
    await session.close()  # again: returns when it is over


async def test_P01_a_caller_cancelled_while_the_session_opens_leaves_nothing(
    make_site: Callable[..., Site],
) -> None:
    site = make_site("stdio", "silent")  # it starts and never shakes hands
    session = McpSession(site.endpoint())
    opening = asyncio.create_task(session.list_tools(timeout_s=PATIENCE_S))
    await eventually(lambda: site.events("start"))
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await session.close()
    await gone(site.pids())


async def test_P01_a_connection_is_closed_in_the_task_that_opened_it(make_site: Callable[..., Site]) -> None:
    site = make_site("stdio")
    connection = McpConnection(site.endpoint(), on_tools_changed=lambda: None)
    await asyncio.create_task(connection.open())
    await asyncio.gather(*(asyncio.create_task(connection.close()) for _ in range(3)))
    assert not connection.is_usable
    await gone(site.pids())


async def test_P01_a_server_that_ignores_the_end_of_its_input_is_ended_all_the_same(
    make_site: Callable[..., Site],
) -> None:
    site = make_site("stdio", "stubborn")
    session = McpSession(site.endpoint())
    await call(session, "echo", text="warm")
    await session.close()
    await gone(site.pids())


# --- P02: losses --------------------------------------------------------------------------------------------------


async def test_P02_a_server_that_exits_during_a_call_is_an_error_and_the_next_call_reconnects(
    make_site: Callable[..., Site], open_session: Open
) -> None:
    site = make_site("stdio")
    session = open_session(site.endpoint())
    await call(session, "echo", text="warm")
    sibling = asyncio.create_task(call(session, "hang"))
    await eventually(lambda: site.calls("hang"))
    started = time.monotonic()
    error = await failure(call(session, "leave", code=0))
    assert time.monotonic() - started < 5
    assert error.code == "mcp_server_lost"
    assert error.details["may_have_run"] is True
    assert (await failure(sibling)).code == "mcp_server_lost"
    assert await call(session, "echo", text="again") == "again"
    assert site.calls("leave") == 1  # never repeated
    assert site.calls("hang") == 1
    assert len(site.pids()) == 2


async def test_P02_an_http_server_that_dies_during_a_call_and_is_back_later(
    make_site: Callable[..., Site], open_session: Open
) -> None:
    site = make_site("http")
    assert site.http is not None
    session = open_session(site.endpoint())
    task = asyncio.create_task(call(session, "hang"))
    await eventually(lambda: site.calls("hang"))
    site.http.kill()
    assert (await failure(task)).code == "mcp_server_lost"
    error = await failure(call(session, "echo", 5.0, text="nobody there"))
    assert error.code == "mcp_server_lost"
    assert error.details["may_have_run"] is False
    site.http.start()
    assert await call(session, "echo", text="back") == "back"
    assert site.calls("hang") == 1


async def test_P02_a_session_that_a_restarted_server_has_forgotten(
    make_site: Callable[..., Site], open_session: Open
) -> None:
    site = make_site("http")
    assert site.http is not None
    session = open_session(site.endpoint())
    await call(session, "echo", text="warm")
    site.http.restart()
    error = await failure(session.call("echo", {"text": "stale"}, timeout_s=PATIENCE_S))
    assert (error.code, error.details["may_have_run"]) == ("mcp_server_lost", False)
    assert site.calls("echo") == 1
    assert await call(session, "echo", text="again") == "again"


async def test_P02_a_server_that_was_restarted_while_nobody_called_is_connected_again_before_the_call(
    make_site: Callable[..., Site], open_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phronomy_ray.mcp.session.IDLE_PROBE_S", 0.01)
    site = make_site("http")
    session = open_session(site.endpoint())
    await call(session, "echo", text="one")
    await asyncio.to_thread(site.http.restart)
    assert await call(session, "echo", text="two") == "two"
    assert site.calls("echo") == 2
    assert session.connects == 2


async def test_P02_a_stdio_server_killed_while_idle_is_replaced_without_an_error(
    make_site: Callable[..., Site], open_session: Open
) -> None:
    site = make_site("stdio")
    session = open_session(site.endpoint())
    await call(session, "echo", text="warm")
    processes.kill_hard(site.pids())
    line = session._line
    assert line is not None
    await eventually(lambda: not line.connection.is_usable)
    assert await call(session, "echo", text="again") == "again"


async def test_P02_a_call_that_is_never_answered_ends_at_its_own_deadline(
    site: Site, open_session: Open
) -> None:
    session = open_session(site.endpoint())
    await call(session, "echo", text="warm")
    started = time.monotonic()
    error = await failure(session.call("hang", {}, timeout_s=0.5))
    assert 0.4 < time.monotonic() - started < 2
    assert (error.code, error.details["may_have_run"]) == ("mcp_timeout", True)
    await eventually(lambda: site.events("cancelled"))
    assert await call(session, "echo", text="the server lives") == "the server lives"
    assert session.connects == 1  # it answered the probe


async def test_P02_a_server_that_answers_nothing_any_more_is_replaced(
    make_site: Callable[..., Site], open_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phronomy_ray.mcp.session.PROBE_TIMEOUT_S", 0.5)
    site = make_site("stdio")
    session = open_session(site.endpoint())
    await call(session, "echo", text="warm")
    error = await failure(session.call("block", {"seconds": 60}, timeout_s=0.3))
    assert error.code == "mcp_timeout"
    assert await call(session, "echo", text="another one") == "another one"
    assert session.connects == 2
    assert site.calls("block") == 1


async def test_P02_a_connection_on_which_many_calls_were_given_up_is_replaced(
    shared_site: Site, open_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phronomy_ray.mcp.session.MAX_GIVEN_UP", 2)
    session = open_session(shared_site.endpoint())
    slow = asyncio.create_task(call(session, "slow", seconds=2.0))
    await eventually(lambda: shared_site.calls("slow"))
    for _ in range(2):
        assert (await failure(session.call("hang", {}, timeout_s=0.3))).code == "mcp_timeout"
    assert await call(session, "echo", text="on a new one") == "on a new one"
    assert session.connects == 2
    assert await slow == "after 2.0 s"  # the old one was left to it


async def test_P02_a_server_that_never_shakes_hands_ends_at_the_callers_deadline(
    make_site: Callable[..., Site], open_session: Open
) -> None:
    for kind in ("stdio", "http"):
        session = open_session(make_site(kind, "silent").endpoint(connect_timeout_s=0.5))
        error = await failure(session.call("echo", {}, timeout_s=PATIENCE_S))
        assert (error.code, error.details["phase"]) == ("mcp_timeout", "connect")
        slow = open_session(make_site(kind, "silent").endpoint(connect_timeout_s=60.0))
        error = await failure(slow.call("echo", {}, timeout_s=0.5))
        assert (error.code, error.details["may_have_run"]) == ("mcp_timeout", False)


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        (McpEndpoint("x", command=("no-such-program-anywhere",)), "no program"),
        (McpEndpoint("x", command=("/bin/sh", "-c", "echo broken config >&2; exit 3")), "broken config"),
        (McpEndpoint("x", url="http://127.0.0.1:9/mcp"), "ConnectError"),
    ],
)
async def test_P02_a_server_that_cannot_be_reached_says_why(
    endpoint: McpEndpoint, says: str, open_session: Open
) -> None:
    error = await failure(open_session(endpoint).call("echo", {}, timeout_s=PATIENCE_S))
    assert (error.code, error.details["phase"]) == ("mcp_server_lost", "connect")
    assert says in error.message


# --- P05: keep-alives ---------------------------------------------------------------------------------------------


async def test_P05_a_server_that_sends_only_keep_alives_meets_the_deadline(
    make_site: Callable[..., Site], open_session: Open
) -> None:
    site = make_site("http", "comments")
    session = open_session(site.endpoint(connect_timeout_s=1.0))
    started = time.monotonic()
    error = await failure(session.list_tools(timeout_s=PATIENCE_S))
    assert error.code == "mcp_timeout"
    assert 0.9 < time.monotonic() - started < 4
    slow = open_session(site.endpoint(connect_timeout_s=60.0))
    started = time.monotonic()
    error = await failure(slow.call("echo", {}, timeout_s=1.0))
    assert error.code == "mcp_timeout"
    assert 0.9 < time.monotonic() - started < 4


# --- changes ------------------------------------------------------------------------------------------------------


async def test_a_tool_that_changed_since_it_was_shown_is_not_called(
    make_site: Callable[..., Site], open_session: Open
) -> None:
    site = make_site("http")
    session = open_session(site.endpoint())
    shown = (await session.list_tools(timeout_s=PATIENCE_S)).find("echo")
    assert shown is not None
    await session.call("echo", {"text": "x"}, timeout_s=PATIENCE_S, tool_hash=shown.hash)
    await call(session, "change", description="Something else.")
    line = session._line
    assert line is not None
    await eventually(lambda: line.listing is None)
    error = await failure(session.call("echo", {"text": "x"}, timeout_s=PATIENCE_S, tool_hash=shown.hash))
    assert error.code == "definition_changed"
    assert site.calls("echo") == 1
    now = (await session.list_tools(timeout_s=PATIENCE_S)).find("echo")
    assert now is not None
    assert now.description == "Something else."
    await session.call("echo", {"text": "x"}, timeout_s=PATIENCE_S, tool_hash=now.hash)


async def test_a_tool_that_is_gone_is_not_called(shared_site: Site, open_session: Open) -> None:
    session = open_session(shared_site.endpoint())
    error = await failure(session.call("vanished", {}, timeout_s=PATIENCE_S, tool_hash="sha256:0"))
    assert error.code == "definition_changed"
    assert not shared_site.calls("vanished")


async def test_a_new_configuration_has_its_own_session_and_the_former_one_goes(
    make_site: Callable[..., Site],
) -> None:
    site = make_site("stdio")
    hub = McpHub(superseded_idle_s=0.2)
    former, later = (site.endpoint(env={"SITE_TOKEN": f"token-{number}"}) for number in (1, 2))
    for endpoint in (former, later):
        await hub.call(endpoint, "echo", {"text": "x"}, timeout_s=PATIENCE_S)
    first, second = (entry["pid"] for entry in site.events("start"))
    await gone({first})
    assert processes.is_alive(second)
    await hub.call(later, "echo", {"text": "x"}, timeout_s=PATIENCE_S)
    await hub.close()
    await gone({second})


async def test_an_idle_connection_is_closed_and_opened_again(
    make_site: Callable[..., Site], open_session: Open
) -> None:
    site = make_site("stdio")
    session = open_session(site.endpoint(idle_close_s=0.2))
    await call(session, "echo", text="one")
    await gone(site.pids())
    assert await call(session, "echo", text="two") == "two"
    assert len(site.pids()) == 2
