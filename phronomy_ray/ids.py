"""Identifiers: who mints them, and the ones that are derived instead of drawn.

The driver mints `ExecutionId`s, so that a start whose answer was lost can be repeated and observed. Everything
below an execution is derived from it, so a recovered execution gives every model call, tool call and approval
the same id again, and a provider that reuses its call ids never merges two calls.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import NewType

from phronomy_ray.errors import InvalidInputError

AgentId = NewType("AgentId", str)
ExecutionId = NewType("ExecutionId", str)
ModelCallId = NewType("ModelCallId", str)
ToolCallId = NewType("ToolCallId", str)
ApprovalRequestId = NewType("ApprovalRequestId", str)
CommitId = NewType("CommitId", str)
RuleId = NewType("RuleId", str)

MAX_ID_CHARS = 200
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f]")


def new_execution_id() -> ExecutionId:
    """A fresh random execution id, ``ex_`` and 32 hex digits."""
    return ExecutionId(f"ex_{uuid.uuid4().hex}")


def new_edit_id() -> str:
    """A fresh random id of an edit of an agent, the same for its repetitions."""
    return f"ed_{uuid.uuid4().hex}"


def new_start_id() -> str:
    """A fresh random id of one start, the same for its repetitions."""
    return f"st_{uuid.uuid4().hex}"


def new_detach_id() -> str:
    """A fresh random id of one detach, the same for its repetitions."""
    return f"dt_{uuid.uuid4().hex}"


def new_rule_id() -> RuleId:
    """A fresh random id of a standing rule."""
    return RuleId(f"ru_{uuid.uuid4().hex}")


def check_id(value: object, what: str) -> str:
    """`value` if it can serve as an id given by a user.

    Raises:
        InvalidInputError: (a `ValueError`) not text, empty, too long, or with control characters.
    """
    if not isinstance(value, str) or not value.strip():
        raise InvalidInputError(f"{what} must be non-empty text, not {value!r}")
    if len(value) > MAX_ID_CHARS:
        raise InvalidInputError(f"{what} has {len(value)} characters; at most {MAX_ID_CHARS} are allowed")
    if _FORBIDDEN.search(value) or not value.isprintable():
        raise InvalidInputError(f"{what} {value!r} has characters that cannot be printed")
    return value


def model_call_id(execution_id: str, sequence: int) -> ModelCallId:
    """Id of the `sequence`-th model call (from 1) of an execution."""
    return ModelCallId(f"{execution_id}:m{sequence}")


def tool_call_id(
    execution_id: str, model_call: str, provider_call_id: str, position: int, tool_name: str
) -> ToolCallId:
    """Id of one tool call, derived from everything that tells two calls apart."""
    material = "\x00".join((execution_id, model_call, provider_call_id, str(position), tool_name))
    return ToolCallId("tc_" + hashlib.sha256(material.encode("utf-8", "replace")).hexdigest()[:32])


def approval_request_id(tool_call: str) -> ApprovalRequestId:
    """Id of the approval request of one tool call."""
    return ApprovalRequestId("ap_" + tool_call.removeprefix("tc_"))


def commit_id(agent_id: str, epoch: int, number: int) -> CommitId:
    """Id of the `number`-th commit of the owner with `epoch`."""
    return CommitId(f"{agent_id}:{epoch}:{number}")
