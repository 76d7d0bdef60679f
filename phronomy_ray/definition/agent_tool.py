"""An agent as a tool of another agent (follows Phronomy's ``Tools::Agent``).

The tool is cooperative: it starts the child and waits, without a thread or a worker. Who starts the child is the business of
the process around the tool (`tool_environment.ChildAgents`); what its end means to the caller is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from phronomy_ray.definition.tool import FunctionTool, is_whole, tool
from phronomy_ray.errors import (
    CancellationError,
    ConfigurationError,
    ExecutionRehydrationRequiredError,
    PhronomyError,
    ToolError,
)
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.results import RunResult
from phronomy_ray.tool_calls import ToolContext
from phronomy_ray.tool_environment import ChildRequest, current_environment

if TYPE_CHECKING:
    from phronomy_ray.definition.agent import Agent

#: How deep agents may call agents unless told otherwise.
DEFAULT_MAX_DEPTH = 4
#: Limit of one child, in seconds: it may wait for a human.
DEFAULT_CHILD_TIMEOUT_S = 3_600.0
DEFAULT_INPUT_DESCRIPTION = (
    "what to do, with everything that it must know: it sees nothing of this conversation"
)
#: Errors of a child that reach the caller as they are; any other is the cause of a `ToolError`.
_UNCHANGED = (ToolError, CancellationError, ExecutionRehydrationRequiredError)


@dataclass(frozen=True, slots=True)
class AgentCall:
    """The body of the tool."""

    agent_class: type[Agent]
    keep: bool
    max_depth: int

    async def run(self, input: str, context: ToolContext) -> str:
        """Run the agent on `input` and return its final text.

        Raises:
            ToolError: the child failed (code ``child_failed``, with the child's error as its cause), was refused by a human
                (``child_rejected``) or by a filter (``child_blocked``); a `ToolError` of the child as it is.
            CancellationError: somebody cancelled the child.
            CleanupError: the child has ended and its process could not be freed.
        """
        environment = current_environment()
        if environment is None or environment.children is None:
            raise ConfigurationError(
                "an agent as a tool needs the runtime around it: it runs in an agent's own process only"
            )
        request = ChildRequest(
            agent_class=self.agent_class,
            input=input,
            execution_id=context.execution_id,
            tool_call_id=context.tool_call_id,
            is_stopped=context.is_cancelled,
            durable_context=context.durable_context,
            keep=self.keep,
            max_depth=self.max_depth,
        )
        return text_of(await environment.children.run(request))


def agent_tool(
    agent_class: type[Agent],
    *,
    name: str,
    description: str,
    input_description: str,
    keep: bool,
    max_depth: int,
    timeout_s: float,
) -> FunctionTool:
    """The tool behind `Agent.as_tool`. Raises `ConfigurationError`."""
    given: dict[str, object] = {
        "name": name,
        "description": description,
        "input_description": input_description,
        "keep": keep,
        "max_depth": max_depth,
    }

    def check(field: str, valid: bool, expected: str) -> None:
        if not valid:
            raise ConfigurationError(
                f"agent {agent_class.__name__}: as_tool: {field} must be {expected}, not {given[field]!r}"
            )

    for field in ("name", "description", "input_description"):
        value = given[field]
        check(field, isinstance(value, str) and bool(value.strip()), "non-empty text")
    check("keep", isinstance(given["keep"], bool), "True or False")
    check("max_depth", is_whole(given["max_depth"]) and max_depth > 0, "a positive whole number")
    call = AgentCall(agent_class, keep, max_depth)

    async def run(input: str, context: ToolContext) -> str:
        return await call.run(input, context)

    run.__doc__ = f"{description}\n\nArgs:\n    input: {' '.join(input_description.split())}\n"
    return tool(
        name=name,
        description=description,
        # the call's ids name the child, so a repeated call finds the one that it had started
        replay="idempotent",
        timeout_s=timeout_s,
        tool_origin="agent",
        approval_metadata={"agent": agent_class.definition().definition_id},
    )(run)


def text_of(result: RunResult) -> str:
    """What the end of a child is to its caller: its text, or an error as `AgentCall.run` raises it."""
    details = {"child_agent_id": result.agent_id, "child_execution_id": result.execution_id}
    if result.status is ExecutionStatus.COMPLETED:
        return result.output or ""
    cause = result.error.to_exception() if result.error is not None else None
    if isinstance(cause, _UNCHANGED):
        raise cause
    if result.status is ExecutionStatus.CANCELLED:
        raise CancellationError(
            f"child agent {result.agent_id!r} was cancelled: {result.terminal_reason or 'no reason given'}",
            details=details,
        )
    code, said = _ENDS.get(result.status, ("child_failed", "failed"))
    raise _failure(result, code, said, cause, details) from cause


_ENDS = {
    ExecutionStatus.REJECTED: ("child_rejected", "was ended by a human's refusal"),
    ExecutionStatus.BLOCKED: ("child_blocked", "was ended by a filter"),
}


def _failure(
    result: RunResult, code: str, said: str, cause: PhronomyError | None, details: dict[str, str]
) -> ToolError:
    reason = cause.message if cause is not None else result.terminal_reason
    text = f"child agent {result.agent_id!r} {said}" + (f": {reason}" if reason else "")
    return ToolError(text, code=code, details=dict(details))
