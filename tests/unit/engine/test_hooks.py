"""``before_llm_input`` hooks: what they see, what they change, for how long, and what happens when they do not behave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from phronomy_ray.definition.hooks import LLMInputBuildContext, LLMInputPatch
from phronomy_ray.definition.options import InstanceOptions, RuntimeDefaults
from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import HookError
from phronomy_ray.faults import FaultInjectedError, write_plan
from phronomy_ray.journal import ExecutionStatus, Lifecycle, Phase
from phronomy_ray.messages import Message
from phronomy_ray.models.port import ModelRequest
from phronomy_ray.models.scripted import ScriptedModel, call, calls, final, hang

Paired = Callable[[Any], None]


@tool(replay="safe")
async def look(x: int = 0) -> str:
    return f"seen {x}"


class Recording(ScriptedModel):
    """Keeps the requests that it answers."""

    def __init__(self, script: Any) -> None:
        super().__init__(script)
        self.requests: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> Any:
        self.requests.append(request)
        return await super().complete(request)


def turns(*steps: Any) -> Any:
    return lambda request: final("fine") if request.last_user == "hi" else steps[request.sequence - 1]


async def test_runtime_class_and_instance_hooks_run_in_this_order_before_every_call(
    lab: Any, paired: Paired
) -> None:
    seen: list[tuple[str, LLMInputBuildContext]] = []
    threads: list[str] = []

    def made(name: str, **patch: Any) -> Callable[[LLMInputBuildContext], LLMInputPatch]:
        def hook(context: LLMInputBuildContext) -> LLMInputPatch:
            seen.append((name, context))
            threads.append(threading.current_thread().name)
            return LLMInputPatch(**patch)

        return hook

    async def nothing(context: LLMInputBuildContext) -> None:
        await asyncio.sleep(0)

    model = Recording([calls(call("look", {"x": 1})), final("done")])
    definition = lab.define(
        model,
        look,
        instructions="Be brief.",
        model_settings={"temperature": 1, "api_key": "k-secret", "top_p": 0.5},
        before_llm_input=[
            made("class", model_settings={"temperature": 0.5, "seed": 1}, candidates=["class"])
        ],
    )
    engine = lab.engine(
        definition,
        defaults=RuntimeDefaults(
            before_llm_input=[
                made("runtime", model_settings={"seed": 0}, candidates=[Message.user("runtime")])
            ]
        ),
        options=InstanceOptions(
            before_llm_input=[
                nothing,
                made("instance", model_settings={"temperature": 0}, candidates=["instance"]),
            ]
        ),
    )
    result = await lab.run(engine, durable_context={"tenant": "t1"})
    assert result.output == "done"
    assert [name for name, _ in seen] == ["runtime", "class", "instance"] * 2
    assert [context.call_sequence for _, context in seen] == [1, 1, 1, 2, 2, 2]
    first = seen[0][1]
    assert (first.agent_id, first.execution_id, first.definition_id) == ("a1", "ex1", "clerk")
    assert dict(first.model_settings) == {"temperature": 1, "top_p": 0.5}, "without the key"
    assert [m.role.value for m in first.messages] == ["system", "user"]
    assert [m.role.value for m in seen[3][1].messages] == ["system", "user", "assistant", "tool"]
    assert first.durable_context == {"tenant": "t1"}
    with pytest.raises(TypeError):
        first.durable_context["tenant"] = "t2"  # type: ignore[index]
    assert threading.current_thread().name not in threads
    for request in model.requests:
        assert (request.settings["temperature"], request.settings["seed"], request.settings["top_p"]) == (
            0,
            1,
            0.5,
        )
        assert request.settings["api_key"] == "k-secret"
        assert [m["content"] for m in request.messages[:3]] == ["Be brief.", "class", "instance"]
        assert request.messages[-1] == {"role": "user", "content": "runtime"}
        paired(list(request.messages[3:-1]))
    assert [m.content for m in result.messages if m.content] == ["hello", "seen 1", "done"], "never journaled"
    assert [row.manifest["patch"]["settings"] for row in lab.store.model_calls("ex1")] == [
        {"seed": 1, "temperature": 0}
    ] * 2


async def test_without_hooks_no_commit_is_added(lab: Any) -> None:
    plain = lab.engine(lab.define([final("x")]), "plain")
    hooked = lab.engine(lab.define([final("x")], before_llm_input=[lambda context: None]), "hooked")
    await lab.run(plain, id="ex1")
    await lab.run(hooked, id="ex2")
    assert plain.status()["timing"]["commits"] == 2
    assert hooked.status()["timing"]["commits"] == 3


async def test_a_call_repeated_after_a_crash_sends_the_same_and_asks_no_hook(lab: Any) -> None:
    asked: list[int] = []

    def counting(context: LLMInputBuildContext) -> LLMInputPatch:
        asked.append(context.call_sequence)
        return LLMInputPatch({"seed": len(asked)}, [f"asked {len(asked)} times", Message.user("psst")])

    model = Recording([final("x")])
    definition = lab.define(model, before_llm_input=[counting])
    first = lab.engine(definition)
    write_plan(lab.faults, "a1", point="after_model", action="fail")
    await first.start("ex1", "go")
    with pytest.raises(FaultInjectedError):
        await first.wait("ex1", until="terminal", timeout_s=5)
    second = lab.engine(definition)
    assert (await lab.end(second)).output == "x"
    assert asked == [1]
    one, two = model.requests
    assert one == two
    assert "asked 1 times" in repr(one.messages)


async def test_hooks_that_a_crash_took_run_again(lab: Any) -> None:
    asked: list[int] = []

    def counting(context: LLMInputBuildContext) -> None:
        asked.append(context.call_sequence)

    definition = lab.define([calls(call("look", {"x": 1})), final("x")], look, before_llm_input=[counting])
    first = lab.engine(definition)
    write_plan(lab.faults, "a1", point="before_commit:call", action="fail", occurrence=2)
    await first.start("ex1", "go")
    with pytest.raises(FaultInjectedError):
        await first.wait("ex1", until="terminal", timeout_s=5)
    assert lab.store.load_execution("ex1").phase is Phase.BUILDING_INPUT
    second = lab.engine(definition)
    assert (await lab.end(second)).output == "x"
    assert asked == [1, 2, 2]
    assert [row.attempt for row in lab.store.tool_calls("ex1")] == [1], "the batch before is over"


def broken(context: LLMInputBuildContext) -> None:
    raise ValueError("broken hook")


def self_cancelling(context: LLMInputBuildContext) -> None:
    raise asyncio.CancelledError


def exiting(context: LLMInputBuildContext) -> None:
    raise SystemExit(3)


def wrong(context: LLMInputBuildContext) -> Any:
    return {"temperature": 1}


def secret(context: LLMInputBuildContext) -> LLMInputPatch:
    return LLMInputPatch({"api_key": "x"})


@pytest.mark.parametrize("bad", [broken, self_cancelling, exiting, wrong, secret])
async def test_Y07_a_hook_that_fails_fails_the_execution_with_its_name(lab: Any, bad: Any) -> None:
    def sometimes(context: LLMInputBuildContext) -> Any:
        return None if context.messages[-1].content == "hi" else bad(context)

    engine = lab.engine(lab.define(turns(final("no")), before_llm_input=[sometimes]))
    result = await lab.run(engine)
    assert result.status is ExecutionStatus.FAILED
    with pytest.raises(HookError, match="sometimes") as caught:
        result.raise_for_status()
    assert caught.value.code == "hook_failed"
    assert lab.prompts() == []
    assert (await lab.run(engine, "hi", id="ex2")).output == "fine"
    assert lab.store.load_root("a1").lifecycle is Lifecycle.IDLE


async def test_Y07_a_hook_that_never_returns_is_given_up(lab: Any) -> None:
    def stuck(context: LLMInputBuildContext) -> None:
        if context.messages[-1].content != "hi":
            lab.release.wait(60)

    engine = lab.engine(lab.define(turns(final("no")), before_llm_input=[stuck], hook_timeout_s=0.2))
    result = await lab.run(engine)
    assert result.error is not None
    assert (result.error.type, result.error.code) == ("HookError", "hook_timeout")
    assert (await lab.run(engine, "hi", id="ex2")).output == "fine"


async def test_cancelled_while_a_hook_runs_stays_cancelled(lab: Any) -> None:
    inside = threading.Event()

    def slow(context: LLMInputBuildContext) -> None:
        inside.set()
        lab.release.wait(60)

    engine = lab.engine(lab.define([hang()], before_llm_input=[slow]))
    await engine.start("ex1", "go")
    await asyncio.to_thread(inside.wait, 5)
    await engine.cancel("ex1", "enough")
    result = await lab.end(engine)
    assert (result.status, result.terminal_reason) == (ExecutionStatus.CANCELLED, "enough")
    lab.release.set()
    assert lab.prompts() == []


async def test_candidates_that_do_not_fit_are_left_out_last_first(lab: Any) -> None:
    def much(context: LLMInputBuildContext) -> LLMInputPatch:
        return LLMInputPatch(candidates=["first " * 20, "second " * 2_000, "third"])

    model = Recording([final("x")])
    engine = lab.engine(lab.define(model, context_window=500, before_llm_input=[much]))
    assert (await lab.run(engine)).output == "x"
    assert [m["role"] for m in model.requests[0].messages] == ["system", "user"]
    (row,) = lab.store.model_calls("ex1")
    assert row.manifest["patch"]["left_out"] == 2
