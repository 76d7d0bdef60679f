"""The gateway of an MCP server as a Ray actor: one server per cluster, and what is left when its process dies."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray_testbed.agents import turn
from ray_testbed.effects import PATIENCE_S
from ray_testbed.fixtures import Bench
from ray_testbed.mcp_agents import SHARED_LOG, Librarian

from phronomy_ray.actors.mcp_client import GatewayAccess
from phronomy_ray.actors.mcp_gateway import McpGateway, UnknownEndpointError, gateway_name
from phronomy_ray.errors import CancellationError, ToolError
from phronomy_ray.mcp.endpoint import McpEndpoint
from phronomy_ray.testing import processes
from phronomy_ray.testing.mcp_server import read_log, stdio_command, wait_for_log

NAMESPACE = "phronomy"


# --- without Ray ------------------------------------------------------------------------------------------------


async def test_a_gateway_knows_only_what_it_was_told_and_a_cancel_may_come_first() -> None:
    gateway = McpGateway()
    endpoint = McpEndpoint("x", command=("no-such-program-anywhere",))
    options: dict[str, Any] = {"timeout_s": 5.0, "tool_hash": "", "idempotency_key": ""}
    with pytest.raises(UnknownEndpointError):
        await gateway.call(endpoint.fingerprint, "t1", "echo", {}, **options)
    await gateway.open(endpoint)
    assert await gateway.cancel("t2") is False
    assert await gateway.call(endpoint.fingerprint, "t2", "echo", {}, **options) is None
    with pytest.raises(ToolError, match="no program"):
        await gateway.call(endpoint.fingerprint, "t3", "echo", {}, **options)
    await gateway.close()
    with pytest.raises(UnknownEndpointError):
        await gateway.list_tools(endpoint.fingerprint, 1.0, False)


# --- with Ray -----------------------------------------------------------------------------------------------------


class Place:
    """A stdio server that only this test uses."""

    def __init__(self, name: str, log: Path, mode: str = "normal") -> None:
        self.log = log
        self.endpoint = McpEndpoint(name, command=tuple(stdio_command(log=log, mode=mode)))

    @property
    def gateway(self) -> Any:
        return ray.get_actor(gateway_name(self.endpoint.name), namespace=NAMESPACE)

    def gateway_pid(self) -> int:
        return int(ray.get(self.gateway.ping.remote(), timeout=PATIENCE_S)["pid"])

    def pids(self) -> list[int]:
        return [entry["pid"] for entry in read_log(self.log, "start")]

    def calls(self, tool: str) -> int:
        return len([entry for entry in read_log(self.log, "call") if entry["tool"] == tool])


@pytest.fixture
def make_place(
    connected: str, tmp_path: Path, new_id: Callable[[str], str]
) -> Iterator[Callable[..., Place]]:
    places: list[Place] = []

    def make(mode: str = "normal") -> Place:
        places.append(Place(new_id("place"), tmp_path / f"server-{len(places)}.log", mode))
        return places[-1]

    yield make
    for place in places:
        try:
            ray.kill(place.gateway, no_restart=True)
        except ValueError:
            continue
    left = processes.wait_dead({pid for place in places for pid in place.pids()}, timeout_s=15)
    assert not left, "a stdio server outlived its gateway"


async def call(
    access: GatewayAccess, place: Place, tool: str, timeout_s: float = PATIENCE_S, **arguments: Any
) -> Any:
    result = await access.call(place.endpoint, tool, arguments, timeout_s=timeout_s)
    return result["content"][0]["text"]


async def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.05)


def test_P01_a_server_is_started_once_for_all_agents_of_a_cluster(
    bench: Bench, new_id: Callable[[str], str]
) -> None:
    runtime = bench.runtime()
    agents = [runtime.create(Librarian, new_id("librarian")) for _ in range(3)]
    handles = [
        agent.start(turn([("echo", {"text": f"{number}"}), ("add", {"a": number, "b": 1})]))
        for number, agent in enumerate(agents)
    ]
    for number, handle in enumerate(handles):
        told = [str(item.content) for item in handle.result(PATIENCE_S).messages if item.role == "tool"]
        assert told == [f"{number}", f'{{"sum":{number + 1}}}']
    starts = read_log(SHARED_LOG, "start")
    assert len(starts) == 1
    gateway = ray.get_actor(gateway_name("shared"), namespace=NAMESPACE)
    pid = ray.get(gateway.ping.remote(), timeout=PATIENCE_S)["pid"]
    assert starts[0]["pid"] in processes.descendants(pid)


def test_cancelling_an_agents_execution_reaches_the_server(
    bench: Bench, new_id: Callable[[str], str]
) -> None:
    agent = bench.runtime().create(Librarian, new_id("librarian"))
    before = len(read_log(SHARED_LOG, "cancelled"))
    hung = len([entry for entry in read_log(SHARED_LOG, "call") if entry["tool"] == "hang"])
    handle = agent.start(turn([("hang", {})]))
    deadline = time.monotonic() + PATIENCE_S
    while len([entry for entry in read_log(SHARED_LOG, "call") if entry["tool"] == "hang"]) == hung:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    handle.cancel()
    with pytest.raises(CancellationError):
        handle.result(PATIENCE_S)
    wait_for_log(SHARED_LOG, "cancelled", count=before + 1, timeout_s=PATIENCE_S)


# a server that ends by itself when its input ends is the easier one: at full size only
@pytest.mark.parametrize("mode", [pytest.param("normal", marks=pytest.mark.full), "stubborn"])
async def test_P02_the_death_of_a_gateway_loses_its_calls_and_leaves_no_server(
    make_place: Callable[..., Place], mode: str
) -> None:
    place = make_place(mode)
    access = GatewayAccess(namespace=NAMESPACE)
    assert await call(access, place, "echo", text="warm") == "warm"
    running = asyncio.create_task(call(access, place, "hang"))
    await until(lambda: place.calls("hang"))
    (server,) = place.pids()
    os.kill(place.gateway_pid(), signal.SIGKILL)
    with pytest.raises(ToolError) as raised:
        await running
    assert raised.value.code == "mcp_server_lost"
    assert raised.value.details["may_have_run"] is True
    await until(lambda: not processes.is_alive(server))
    assert await call(access, place, "echo", text="again") == "again"
    assert len(place.pids()) == 2
    assert place.calls("hang") == 1


async def test_P02_a_gateway_that_does_not_answer_meets_the_callers_deadline(
    make_place: Callable[..., Place],
) -> None:
    place = make_place()
    access = GatewayAccess(namespace=NAMESPACE)
    await call(access, place, "echo", text="warm")
    pid = place.gateway_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises(ToolError) as raised:
            await call(access, place, "echo", 1.0, text="x")
        assert raised.value.code == "mcp_timeout"
        assert time.monotonic() - started < 6
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_cancelling_a_caller_reaches_the_server_through_the_gateway(
    make_place: Callable[..., Place],
) -> None:
    place = make_place()
    access = GatewayAccess(namespace=NAMESPACE)
    await call(access, place, "echo", text="warm")
    task = asyncio.create_task(call(access, place, "hang"))
    await until(lambda: place.calls("hang"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: read_log(place.log, "cancelled"))
    assert await call(access, place, "echo", text="still there") == "still there"
    assert len(place.pids()) == 1
