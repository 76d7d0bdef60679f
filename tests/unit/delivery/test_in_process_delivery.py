"""The outbox as a driver has it: agents of its own process, its supervisor, and a process that is killed in the middle."""

from __future__ import annotations

import asyncio
import os
import runpy
import signal
import sys
from pathlib import Path

import pytest
from delivery_lab import Got, Receiver, until

from phronomy_ray import Agent, InProcess, Runtime, SupervisionLimits, Webhook
from phronomy_ray.errors import ConflictError, InvalidInputError

LIMITS = SupervisionLimits(look_every_s=0.1, foreign_after_s=1.0, deliver_every_s=0.05)
MODULE = """
from phronomy_ray import Agent
from phronomy_ray.models.scripted import ScriptedModel, final

heard = []

class Clerk(Agent):
    model = ScriptedModel([final("done")])

    def on_event(event):
        heard.append((event.execution_id, event.seq))
"""
DRIVER = """
import sys, threading
from told_agents import Clerk
from phronomy_ray import InProcess, Runtime, SupervisionLimits, Webhook

limits = SupervisionLimits(look_every_s=0.1, foreign_after_s=1.0, deliver_every_s=0.05)
runtime = Runtime(store=sys.argv[1], placement=InProcess(), supervisor=limits)
runtime.subscriptions.add(Webhook(url=sys.argv[2], secret_env="CLERK_SECRET"), subscription_id="hook")
runtime.create(Clerk, "a1").invoke("go", execution_id="ex1")
threading.Event().wait(60)
"""


@pytest.fixture
def clerk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Agent]:
    (tmp_path / "told_agents.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CLERK_SECRET", "secret")
    sys.modules.pop("told_agents", None)
    import told_agents  # type: ignore[import-not-found]

    found: type[Agent] = told_agents.Clerk
    return found


async def test_a_driver_subscribes_and_its_supervisor_delivers(
    tmp_path: Path, clerk: type[Agent], receiver: Receiver
) -> None:
    url = f"sqlite:///{tmp_path}/agents.db"
    with Runtime(store=url, placement=InProcess(), supervisor=LIMITS) as runtime:
        hook = Webhook(url=receiver.url, secret_env="CLERK_SECRET", events=["completed"])
        added = await runtime.subscriptions.add_async(hook, subscription_id="hook")
        assert await runtime.subscriptions.add_async(hook, subscription_id="hook") == added
        with pytest.raises(ConflictError):
            await runtime.subscriptions.add_async(Webhook(url=receiver.url), subscription_id="hook")
        with pytest.raises(InvalidInputError):
            await runtime.subscriptions.add_async(receiver.url)  # type: ignore[arg-type]
        agent = await runtime.create_async(clerk, "a1")
        await agent.invoke_async("go", execution_id="ex1")
        await until(lambda: bool(receiver.got))
        [got] = receiver.got
        seen = [event async for event in agent.execution("ex1").events()]
        assert got.data["payload"] == seen[-1].payload
        await until_none_waits(runtime)
        heard = sys.modules["told_agents"].heard
        await until(lambda: heard == [("ex1", 1), ("ex1", 2)])
        async with asyncio.timeout(20):
            while (await agent.status_async())["on_event"][0]["heard"] != 2:  # counted after the call
                await asyncio.sleep(0.01)
        [report] = await runtime.supervisor_report_async() or []
        assert [item["subscription_id"] for item in report["deliveries"]] == ["hook"]
        assert await runtime.subscriptions.remove_async("hook")
        assert not await runtime.subscriptions.remove_async("hook")
        assert await runtime.subscriptions.list_async() == []
        assert await runtime.subscriptions.redeliver_async() == 0
        assert await runtime.subscriptions.dead_letters_async() == []


@pytest.mark.full
def test_the_example_tells_of_a_repeated_delivery(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).resolve().parents[3] / "examples" / "webhook.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [
        "the receiver fails",
        "ex1 is completed",
        "2 attempts, 1 event",
    ]


async def until_none_waits(runtime: Runtime) -> None:
    async with asyncio.timeout(20):
        while any(state.waiting for state in await runtime.subscriptions.list_async()):
            await asyncio.sleep(0.01)


async def test_a_deliverer_that_is_killed_between_delivery_and_record_is_followed_with_the_same_key(
    tmp_path: Path, clerk: type[Agent], receiver: Receiver
) -> None:
    """The receiver has the event and kills its sender before it answers; the next driver on the store goes on."""
    url = f"sqlite:///{tmp_path}/agents.db"
    (tmp_path / "driver.py").write_text(DRIVER)
    driver = await asyncio.create_subprocess_exec(
        sys.executable,
        str(tmp_path / "driver.py"),
        url,
        receiver.url,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )

    async def react(got: Got, number: int) -> int | None:
        if got.key == ("ex1", 2) and driver.returncode is None:
            driver.send_signal(signal.SIGKILL)
            await driver.wait()
        return None

    receiver.react = react
    async with asyncio.timeout(30):
        assert await driver.wait() == -signal.SIGKILL
    assert receiver.keys == [("ex1", 1), ("ex1", 2)]
    with Runtime(store=url, placement=InProcess(), supervisor=LIMITS) as runtime:
        # nobody calls anything: a store with subscriptions is looked after
        await until(lambda: len(receiver.got) >= 3)
        await until_none_waits(runtime)
    assert receiver.keys == [("ex1", 1), ("ex1", 2), ("ex1", 2)]
    keys = [got.headers["webhook-id"] for got in receiver.got]
    assert keys[1] == keys[2] != keys[0]
    assert receiver.got[1].body == receiver.got[2].body
