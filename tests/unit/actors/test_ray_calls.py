"""The calls to Ray that several modules share, with handles that are none of Ray's: no Ray is started."""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from phronomy_ray.actors import ray_calls
from phronomy_ray.actors.ray_calls import answer_of, first_line, live_actor, service_options


class Handle:
    """Answers a ping with `answer`: raised when it is an error, never given when it is ``None``."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.ping = self

    async def remote(self) -> Any:
        if self._answer is None:
            await asyncio.Event().wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


async def test_a_name_that_a_dying_actor_holds_is_asked_for_again() -> None:
    handles: list[Any] = [Handle(RayActorError()), Handle({"pid": 1})]
    asked = iter(handles)
    assert await live_actor(lambda: next(asked), patience_s=5, ping_timeout_s=5) is handles[1]


async def test_the_last_error_is_told_when_patience_is_over() -> None:
    def create() -> Any:
        raise ValueError("the name is taken")

    with pytest.raises(ValueError, match="the name is taken"):
        await live_actor(create, patience_s=0, ping_timeout_s=5)


async def test_a_ping_without_an_answer_is_not_waited_for_again() -> None:
    asked: list[Handle] = []

    def create() -> Any:
        asked.append(Handle(None))
        return asked[-1]

    with pytest.raises(TimeoutError):
        await live_actor(create, patience_s=5, ping_timeout_s=0.01)
    assert len(asked) == 1


async def test_an_answer_is_waited_for_as_long_as_its_actor_lives() -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asking = asyncio.ensure_future(
        answer_of(Handle("alive"), answer, ping_interval_s=0.001, ping_timeout_s=5)  # type: ignore[arg-type]
    )
    await asyncio.sleep(0.05)
    assert not asking.done()
    answer.set_result("late")
    assert await asking == "late"


async def test_an_answer_is_given_up_when_its_actor_says_nothing() -> None:
    never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError):
        await answer_of(Handle(None), never, ping_interval_s=0.001, ping_timeout_s=0.01)  # type: ignore[arg-type]


def test_the_first_line_of_an_error() -> None:
    assert first_line(ValueError("one\ntwo")) == "ValueError: one"
    assert first_line(ValueError()) == "ValueError"


def test_R02_R14_R17_actors_outlive_their_handles_reserve_no_cpu_and_repeat_no_call() -> None:
    options = service_options("agent:a", "phronomy")
    assert options["lifetime"] == "detached", "the last handle may go in the middle of work"
    assert options["num_cpus"] == 0, "one that waits for tools leaves the CPUs to them"
    assert options["max_task_retries"] == 0, "a stream is not begun again by Ray"
    assert options["get_if_exists"]


@pytest.mark.parametrize("is_alive", [True, False])
async def test_an_actor_of_a_node_that_was_given_up_ends_itself_and_not_its_successor(
    monkeypatch: pytest.MonkeyPatch, is_alive: bool
) -> None:
    """The successor has the same Ray id, so its handle is the handle of both."""
    done: list[Any] = []
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    context = SimpleNamespace(current_actor="the actor", get_node_id=lambda: "n1")

    def end_process(pid: int, number: int) -> None:
        done.append((pid, number))
        loop.call_soon_threadsafe(ended.set)

    nodes = [{"NodeID": "n2", "Alive": True}, {"NodeID": "n1", "Alive": is_alive}]
    monkeypatch.setattr(ray_calls.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(ray_calls.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray_calls, "kill", done.append)
    monkeypatch.setattr(ray_calls, "EXIT_S", 0.01)
    monkeypatch.setattr(ray_calls.os, "kill", end_process)
    ray_calls.end_this_actor()
    await asyncio.wait_for(ended.wait(), 10)
    itself = (os.getpid(), signal.SIGKILL)
    assert done == (["the actor", itself] if is_alive else [itself])
