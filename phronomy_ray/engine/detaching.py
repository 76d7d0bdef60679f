"""Letting go of an agent that waits for a human: a commit, and then its owner serves nobody any more."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.detachment import ApprovalWait
from phronomy_ray.engine.editing import EditableAgent
from phronomy_ray.engine.parts import EngineParts
from phronomy_ray.errors import StateConflictError
from phronomy_ray.ids import check_id
from phronomy_ray.kernel.detaching import detached_wait
from phronomy_ray.kernel.inputs import Detach

P = ParamSpec("P")
R = TypeVar("R")
DetachableAgentT = TypeVar("DetachableAgentT", bound="DetachableAgent")


class DetachableAgent(EditableAgent):
    """An owner that lets go of its agent."""

    def __init__(self, agent_id: str, definition: AgentDefinition, parts: EngineParts) -> None:
        super().__init__(agent_id, definition, parts)
        #: Calls that are changing the agent now.
        self.operations = 0

    async def detach(self, execution_id: str, approval_request_id: str, detach_id: str) -> ApprovalWait:
        """Let go of the agent, whose execution waits for this answer: commit it, then stop for good. Whoever loads the agent next
        goes on with the same execution.

        Args:
            execution_id: the suspended execution.
            approval_request_id: one of its open requests.
            detach_id: the same for every repetition; the last detach of an execution is recognised, and repeated once the execution
                has gone on it only tells what was handed on and leaves the present owner alone.

        Raises:
            AgentBusyError: it is refused; ``details["reason"]`` is a `DetachRefusal`. Everything is as before.
            StateConflictError: the execution is not one of this agent's that has not ended.
        """
        check_id(execution_id, "execution_id")
        check_id(approval_request_id, "approval_request_id")
        check_id(detach_id, "detach_id")
        await self.activate()
        is_disputed = self.operations > 0
        held = await self._store.run(self._store.store.retentions, agent_id=self.agent_id)
        async with self._lock:
            self._check_serving()
            event = Detach(
                execution_id,
                approval_request_id,
                detach_id,
                runs=self._work.has_stragglers(execution_id),
                is_disputed=is_disputed or self.operations > 0,
                is_stopping=self._work.stopping == execution_id,
                retained_by=tuple(
                    sorted({item.owner_key for item in held if item.execution_id in (None, execution_id)})
                ),
            )
            try:
                await self._step(event)
            except StateConflictError:
                ended = await self._store.run(self._store.store.find_execution, execution_id)
                if ended is None or (wait := detached_wait(ended, detach_id)) is None:
                    raise
                return wait
            execution = self.state.execution
            assert execution is not None
            found = detached_wait(execution.row, detach_id)
            assert found is not None
            if found.execution_revision == execution.row.revision:  # it has not gone on since
                self._close_down()
        await self._hear_out()
        return found


def operation(
    method: Callable[Concatenate[DetachableAgentT, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[DetachableAgentT, P], Coroutine[Any, Any, R]]:
    """A method that may change the agent: while it is under way the agent is not let go of."""

    @functools.wraps(method)
    async def counted(self: DetachableAgentT, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self.operations += 1
        try:
            return await method(self, *args, **kwargs)
        finally:
            self.operations -= 1

    return counted


__all__ = ["DetachableAgent", "operation"]
