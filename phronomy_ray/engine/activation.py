"""Taking an agent over: ownership under a new epoch, and its state as the store has it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from phronomy_ray.commits import Hydration
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.options import InstanceOptions
from phronomy_ray.engine.migrating import check_definition, migrate
from phronomy_ray.engine.reading import check_options
from phronomy_ray.engine.store_client import StoreClient
from phronomy_ray.engine.turn_tools import TurnTools
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.journal import AgentRoot, ExecutionStatus, Lifecycle
from phronomy_ray.kernel.context import Conversation
from phronomy_ray.kernel.definition_change import COMMITS
from phronomy_ray.kernel.partial_view import newest_view, with_older
from phronomy_ray.kernel.progress import binding_of
from phronomy_ray.kernel.state import AgentState, contents_of
from phronomy_ray.parking import ParkReason, parked_error

#: Newest records that are read with the claim: all of a young agent, and little that is decoded and held for one that is only looked at.
RECENT_RECORDS = 16
#: Records of the first page that a model call asks for, and how many times as many each further one has.
OLDER_RECORDS = 256
OLDER_GROWTH = 4


async def take_over(
    agent_id: str,
    store: StoreClient,
    definition: AgentDefinition,
    options: InstanceOptions,
    turn_tools: TurnTools,
    *,
    owner: dict[str, Any],
    now: datetime,
    may_park: bool = True,
) -> AgentState:
    """Claim the agent, which fences every earlier owner, and read its state.

    Without `may_park` it is not asked whether the starts go in circles: this one follows a loss of the store, not a crash.

    Raises:
        NotFoundError: no such agent is stored.
        AgentParkedError: it is out of service, or is now: too many owners in a row have made no progress.
        DefinitionVersionError: it is stored under another definition, which this class does not accept; nothing was claimed.
        ConfigurationError: its running execution, or a request that waits, came with instance options that are not here; or the
            migration from an earlier definition failed.
        DefinitionUnavailableError: the registries of its running execution's tools cannot be had in this process.
    """
    port = store.store
    served = (definition.definition_id, definition.definition_version)
    migration = None
    hydration = None
    while hydration is None:
        hydration = await store.run(
            port.claim_served,
            agent_id,
            definition_id=served[0],
            definition_version=served[1],
            recent=RECENT_RECORDS,
            owner=owner,
            now=now,
        )
        if hydration is None:
            root = await store.run(port.load_root, agent_id)
            _check_in_service(root)
            migration = check_definition(definition, root.definition_id, root.definition_version, agent_id)
            served = (root.definition_id, root.definition_version)
            # accepted, or put back into service or migrated meanwhile: once more
    reason = crash_loop(hydration, definition.max_starts_without_progress, now) if may_park else None
    if reason is not None:
        await store.run(port.park_agent, agent_id, epoch=hydration.root.epoch, reason=reason)
        raise parked_error(agent_id, reason)
    commits = 0
    try:
        if migration is not None:
            hydration = await migrate(hydration, migration, definition, store, now=now)
            commits = COMMITS
        return replace(await _restore(hydration, store, options, turn_tools), commits=commits)
    except ConfigurationError:  # it has not even begun: that is no crash, however often it is tried
        await store.run(port.uncount_start, agent_id, epoch=hydration.root.epoch)
        raise


async def _restore(
    hydration: Hydration, store: StoreClient, options: InstanceOptions, turn_tools: TurnTools
) -> AgentState:
    """The state of what was found. Raises `ConfigurationError` as `take_over`."""
    port, agent_id = store.store, hydration.root.agent_id
    if hydration.execution is not None:
        check_options(options, hydration.execution.state.get("options", {}), agent_id)
    for request in hydration.queue:
        check_options(options, request.options, agent_id)
    execution = hydration.execution
    conversation = newest_view(
        hydration.recent,
        has_older=hydration.has_older,
        base=execution.base_position if execution is not None else None,
        knowledge=hydration.knowledge,
    )
    wanted = contents_of(hydration)
    contents = await store.run(port.read_contents, wanted) if wanted else {}
    tools = None
    if execution is not None:
        tools = await turn_tools.rebind(
            binding_of(execution.state), lambda hashes: store.run(port.read_contents, hashes)
        )
    return AgentState.hydrate(hydration, conversation, contents, tools)


def _check_in_service(root: AgentRoot) -> None:
    if root.lifecycle is Lifecycle.PARKED:
        raise parked_error(root.agent_id, root.parked)


def crash_loop(found: Hydration, max_starts: int, now: datetime) -> ParkReason | None:
    """Why an agent that is found like this has to be parked; ``None`` when it may go on.

    An idle agent that is woken and unloaded again and again, or one that waits for a human, is none: nothing of it runs.
    """
    root, execution = found.root, found.execution
    if root.starts_without_progress <= max_starts:
        return None
    if execution is None and not found.queue:
        return None
    if execution is not None and execution.status is ExecutionStatus.SUSPENDED:
        return None
    if execution is not None:
        what = f"execution {execution.execution_id} stayed in phase {execution.phase.value}"
    else:
        what = f"the queued request {found.queue[0].execution_id} did not begin"
    return ParkReason(
        "no_progress",
        f"{max_starts} starts in a row made no progress: {what}",
        now,
        starts=max_starts,
        execution_id=execution.execution_id if execution is not None else "",
        phase=execution.phase.value if execution is not None else "",
    )


async def read_older(agent_id: str, store: StoreClient, view: Conversation, *, page: int) -> Conversation:
    """`view` with up to `page` more records, which lie before those that were read.

    Nothing is added when they begin within one exchange: ask for more.
    """
    found = await store.run(
        store.store.read_journal,
        agent_id,
        before=view.floor,
        limit=page,
        newest_first=True,
        view_only=True,
    )
    return with_older(view, found[::-1], has_older=len(found) == page)
