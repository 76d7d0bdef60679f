"""Starts, and the requests that wait for their turn: each begins by itself when nothing runs any more, or is left to the next
owner when this one retires.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import Any

from phronomy_ray.canonical_json import clean_text
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.busy import BusyRule
from phronomy_ray.engine.parts import EngineParts
from phronomy_ray.engine.reserved import PLAIN_START, ReservedStart
from phronomy_ray.engine.single_writer import SingleWriter
from phronomy_ray.errors import AgentBusyError, AgentUnloadedError, PhronomyError, StateConflictError
from phronomy_ray.journal import QueuedRequest
from phronomy_ray.kernel.admission import message_of_input
from phronomy_ray.kernel.ending import DEADLINE
from phronomy_ray.kernel.inputs import Cancel, DropRequest, Prepared, Start

_LOG = logging.getLogger("phronomy_ray.engine")


class QueueingAgent(SingleWriter):
    """An owner that begins what waits for its agent."""

    def __init__(self, agent_id: str, definition: AgentDefinition, parts: EngineParts) -> None:
        super().__init__(agent_id, definition, parts)
        self._retiring = False

    def begin_retiring(self) -> None:
        """Begin nothing any more: what comes to the agent while nothing runs is told to look for the next owner."""
        self._retiring = True

    async def retire(self, timeout_s: float | None) -> bool:
        """Stop for good as soon as nothing runs (waiting for a human is nothing); whether it has within `timeout_s` seconds.

        What waits for its turn is left to the next owner. Without success the agent goes on with what runs, and begins nothing.
        """
        self.begin_retiring()
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    changed = self.hub.changed
                    try:
                        await self.seal(leave_queue=True)
                        return True
                    except AgentBusyError:
                        await changed.wait()
        except TimeoutError:
            return False

    def _refuse_when_retiring(self) -> None:
        """Raise `AgentUnloadedError` when this owner begins nothing any more."""
        if self._retiring and self.state.execution is None:
            raise AgentUnloadedError(
                f"agent {self.agent_id!r} is leaving this process; wake it and ask again"
            )

    def _waiting(self, execution_id: str) -> QueuedRequest | None:
        """The queued request of this id."""
        queue = self._state.queue if self._state is not None else ()
        return next((item for item in queue if item.execution_id == execution_id), None)

    def _next_soon(self) -> None:
        """Have the next queued request begin when nothing runs."""
        if self._retiring or self._state is None:
            return
        if self._state.execution is None and self._state.queue:
            self._tasks.spawn_guarded(self._take_next(self._state.queue[0]))

    async def _take_next(self, request: QueuedRequest) -> None:
        if self._halted is not None or self._sealed or self._retiring:
            return
        await self._budget.try_to_learn()
        wish = await self._store.run(self._store.store.find_cancellation, request.execution_id)
        if wish is None and self._is_overdue(request.deadline_at):
            wish = await self._wish_end(request.execution_id, DEADLINE)
        if wish is not None:  # an owner that died has not got round to withdrawing it
            await self._feed(Cancel(request.execution_id, wish.reason))
            return
        begin = self._start_event(
            request.execution_id,
            request.input,
            request.input_hash,
            request.durable_context,
            stream=request.stream,
            from_queue=True,
            deadline_at=request.deadline_at,
        )
        try:
            await self._apply(begin)
        except StateConflictError:
            await self._drop_taken(request.execution_id)
        except PhronomyError as error:
            self._halt_once(error)

    async def _drop_taken(self, execution_id: str) -> None:
        """Forget a queued request: its id has become another execution, most likely one of another agent."""
        _LOG.warning(
            "agent %s: a queued request is dropped: execution %s is another one", self.agent_id, execution_id
        )
        await self._feed(DropRequest(execution_id))

    def _start_event(
        self,
        execution_id: str,
        value: Any,
        input_hash: str,
        durable_context: dict[str, Any] | None,
        *,
        stream: bool,
        on_busy: BusyRule = BusyRule.REJECT,
        from_queue: bool = False,
        deadline_at: datetime | None = None,
        reserved: ReservedStart = PLAIN_START,
    ) -> Start:
        """A start; what it says is prepared already unless user code has to look at it."""
        instructions = self.definition.instructions
        prepared = None
        if isinstance(instructions, str) and not self._user_code.prepares_input:
            prepared = Prepared(clean_text(instructions), message_of_input(value))
        return Start(
            execution_id,
            value,
            input_hash,
            durable_context,
            stream=stream,
            prepared=prepared,
            options=self._parts.options.needed_names(),
            on_busy=on_busy,
            queue_limit=self.definition.max_queued_requests,
            from_queue=from_queue,
            start_id=reserved.start_id,
            correlation=reserved.correlation,
            budget_s=reserved.budget_s,
            deadline_at=deadline_at,
        )
