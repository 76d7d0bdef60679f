"""Preflight of one batch: from what the model wrote to calls that are authorised, gated or already answered.

A call that cannot run (unknown name, broken or wrong arguments) is answered with a short error that the model can
correct, or ends the execution after its siblings where the tool's ``on_schema_error`` says so; the rest of the batch runs
either way. Everything here happens before any approval, so what a human sees is what runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from phronomy_ray.approvals import StandingRule
from phronomy_ray.definition.schema import ArgumentError
from phronomy_ray.definition.tool import OnSchemaError, Replay, ToolSpec
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.errors import ErrorRecord
from phronomy_ray.ids import tool_call_id
from phronomy_ray.journal import ToolCallRow, ToolCallStatus
from phronomy_ray.kernel.authorization import gate
from phronomy_ray.kernel.fingerprint import FIRST_VERSION
from phronomy_ray.kernel.tool_call import ToolCall, error_wire
from phronomy_ray.kernel.transitions import ToolPhase
from phronomy_ray.messages import ToolCallRequest

#: How many tool names an unknown-tool answer lists.
MAX_NAMES = 30
#: How much of an unknown name it repeats.
MAX_NAME_CHARS = 80
CONTRACT_FORMAT = 1


def prepare_batch(
    requests: tuple[ToolCallRequest, ...],
    tools: Mapping[str, BoundTool],
    *,
    agent_id: str,
    execution_id: str,
    model_call_id: str,
    now: datetime,
    rules: Sequence[StandingRule] = (),
    has_policy: bool = False,
) -> tuple[ToolCall, ...]:
    """One `ToolCall` per request, in request order: completed (refused), or as `authorization.gate` says."""
    calls = []
    for position, request in enumerate(requests):
        bound = tools.get(request.name)
        call, arguments = _prepare(
            request,
            bound,
            tools,
            position=position,
            agent_id=agent_id,
            execution_id=execution_id,
            model_call_id=model_call_id,
            now=now,
        )
        if bound is not None and arguments is not None:
            call = gate(call, bound, arguments, rules=rules, has_policy=has_policy, now=now)
        calls.append(call)
    return tuple(calls)


def _prepare(
    request: ToolCallRequest,
    bound: BoundTool | None,
    tools: Mapping[str, BoundTool],
    *,
    position: int,
    agent_id: str,
    execution_id: str,
    model_call_id: str,
    now: datetime,
) -> tuple[ToolCall, dict[str, Any] | None]:
    """The call, and its arguments unless it was refused."""
    row = ToolCallRow(
        tool_call_id=tool_call_id(execution_id, model_call_id, request.id, position, request.name),
        execution_id=execution_id,
        agent_id=agent_id,
        model_call_id=model_call_id,
        position=position,
        provider_call_id=request.id,
        tool_name=request.name,
        arguments=None,
        status=ToolCallStatus.INTENT,
        replay=(bound.spec.replay if bound else Replay.NEVER).value,
        requires_approval=bound is not None and bound.spec.requires_approval is True,
        schema_hash=bound.spec.shown_hash if bound else "",
        created_at=now,
        contract=_contract(bound.spec) if bound else {},
    )
    call = ToolCall(ToolPhase.IDLE, row).move(ToolPhase.VALIDATING)
    if bound is None:
        return _refuse(call, "unknown_tool", _unknown_tool(request.name, tools), now), None
    rule = bound.spec.on_schema_error
    try:
        arguments = bound.spec.parameters.decode(request.arguments, coerce=rule is OnSchemaError.COERCE)
    except ArgumentError as error:
        # the model is told what was wrong with what it wrote; the record must not quote a hidden parameter
        shown = "the arguments do not fit the schema" if bound.spec.redact_params else str(error)
        fatal = rule is OnSchemaError.RAISE
        return _refuse(call, "invalid_arguments", str(error), now, recorded=shown, fatal=fatal), None
    return call, arguments


def _contract(spec: ToolSpec) -> dict[str, Any]:
    """What the call was made for beside its schema; empty for a tool at its first version."""
    return {"v": CONTRACT_FORMAT, "tool_version": spec.version} if spec.version != FIRST_VERSION else {}


def _refuse(
    call: ToolCall, code: str, message: str, now: datetime, *, recorded: str = "", fatal: bool = False
) -> ToolCall:
    """Answer a call that cannot run; a `fatal` one ends the execution once its siblings have finished."""
    return call.move(
        ToolPhase.FAILED if fatal else ToolPhase.COMPLETED,
        status=ToolCallStatus.FAILED,
        model_text=f"Error ({code}): {message}",
        error=error_wire(ErrorRecord("ToolError", code, recorded or message), fatal=fatal),
        ended_at=now,
    )


def _unknown_tool(name: str, tools: Mapping[str, BoundTool]) -> str:
    if not tools:
        return f"there is no tool {name[:MAX_NAME_CHARS]!r}; this agent has no tools"
    close = difflib.get_close_matches(name, list(tools), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"there is no tool {name[:MAX_NAME_CHARS]!r}{hint} Available: {', '.join(list(tools)[:MAX_NAMES])}"
