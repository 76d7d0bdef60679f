"""phronomy-ray: durable LLM agents as named Ray actors, with a SQL store that decides.

The names here are the public API. They are loaded on first use, so that a module of tools imports quickly and nothing
but the model gateway ever imports litellm.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phronomy_ray.approvals import (
        ApprovalEvaluationRequest,
        ApprovalVerdict,
        RuleEffect,
        StandingRule,
    )
    from phronomy_ray.assembly.capabilities import CapabilityRegistry, Provider
    from phronomy_ray.assembly.registry import ToolRegistry
    from phronomy_ray.assembly.sources import AssemblySources
    from phronomy_ray.cancel_tokens import CancellationToken, Deadline
    from phronomy_ray.definition.agent import Agent
    from phronomy_ray.definition.filters import Filter, FilterContext, FilterSite, block
    from phronomy_ray.definition.hooks import LLMInputBuildContext, LLMInputPatch
    from phronomy_ray.definition.migrations import DefinitionMigration
    from phronomy_ray.definition.options import InstanceOptions
    from phronomy_ray.definition.placement import Dedicated, InProcess, Packed
    from phronomy_ray.definition.tool import (
        ExecutionMode,
        OnError,
        OnSchemaError,
        RayOptions,
        Replay,
        Tool,
        ToolCompletion,
        tool,
    )
    from phronomy_ray.delivery.signing import verify_webhook
    from phronomy_ray.detachment import ApprovalWait
    from phronomy_ray.errors import PhronomyError
    from phronomy_ray.events import Event, EventType
    from phronomy_ray.journal import ExecutionStatus
    from phronomy_ray.messages import Message, ToolCallRequest, Usage
    from phronomy_ray.ordered_delivery import OrderedDelivery
    from phronomy_ray.reservations import ExecutionObservation, ReservedExecution
    from phronomy_ray.results import ApprovalDecision, ApprovalRequest, RunResult, UnresolvedCall
    from phronomy_ray.retention import RetentionPolicy
    from phronomy_ray.runtime.agent_handle import AgentHandle
    from phronomy_ray.runtime.execution_handle import ExecutionHandle
    from phronomy_ray.runtime.hosted import HostedExecution
    from phronomy_ray.runtime.runtime import Runtime
    from phronomy_ray.runtime.scope import Scope
    from phronomy_ray.runtime.traces import ToolTrace
    from phronomy_ray.subscriptions import Callback, DeliveredEvent, Webhook
    from phronomy_ray.supervision.limits import SupervisionLimits
    from phronomy_ray.tool_calls import ToolContext, ToolOrigin

__version__ = "0.1.0"

_HOMES = {
    "Agent": "definition.agent",
    "AgentHandle": "runtime.agent_handle",
    "ApprovalDecision": "results",
    "ApprovalEvaluationRequest": "approvals",
    "ApprovalRequest": "results",
    "ApprovalVerdict": "approvals",
    "ApprovalWait": "detachment",
    "AssemblySources": "assembly.sources",
    "Callback": "subscriptions",
    "CancellationToken": "cancel_tokens",
    "CapabilityRegistry": "assembly.capabilities",
    "Deadline": "cancel_tokens",
    "Dedicated": "definition.placement",
    "DefinitionMigration": "definition.migrations",
    "DeliveredEvent": "subscriptions",
    "Event": "events",
    "EventType": "events",
    "ExecutionHandle": "runtime.execution_handle",
    "ExecutionMode": "definition.tool",
    "ExecutionObservation": "reservations",
    "ExecutionStatus": "journal",
    "Filter": "definition.filters",
    "FilterContext": "definition.filters",
    "FilterSite": "definition.filters",
    "HostedExecution": "runtime.hosted",
    "InProcess": "definition.placement",
    "InstanceOptions": "definition.options",
    "LLMInputBuildContext": "definition.hooks",
    "LLMInputPatch": "definition.hooks",
    "Message": "messages",
    "OnError": "definition.tool",
    "OnSchemaError": "definition.tool",
    "OrderedDelivery": "ordered_delivery",
    "Packed": "definition.placement",
    "PhronomyError": "errors",
    "Provider": "assembly.capabilities",
    "RayOptions": "definition.tool",
    "Replay": "definition.tool",
    "RetentionPolicy": "retention",
    "ReservedExecution": "reservations",
    "RuleEffect": "approvals",
    "RunResult": "results",
    "Runtime": "runtime.runtime",
    "Scope": "runtime.scope",
    "StandingRule": "approvals",
    "SupervisionLimits": "supervision.limits",
    "Tool": "definition.tool",
    "ToolCallRequest": "messages",
    "ToolCompletion": "definition.tool",
    "ToolContext": "tool_calls",
    "ToolOrigin": "tool_calls",
    "ToolRegistry": "assembly.registry",
    "ToolTrace": "runtime.traces",
    "UnresolvedCall": "results",
    "Usage": "messages",
    "Webhook": "subscriptions",
    "block": "definition.filters",
    "tool": "definition.tool",
    "verify_webhook": "delivery.signing",
}

__all__ = [
    "Agent",
    "AgentHandle",
    "ApprovalDecision",
    "ApprovalEvaluationRequest",
    "ApprovalRequest",
    "ApprovalVerdict",
    "ApprovalWait",
    "AssemblySources",
    "Callback",
    "CancellationToken",
    "CapabilityRegistry",
    "Deadline",
    "Dedicated",
    "DefinitionMigration",
    "DeliveredEvent",
    "Event",
    "EventType",
    "ExecutionHandle",
    "ExecutionMode",
    "ExecutionObservation",
    "ExecutionStatus",
    "Filter",
    "FilterContext",
    "FilterSite",
    "HostedExecution",
    "InProcess",
    "InstanceOptions",
    "LLMInputBuildContext",
    "LLMInputPatch",
    "Message",
    "OnError",
    "OnSchemaError",
    "OrderedDelivery",
    "Packed",
    "PhronomyError",
    "Provider",
    "RayOptions",
    "Replay",
    "ReservedExecution",
    "RetentionPolicy",
    "RuleEffect",
    "RunResult",
    "Runtime",
    "Scope",
    "StandingRule",
    "SupervisionLimits",
    "Tool",
    "ToolCallRequest",
    "ToolCompletion",
    "ToolContext",
    "ToolOrigin",
    "ToolRegistry",
    "ToolTrace",
    "UnresolvedCall",
    "Usage",
    "Webhook",
    "block",
    "tool",
    "verify_webhook",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'phronomy_ray' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"phronomy_ray.{home}"), name)
    globals()[name] = value
    return value
