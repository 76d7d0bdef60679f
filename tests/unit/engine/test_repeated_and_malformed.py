"""Words that arrive twice or malformed, events that were committed and never published, ports against their contract."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import (
    AgentUnloadedError,
    ConfigurationError,
    InvalidInputError,
    ModelError,
    NotFoundError,
    StateConflictError,
)
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.kernel.inputs import Decide, Resolve
from phronomy_ray.models.port import ModelInfo
from phronomy_ray.models.scripted import ScriptedModel, call, calls, final, hang
from phronomy_ray.runtime.agent_handle import AgentHandle
from phronomy_ray.testing.faulty_store import FaultyStore
from phronomy_ray.tool_calls import Resolution


async def until(reached: Any) -> None:
    async with asyncio.timeout(20):
        while not reached():
            await asyncio.sleep(0.002)


async def let_go(lab: Any, hold: asyncio.Event) -> None:
    """Let the bodies of lost processes end, so that none outlives its test."""
    hold.set()
    await until(lambda: not any(engine._tasks for engine in lab.engines))


def paying(lab: Any, hold: asyncio.Event) -> tuple[Any, list[int]]:
    """An agent with a tool that must not run twice, and the list of its runs."""
    runs: list[int] = []

    @tool
    async def pay(x: int) -> str:
        """Pay."""
        runs.append(x)
        await hold.wait()
        return "paid"

    script = [calls(call("pay", {"x": 1})), final("x")]
    return lab.define(script, pay, quiescence_timeout_s=0.2), runs


async def test_a_repeated_word_is_not_taken_for_the_attempt_that_was_lost_after_it(lab: Any) -> None:
    hold = asyncio.Event()
    definition, runs = paying(lab, hold)
    await lab.engine(definition).start("ex1", "go")
    await until(lambda: len(runs) == 1)
    second = lab.engine(definition)  # the first process is lost
    call_id = (await lab.suspension(second)).unresolved[0].tool_call_id
    word = Resolve("ex1", call_id, Resolution.NOT_PERFORMED, expected_attempt=1)
    await second.resolve(word)
    await until(lambda: len(runs) == 2)
    third = lab.engine(definition)  # lost too, before its answer reached the driver, which asks again
    result = await third.resolve(word)
    assert result.suspended, "the second attempt is for a human again"
    assert [item.tool_call_id for item in result.unresolved] == [call_id]
    with pytest.raises(StateConflictError, match="attempt 2"):
        await third.resolve(Resolve("ex1", call_id, Resolution.SUCCEEDED, "paid", expected_attempt=1))
    assert len(runs) == 2
    payloads = [event.payload for event in lab.store.events("ex1") if event.type == "resolution_required"]
    assert [payload["attempt"] for payload in payloads] == [1, 2]
    await let_go(lab, hold)


@pytest.mark.parametrize(
    ("outcome", "given"), [(Resolution.SUCCEEDED, {"result": {"n": 1}}), (Resolution.FAILED, {"error": "no"})]
)
async def test_the_same_word_again_is_harmless_and_another_one_is_refused(
    lab: Any, outcome: Resolution, given: dict[str, Any]
) -> None:
    hold = asyncio.Event()
    definition, runs = paying(lab, hold)
    await lab.engine(definition).start("ex1", "go")
    await until(lambda: runs)
    engine = lab.engine(definition)
    call_id = (await lab.suspension(engine)).unresolved[0].tool_call_id
    for _ in range(2):
        await engine.resolve(Resolve("ex1", call_id, outcome, **given, expected_attempt=1))
    await lab.end(engine)
    await engine.resolve(Resolve("ex1", call_id, outcome, **given, expected_attempt=1))
    for other in (
        Resolve("ex1", call_id, Resolution.SUCCEEDED, "else", expected_attempt=1),
        Resolve("ex1", call_id, Resolution.FAILED, error="else", expected_attempt=1),
        Resolve("ex1", call_id, Resolution.NOT_PERFORMED, expected_attempt=1),
        Resolve("ex1", call_id, Resolution.NOT_PERFORMED),
        Resolve("ex1", "tc_else", Resolution.NOT_PERFORMED, expected_attempt=1),
    ):
        with pytest.raises((StateConflictError, NotFoundError)):
            await engine.resolve(other)
    await let_go(lab, hold)


async def test_a_driver_names_the_attempt_that_its_word_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [SimpleNamespace(tool_call_id="tc_0", attempt=7), SimpleNamespace(tool_call_id="tc_1", attempt=2)]
    store = SimpleNamespace(tool_calls=lambda execution_id: rows)
    runtime: Any = SimpleNamespace(store=store, directory=None, _bridge=None, _open_scopes=None)
    handle = AgentHandle(runtime, "a1")
    sent: list[Any] = []

    async def send(method: str, *args: Any) -> Any:
        sent.append((method, *args))
        raise NotFoundError("enough")

    monkeypatch.setattr(handle._client, "call", send)
    for call_id in ("tc_1", "tc_2"):
        with pytest.raises(NotFoundError):
            await handle.resolve_async("ex1", call_id, "not_performed")
    assert [(item[0], item[2], item[-1]) for item in sent] == [
        ("resolve", "tc_1", 2),
        ("resolve", "tc_2", None),
    ]


async def test_events_that_were_committed_and_never_published_are_not_skipped(lab: Any) -> None:
    store = FaultyStore(lab.store)
    definition = lab.define([calls(call("nope", {})), hang()])
    engine = lab.engine(definition, store=store)
    store.fail_after("batch")
    store.always_fail("settle")
    await engine.start("ex1", "go")
    seen: list[int] = []
    cursor: str | None = None
    async with asyncio.timeout(20):
        while len(seen) < 4:
            after = seen[-1] if seen else 0
            found, cursor = await engine.events("ex1", after=after, cursor=cursor, timeout_s=1)
            seen += [event.seq for event in found if event.durable]
            if any(event.type.value == "error" for event in found):
                store.heal()
    assert seen == [row.seq for row in lab.store.events("ex1")] == [1, 2, 3, 4]
    await engine.cancel("ex1", "enough")
    await lab.end(engine)


@pytest.mark.parametrize("reason", [b"x", 5, float("nan"), {"a": 1}, object()])
async def test_a_malformed_reason_changes_nothing(lab: Any, reason: Any) -> None:
    hold = asyncio.Event()
    definition, runs = paying(lab, hold)
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    await until(lambda: runs)
    with pytest.raises(InvalidInputError, match="reason must be text"):
        await engine.cancel("ex1", reason)
    with pytest.raises(InvalidInputError, match="decided_by must be text"):
        await engine.decide(Decide("ex1", "ap_x", True, decided_by=reason))
    with pytest.raises(InvalidInputError, match="reason must be text"):
        await engine.decide(Decide("ex1", "ap_x", True, reason=reason))
    with pytest.raises(InvalidInputError, match="error must be text"):
        await engine.resolve(Resolve("ex1", "tc_x", Resolution.FAILED, error=reason))
    with pytest.raises(InvalidInputError, match="stream must be"):
        await engine.start("ex2", "go", stream=reason)
    hold.set()
    assert (await lab.end(engine)).status is ExecutionStatus.COMPLETED


async def test_the_reason_in_memory_is_the_stored_one(lab: Any) -> None:
    engine = lab.engine(lab.define([hang()]))
    await engine.start("ex1", "go")
    await engine.cancel("ex1", "why \ud800")
    result = await lab.end(engine)
    assert result.terminal_reason == lab.store.load_execution("ex1").terminal_reason == "why \ufffd"


@pytest.mark.parametrize(
    "given", [{"after": -1}, {"after": None}, {"after": "1"}, {"after": 2**63}, {"cursor": 5}]
)
async def test_malformed_positions_are_refused(lab: Any, given: dict[str, Any]) -> None:
    engine = lab.engine(lab.define([final("x")]))
    await lab.run(engine)
    with pytest.raises(InvalidInputError):
        await engine.events("ex1", **{"after": 0, "cursor": None, "timeout_s": 1, **given})
    found, _ = await engine.events("ex1", after=0, cursor="1:²", timeout_s=1)
    assert found[-1].is_terminal, "a cursor that nobody gave out is none"


class Port:
    """A model that hangs, and says what `info` is told to say."""

    def __init__(self) -> None:
        self.answer: Any = ModelInfo(None, None)

    async def info(self, model: str) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def complete(self, request: Any) -> Any:
        await asyncio.Event().wait()

    def stream(self, request: Any) -> Any:
        raise AssertionError("not streamed")


@pytest.mark.parametrize("answer", [RuntimeError("boom"), ConfigurationError("boom"), None])
async def test_a_port_that_cannot_say_its_limits_does_not_hold_up_a_recovery(lab: Any, answer: Any) -> None:
    port = Port()
    definition = lab.define(port)
    await lab.engine(definition).start("ex1", "go")
    port.answer = answer
    engine = lab.engine(definition)
    await engine.activate()
    await until(lambda: engine._work._model_task is not None)
    await engine.cancel("ex1", "enough")
    assert (await lab.end(engine)).status is ExecutionStatus.CANCELLED
    if answer is not None:
        with pytest.raises(ModelError, match="boom"):
            await engine.start("ex2", "go")


async def test_a_recovery_that_fails_is_not_taken_for_done(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = lab.define([hang()])
    await lab.engine(definition).start("ex1", "go")
    engine = lab.engine(definition)

    async def fail() -> None:
        raise ConfigurationError("not now")

    with monkeypatch.context() as patched:
        patched.setattr(engine._budget, "try_to_learn", fail)
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="not now"):
                await engine.activate()
        assert engine.status()["lifecycle"] == "recovery_required"
    await engine.activate()
    await until(lambda: engine._work._model_task is not None)
    await engine.cancel("ex1", "enough")
    assert (await lab.end(engine)).status is ExecutionStatus.CANCELLED


async def test_a_port_that_cancels_its_own_call_is_a_failure_and_not_a_silence(lab: Any) -> None:
    class Cancelling(Port):
        async def complete(self, request: Any) -> Any:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    engine = lab.engine(lab.define(Cancelling()))
    result = await lab.run(engine)
    assert result.status is ExecutionStatus.FAILED
    assert result.error is not None
    assert result.error.code == "model_protocol"


async def test_a_stream_that_goes_on_after_its_answer_is_refused(lab: Any) -> None:
    """Two answers to one call: nobody could say which of them was the model's."""

    class Talkative(Port):
        async def stream(self, request: Any) -> Any:
            answer = await ScriptedModel([final("one")]).complete(request)
            yield answer
            yield answer

    engine = lab.engine(lab.define(Talkative()))
    result = await lab.run(engine, stream=True)
    assert result.error is not None
    assert (result.status, result.error.code) == (ExecutionStatus.FAILED, "model_protocol")


async def test_a_read_that_an_unload_overtook_says_so(lab: Any) -> None:
    engine = lab.engine(lab.define([final("x")]))
    await lab.run(engine)
    await engine.seal()
    with pytest.raises(AgentUnloadedError):
        await engine.stored_events("ex1", 0)
