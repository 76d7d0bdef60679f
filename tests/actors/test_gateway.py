"""The model gateway as a Ray actor, and the client that agents use."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import ray

from phronomy_ray.actors import model_gateway
from phronomy_ray.actors.answer_stream import merge_text
from phronomy_ray.actors.gateway_client import GatewayModel
from phronomy_ray.actors.model_gateway import ModelGateway, gateway_name
from phronomy_ray.errors import AuthenticationError, ModelError, TransportError
from phronomy_ray.models.litellm_model import LitellmModel
from phronomy_ray.models.port import (
    ModelAnswer,
    ModelInfo,
    ModelPort,
    ModelRequest,
    StreamItem,
    StreamReset,
    TextDelta,
)
from phronomy_ray.models.script import call, calls, error, final, hang
from phronomy_ray.models.scripted import ScriptedModel
from phronomy_ray.testing.model_server import ModelServer

#: The session's: a gateway loads litellm for seconds, so that other tests' gateways are used.
NAMESPACE = "phronomy"

# --- without Ray -----------------------------------------------------------------------------------------------


def ask(text: str = "hi", **more: Any) -> ModelRequest:
    fields: dict[str, Any] = {
        "call_id": "ex:m1",
        "sequence": 1,
        "model": "openai/scripted",
        "timeout_s": 30.0,
    }
    return ModelRequest(messages=[{"role": "user", "content": text}], **(fields | more))


async def all_groups(gateway: ModelGateway, ticket: str) -> list[list[StreamItem]]:
    """A streamed answer to its end."""
    group = await gateway.stream(ask(), ticket)
    groups = []
    while group is not None:
        groups.append(group.items)
        if group.is_over:
            return groups
        group = await gateway.more(ticket)
    raise AssertionError("the stream was forgotten")


async def test_a_cancel_that_comes_first_holds_and_another_ticket_is_not_touched() -> None:
    gateway = ModelGateway(ScriptedModel([final("ok")]))
    assert await gateway.cancel("t1") is False
    assert await gateway.complete(ask(), "t1") is None
    answer = await gateway.complete(ask(), "t2")
    assert answer is not None
    assert answer.message.content == "ok"
    assert await gateway.cancel("t3") is False
    assert await gateway.stream(ask(), "t3") == ([], True)


async def test_a_running_call_is_cancelled_by_ticket_and_replaced_by_call_id() -> None:
    gateway = ModelGateway(ScriptedModel([hang()]))
    first = asyncio.create_task(gateway.complete(ask(), "t1"))
    await asyncio.sleep(0)
    assert (await gateway.ping())["running"] == 1
    second = asyncio.create_task(gateway.complete(ask(), "t2"))
    assert await first is None
    assert await gateway.cancel("t2") is True
    assert await second is None
    assert (await gateway.ping())["running"] == 0


async def test_deltas_are_grouped_and_none_is_lost() -> None:
    text = "".join(f"w{n} " for n in range(300))
    gateway = ModelGateway(ScriptedModel([final(text, chunk_delay_s=0.0005)]))
    groups = await all_groups(gateway, "t1")
    assert "".join(i.text for g in groups for i in g if isinstance(i, TextDelta)) == text
    assert isinstance(groups[-1][-1], ModelAnswer)
    assert len(groups) < 100
    assert merge_text([TextDelta("a"), TextDelta("b"), StreamReset(2), TextDelta("c")]) == [
        TextDelta("ab"),
        StreamReset(2),
        TextDelta("c"),
    ]


async def test_errors_pass_through_the_plain_class() -> None:
    gateway = ModelGateway(ScriptedModel([error(AuthenticationError("no"))]))
    with pytest.raises(AuthenticationError):
        await gateway.complete(ask(), "t1")
    with pytest.raises(AuthenticationError):
        await gateway.stream(ask(), "t2")


async def test_a_stream_that_nobody_asks_for_is_forgotten_and_its_connection_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_gateway, "FORGOTTEN_AFTER_S", 0.0)
    gateway = ModelGateway(ScriptedModel([final("a b c d", chunk_delay_s=0.3)]))
    group = await gateway.stream(ask(), "t1")
    assert group is not None
    assert not group.is_over
    while (await gateway.ping())["running"]:
        await asyncio.sleep(0)
    assert await gateway.more("t1") is None


# --- with Ray --------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(connected: str) -> str:
    return NAMESPACE


@pytest.fixture
def server() -> Iterator[ModelServer]:
    def script(request: Any) -> Any:
        return {
            "hi": final("hello you there"),
            "tools": calls(call("t", {"x": 1}, id="a"), text="see"),
            "refuse": error(AuthenticationError("bad key sk-CANARY")),
            "hang": hang(),
            "slow": final(" ".join(map(str, range(50))), chunk_delay_s=0.1),
        }[request.last_user]

    with ModelServer(script) as found:
        yield found


def settings(server: ModelServer) -> dict[str, Any]:
    return {"api_base": server.base_url, "api_key": "sk-CANARY"}


@pytest.fixture
def model(cluster: str) -> GatewayModel:
    return GatewayModel(namespace=cluster, ping_interval_s=1.0, ping_timeout_s=5.0)


async def drain(model: ModelPort, request: ModelRequest) -> list[StreamItem]:
    return [item async for item in model.stream(request)]


async def gateway_pid(number: int) -> int:
    handle = ray.get_actor(gateway_name(number), namespace=NAMESPACE)
    found: dict[str, int] = await handle.ping.remote()
    return found["pid"]


async def test_answers_stream_and_errors_cross_the_actor(model: GatewayModel, server: ModelServer) -> None:
    assert isinstance(model, ModelPort)
    answer = await model.complete(ask("tools", settings=settings(server)))
    assert answer.message.tool_calls[0].arguments == '{"x": 1}'
    items = await drain(model, ask("hi", settings=settings(server)))
    assert "".join(item.text for item in items if isinstance(item, TextDelta)) == "hello you there"
    assert isinstance(items[-1], ModelAnswer)
    for stream in (False, True):
        request = ask("refuse", settings=settings(server))
        with pytest.raises(AuthenticationError) as caught:
            await (drain(model, request) if stream else model.complete(request))
        assert type(caught.value) is AuthenticationError
        assert len(caught.value.details["attempts"]) == 1
        assert "CANARY" not in str(caught.value) + str(caught.value.details)
    assert (await model.info("openai/gpt-4o")).max_input_tokens == 128_000
    assert await model.info("nobody/knows") == ModelInfo()


@pytest.mark.parametrize("text", ["hang", "slow"], ids=["plain", "stream"])
async def test_X02_cancelling_the_agent_side_closes_the_provider_connection(
    model: GatewayModel, server: ModelServer, text: str
) -> None:
    started = asyncio.Event()

    async def consume() -> None:
        request = ask(text, settings=settings(server), call_id=f"cancel-{text}")
        if text == "hang":
            await model.complete(request)
        async for _ in model.stream(request):
            started.set()

    task = asyncio.create_task(consume())
    (entry,) = await asyncio.to_thread(server.wait_for_requests, 1)
    if text == "slow":
        await started.wait()
    cancelled_at = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(entry.wait_done, 10)
    assert entry.closed_by_client_at is not None
    assert entry.closed_by_client_at - cancelled_at < 1.0


async def test_a_repeated_call_replaces_the_one_of_a_dead_owner(
    model: GatewayModel, server: ModelServer
) -> None:
    first = asyncio.create_task(model.complete(ask("hang", settings=settings(server), call_id="same")))
    (entry,) = await asyncio.to_thread(server.wait_for_requests, 1)
    assert (await model.complete(ask("hi", settings=settings(server), call_id="same"))).message.content
    assert await asyncio.to_thread(entry.wait_done, 10)
    assert entry.closed_by_client
    with pytest.raises(ModelError) as caught:
        await first
    assert caught.value.code == "superseded"


@contextlib.asynccontextmanager
async def stopped(pid: int) -> AsyncIterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_killed_gateway_is_replaced_by_the_next_and_text_is_reset(
    model: GatewayModel, server: ModelServer
) -> None:
    request = ask("slow", settings=settings(server), agent_id="alice", call_id="killed")
    home = model.home("alice")
    items: list[StreamItem] = []
    first_text = asyncio.Event()

    async def consume() -> None:
        async for item in model.stream(request):
            items.append(item)
            first_text.set()

    task = asyncio.create_task(consume())
    await first_text.wait()
    os.kill(await gateway_pid(home), signal.SIGKILL)
    await task
    answer = items[-1]
    assert isinstance(answer, ModelAnswer)
    reset = items.index(StreamReset(2))
    after = "".join(item.text for item in items[reset:] if isinstance(item, TextDelta))
    assert after == answer.message.content == " ".join(map(str, range(50)))
    assert [(a.number, a.error.code if a.error else None) for a in answer.attempts] == [
        (1, "gateway_unavailable"),
        (2, None),
    ]
    # Ray restarts it under its name, and it is asked again.
    again = GatewayModel(namespace=NAMESPACE)
    answered = await again.complete(ask("hi", settings=settings(server), agent_id="alice"))
    assert answered.message.content == "hello you there"


async def test_a_hung_gateway_is_left_after_an_unanswered_ping(cluster: str, server: ModelServer) -> None:
    model = GatewayModel(namespace=cluster, ping_interval_s=0.5, ping_timeout_s=1.0)
    await model.complete(ask("hi", settings=settings(server), agent_id="bob"))
    async with stopped(await gateway_pid(model.home("bob"))):
        answer = await model.complete(ask("hi", settings=settings(server), agent_id="bob"))
    assert answer.message.content == "hello you there"
    assert [a.error.code if a.error else None for a in answer.attempts] == ["gateway_unavailable", None]


@ray.remote(num_cpus=0)
class Reader:
    """Reads a stream in a process of its own."""

    def __init__(self, namespace: str) -> None:
        self._model = GatewayModel(namespace=namespace, gateways=1)
        self._begun = asyncio.Event()

    async def begin(self) -> int:
        """Its process id, as soon as it has read something."""
        await self._begun.wait()
        return os.getpid()

    async def read(self, request: ModelRequest) -> str:
        """The whole text."""
        text = ""
        async for item in self._model.stream(request):
            text += item.text if isinstance(item, TextDelta) else ""
            self._begun.set()
        return text


async def test_a_reader_that_is_stopped_holds_up_nobody_else(cluster: str, server: ModelServer) -> None:
    reader = Reader.remote(cluster)
    reading = reader.read.remote(ask("slow", settings=settings(server), call_id="stopped"))
    async with stopped(await reader.begin.remote()):
        await asyncio.to_thread(server.wait_for_requests, 1)
        model = GatewayModel(namespace=cluster, gateways=1)
        for n in range(3):
            items = await asyncio.wait_for(
                drain(model, ask("hi", settings=settings(server), call_id=f"o{n}")), 60
            )
            assert isinstance(items[-1], ModelAnswer)
    assert await reading == " ".join(map(str, range(50)))
    ray.kill(reader)


async def test_a_name_that_a_dying_gateway_holds_is_asked_for_again(
    cluster: str, server: ModelServer
) -> None:
    model = GatewayModel(namespace=cluster, gateways=1)
    await model.complete(ask("hi", settings=settings(server)))
    ray.kill(ray.get_actor(gateway_name(0), namespace=cluster), no_restart=True)
    fresh = GatewayModel(namespace=cluster, gateways=1)
    for each in (model, fresh):
        assert (
            await each.complete(ask("hi", settings=settings(server)))
        ).message.content == "hello you there"


async def test_no_gateway_at_all_is_a_typed_error_within_its_patience(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(number: int, namespace: str) -> Any:
        raise ValueError("no such actor")

    monkeypatch.setattr("phronomy_ray.actors.gateway_client._create", refuse)
    model = GatewayModel(namespace=cluster, patience_s=0.5)
    for stream in (False, True):
        with pytest.raises(TransportError) as caught:
            await (drain(model, ask()) if stream else model.complete(ask()))
        assert caught.value.code == "gateway_unavailable"
        assert caught.value.details["attempts"]
    with pytest.raises(TransportError) as caught:
        await model.info("x")
    assert caught.value.code == "gateway_unavailable"


@pytest.mark.full
async def test_cost_of_the_way_through_the_gateway(model: GatewayModel, server: ModelServer) -> None:
    """Prints what a call through the actor costs over the direct one; the bound only catches a lost order of magnitude."""
    direct = LitellmModel()

    async def measure(port: ModelPort, *, stream: bool) -> tuple[float, float]:
        times = []
        for _ in range(15):
            request = ask("hi", settings=settings(server))
            started = time.perf_counter()
            await (drain(port, request) if stream else port.complete(request))
            times.append((time.perf_counter() - started) * 1_000)
        return min(times), statistics.median(times)

    for stream in (False, True):
        alone, through = await measure(direct, stream=stream), await measure(model, stream=stream)
        print(
            f"{'stream' if stream else 'complete'}, best/median ms: direct {alone[0]:.1f}/{alone[1]:.1f}, "
            f"gateway {through[0]:.1f}/{through[1]:.1f}"
        )
        assert through[0] - alone[0] < 500
