"""`Retentions`: holds on what is stored of agents. They live in the store; nothing is woken, and no process is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from phronomy_ray.clock import Clock, SystemClock
from phronomy_ray.errors import InvalidInputError
from phronomy_ray.ids import check_id
from phronomy_ray.retention import Retention
from phronomy_ray.runtime.bridge import Bridge, blocking
from phronomy_ray.store.port import Store


class Retentions:
    """The holds of one store."""

    def __init__(
        self, store: Callable[[], Store], bridge: Callable[[], Bridge], clock: Clock | None = None
    ) -> None:
        self._store = store
        self._find_bridge = bridge
        self._clock = clock or SystemClock()

    @property
    def _bridge(self) -> Bridge:
        """The loop that blocking forms run on."""
        return self._find_bridge()

    async def retain_async(
        self, owner_key: str, *, agent_id: str | None = None, execution_id: str | None = None
    ) -> Retention:
        """Hold an agent, or one execution: no purge and no collection deletes it until every hold is released.

        The same hold again is one hold. An agent that is held can be unloaded all the same.

        Args:
            owner_key: who holds: a name of your own, which releases it.
            agent_id: all that the agent has.
            execution_id: only this execution (and with it the agent); `agent_id` may say whose it is.

        Raises:
            InvalidInputError: neither is given, or a value is not what it must be.
            NotFoundError: it is not stored.
        """
        agent_id = await self._agent_of(owner_key, agent_id, execution_id)
        hold = Retention(owner_key, agent_id, execution_id, self._clock.now())
        return await asyncio.to_thread(self._store().retain, hold)

    retain = blocking(retain_async)

    async def release_async(
        self, owner_key: str, *, agent_id: str | None = None, execution_id: str | None = None
    ) -> bool:
        """End a hold of `owner_key`, named as it was made; whether there was one. Raises as `retain_async`."""
        agent_id = await self._agent_of(owner_key, agent_id, execution_id)
        return await asyncio.to_thread(
            self._store().release, owner_key, agent_id=agent_id, execution_id=execution_id
        )

    release = blocking(release_async)

    async def list_async(
        self, *, agent_id: str | None = None, owner_key: str | None = None
    ) -> list[Retention]:
        """Holds, oldest first: of an agent and its executions, of an owner, or all."""
        return await asyncio.to_thread(self._store().retentions, agent_id=agent_id, owner_key=owner_key)

    list = blocking(list_async)

    async def _agent_of(self, owner_key: str, agent_id: str | None, execution_id: str | None) -> str:
        check_id(owner_key, "owner_key")
        if execution_id is not None:
            check_id(execution_id, "execution_id")
        if agent_id is not None:
            return check_id(agent_id, "agent_id")
        if execution_id is None:
            raise InvalidInputError("say what is held: agent_id or execution_id")
        row = await asyncio.to_thread(self._store().load_execution, execution_id)
        return row.agent_id


__all__ = ["Retentions"]
