"""What an approval is for: the tool, its schema and the very arguments, so that nothing else can run in its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phronomy_ray.canonical_json import content_hash, dumps
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.journal import ApprovalRow, ToolCallRow

FORMAT = 1
FIRST_VERSION = "1"


def fingerprint_of(
    row: ToolCallRow, tools: Mapping[str, BoundTool], definition: AgentDefinition
) -> dict[str, Any]:
    """What a human who approves this call now approves; plain JSON."""
    bound = tools.get(row.tool_name)
    return {
        "v": FORMAT,
        "tool_name": row.tool_name,
        "tool_version": row.contract.get("tool_version", FIRST_VERSION),
        "registry_key": bound.registry_key if bound is not None else "",
        "definition_version": definition.definition_version,
        "schema_hash": row.schema_hash,
        "arguments": arguments_hash(row),
    }


def arguments_hash(row: ToolCallRow) -> str:
    """Hash of the canonical arguments."""
    return content_hash(dumps(row.arguments))


def change_since(
    row: ToolCallRow,
    tools: Mapping[str, BoundTool],
    definition: AgentDefinition,
    approval: ApprovalRow | None = None,
) -> str | None:
    """Why this call must not run with `tools` as they are now, in words; ``None`` if it may.

    `approval` is the request that was answered about it, if there was one.
    """
    bound = tools.get(row.tool_name)
    if bound is None:
        return f"tool {row.tool_name!r} is gone"
    schema_hash = bound.spec.shown_hash
    if schema_hash != row.schema_hash:
        return f"tool {row.tool_name!r} has another schema than the model was shown"
    version = str(row.contract.get("tool_version", FIRST_VERSION))
    if version != bound.spec.version:
        return (
            f"tool {row.tool_name!r} is at version {bound.spec.version!r}; the call was made for {version!r}"
        )
    if approval is None or not approval.fingerprint:
        return None
    approved = approval.fingerprint
    if approved.get("definition_version") not in definition.accepted_versions:
        return f"the agent's definition is at another version than {approved.get('definition_version')!r}"
    if approved.get("registry_key", "") != bound.registry_key:
        return f"tool {row.tool_name!r} is another implementation than the one that was approved"
    if approved.get("arguments") != arguments_hash(row):
        return f"the arguments of tool {row.tool_name!r} are not those that were approved"
    return None
