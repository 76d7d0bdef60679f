"""A receiver on loopback that fails as it is told, and deliverers on a real store."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from phronomy_ray.clock import SystemClock, utc_now
from phronomy_ray.delivery.deliverer import Deliverer
from phronomy_ray.delivery.limits import DeliveryLimits
from phronomy_ray.engine.store_client import StoreClient
from phronomy_ray.store.port import Store
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.subscriptions import Subscription, Target, Webhook

if TYPE_CHECKING:
    from phronomy_ray.testing.store_samples import Owner

GUARD_S = 20.0

Reaction = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Got:
    """One request."""

    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["data"]
        return found

    @property
    def key(self) -> tuple[str, int]:
        return self.data["execution_id"], self.data["seq"]


@dataclass
class Receiver:
    """Answers 200 unless `react` says otherwise."""

    got: list[Got] = field(default_factory=list)
    react: Callable[[Got, int], Awaitable[web.StreamResponse | int | None]] | None = None
    url: str = ""
    under_way: int = 0
    most: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        got = Got({name.lower(): value for name, value in request.headers.items()}, await request.read())
        self.got.append(got)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            answer = await self.react(got, len(self.got)) if self.react is not None else None
        finally:
            self.under_way -= 1
        if answer == 0:  # dies in the middle
            assert request.transport is not None
            request.transport.abort()
        if isinstance(answer, web.StreamResponse):
            return answer
        return web.Response(status=answer or 200, text="thanks")

    @property
    def keys(self) -> list[tuple[str, int]]:
        return [item.key for item in self.got]


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/in", receiver.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/in"
    yield receiver
    await runner.cleanup()


class Post:
    """A store with agents that do something, and deliverers on it."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self.store: Store = open_store(self.url)
        self.owners: dict[str, Owner] = {}
        self._deliverers: list[tuple[Deliverer, StoreClient]] = []

    def subscribe(self, target: Target | Receiver, name: str = "s1", **options: Any) -> None:
        if isinstance(target, Receiver):
            target = Webhook(url=target.url, **options)
        self.store.add_subscription(Subscription(name, target, utc_now()))

    def tell(self, agent_id: str, *seqs: int) -> None:
        """The agent does something that makes events."""
        from phronomy_ray.testing.store_samples import event, owned  # later: its asserts are to be rewritten

        owner = self.owners.get(agent_id)
        if owner is None:
            owner = self.owners[agent_id] = owned(self.store, agent_id)
            owner.start(f"ex-{agent_id}")
        rows = (event(f"ex-{agent_id}", agent_id, seq) for seq in seqs)
        owner.append(events=tuple(rows))

    def deliverer(self, *, store: Store | None = None, **limits: Any) -> Deliverer:
        client = StoreClient(store or open_store(self.url), retry_s=0.1)
        chosen = DeliveryLimits(**({"look_every_s": 0.01, "takeover_after_s": 30.0} | limits))
        made = Deliverer(client, clock=SystemClock(), name="here", limits=chosen)
        self._deliverers.append((made, client))
        made.start()
        return made

    def crash(self, deliverer: Deliverer) -> None:
        """It stops at once, wherever it is, and says nothing to anybody."""
        tasks = [serving for _, serving in deliverer._outlets.values()]
        for outlet, _ in deliverer._outlets.values():
            tasks += outlet._under_way.values()
            outlet.is_lost = True  # so that `close` gives nothing back
        assert deliverer._task is not None
        for task in (deliverer._task, *tasks):
            task.cancel()

    def waiting(self, name: str = "s1") -> int:
        states = {state.subscription.subscription_id: state for state in self.store.subscriptions()}
        return states[name].waiting

    async def until_done(self, name: str = "s1") -> None:
        await until(lambda: self.waiting(name) == 0)

    async def close(self) -> None:
        for deliverer, client in self._deliverers:
            await deliverer.close()
            client.close()
        self.store.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(GUARD_S):
        while not holds():
            await asyncio.sleep(0.005)
