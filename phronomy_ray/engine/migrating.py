"""A stored agent of an earlier definition: whether it is accepted, and how it becomes one of the present definition."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from phronomy_ray.canonical_json import to_json_value
from phronomy_ray.commits import Hydration
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.migrations import DefinitionMigration, MapValues
from phronomy_ray.engine.store_client import StoreClient
from phronomy_ray.errors import ConfigurationError, DefinitionVersionError, SerializationError
from phronomy_ray.journal import ExecutionRow, QueuedRequest
from phronomy_ray.kernel.definition_change import Mapped, change_definition
from phronomy_ray.tools.off_loop import off_loop


def check_definition(
    definition: AgentDefinition, stored_id: str, stored_version: str, agent_id: str
) -> DefinitionMigration | None:
    """How an agent that is stored so goes on under `definition`; ``None`` when it is stored under this very one.

    Raises:
        DefinitionVersionError: it is stored under another one, which this class does not accept.
    """
    if (stored_id, stored_version) == (definition.definition_id, definition.definition_version):
        return None
    accepted = definition.migrations.get((stored_id, stored_version))
    if accepted is not None:
        return accepted
    raise DefinitionVersionError(
        f"agent {agent_id!r} is stored as {stored_id!r} version {stored_version!r}; this class is "
        f"{definition.definition_id!r} version {definition.definition_version!r}. Wake it where the class of that version is, or "
        f"let this one accept it: definition_migrations of {definition.cls.__name__}",
        details=_details(definition, stored_id, stored_version, agent_id),
    )


def check_live_definition(
    definition: AgentDefinition, live_id: str, live_version: str, agent_id: str
) -> None:
    """Raise `DefinitionVersionError` unless the live agent runs this very definition; its process has no other code."""
    if (live_id, live_version) != (definition.definition_id, definition.definition_version):
        raise DefinitionVersionError(
            f"agent {agent_id!r} is live as {live_id!r} version {live_version!r}; this class is "
            f"{definition.definition_id!r} version {definition.definition_version!r}. Unload it first: "
            f"phronomy unload {agent_id}",
            details=_details(definition, live_id, live_version, agent_id),
        )


async def migrate(
    hydration: Hydration,
    migration: DefinitionMigration,
    definition: AgentDefinition,
    store: StoreClient,
    *,
    now: datetime,
) -> Hydration:
    """Commit the present definition, and what the migration's functions make of the stored values.

    Raises:
        ConfigurationError: a function failed, or did not give a JSON mapping (code ``definition_migration``); nothing was changed.
    """
    root = hydration.root
    metadata = await _mapped(definition, root.agent_id, "metadata", migration.metadata, root.metadata)
    contexts: dict[str, dict[str, Any]] = {}
    owners: list[ExecutionRow | QueuedRequest] = [*hydration.queue]
    if hydration.execution is not None:
        owners.append(hydration.execution)
    for owner in owners:
        if owner.durable_context is not None and migration.durable_context is not None:
            contexts[owner.execution_id] = await _mapped(
                definition, root.agent_id, "durable_context", migration.durable_context, owner.durable_context
            )
    commit, after = change_definition(
        hydration,
        definition_id=definition.definition_id,
        definition_version=definition.definition_version,
        class_path=definition.class_path,
        mapped=Mapped(metadata, contexts),
        now=now,
    )
    await store.commit(commit)
    return after


async def _mapped(
    definition: AgentDefinition, agent_id: str, what: str, function: MapValues | None, value: dict[str, Any]
) -> dict[str, Any]:
    if function is None:
        return value

    def wrong(text: str) -> ConfigurationError:
        return ConfigurationError(
            f"agent {agent_id!r}: the migration of its {what} to {definition.definition_id!r} version "
            f"{definition.definition_version!r} {text}",
            code="definition_migration",
            details={"agent_id": agent_id, "field": what},
        )

    try:
        found = await off_loop(
            function, to_json_value(value), timeout_s=definition.hook_timeout_s, name="phronomy-migration"
        )
    except TimeoutError as error:
        raise wrong(f"did not return within {definition.hook_timeout_s:g} s") from error
    except Exception as error:
        raise wrong(f"failed: {type(error).__name__}: {error}") from error
    try:
        plain = to_json_value(found)
    except SerializationError as error:
        raise wrong(f"did not give plain JSON: {error.message}") from error
    if not isinstance(plain, dict):
        raise wrong(f"gave a {type(found).__name__}, not a mapping")
    return plain


def _details(definition: AgentDefinition, found_id: str, found_version: str, agent_id: str) -> dict[str, Any]:
    return {
        "agent_id": agent_id,
        "stored_id": found_id,
        "stored_version": found_version,
        "present_id": definition.definition_id,
        "present_version": definition.definition_version,
        "accepted": sorted([list(key) for key in definition.migrations]),
    }


__all__ = ["check_definition", "check_live_definition", "migrate"]
