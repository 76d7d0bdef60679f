"""Taking an agent over: ownership under a new epoch, and its state as the store has it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.options import InstanceOptions
from phronomy_ray.engine.reading import check_definition, check_options
from phronomy_ray.engine.store_client import StoreClient
from phronomy_ray.engine.turn_tools import TurnTools
from phronomy_ray.journal import JournalRecord
from phronomy_ray.kernel.context import Conversation
from phronomy_ray.kernel.progress import binding_of
from phronomy_ray.kernel.state import AgentState, contents_of

#: Records that are read at once.
JOURNAL_PAGE = 2_000


async def take_over(
    agent_id: str,
    store: StoreClient,
    definition: AgentDefinition,
    options: InstanceOptions,
    turn_tools: TurnTools,
    *,
    owner: dict[str, Any],
    now: datetime,
) -> AgentState:
    """Claim the agent, which fences every earlier owner, and read its state.

    Raises:
        NotFoundError: no such agent is stored.
        ConfigurationError: it is stored under another class or definition version (nothing was claimed), or its running
            execution, or a request that waits, came with instance options that are not here.
        DefinitionUnavailableError: the registries of its running execution's tools cannot be had in this process.
    """
    port = store.store
    root = await store.run(port.load_root, agent_id)
    check_definition(definition, root.definition_id, root.definition_version, agent_id)
    hydration = await store.run(port.claim, agent_id, owner=owner, now=now)
    if hydration.execution is not None:
        check_options(options, hydration.execution.state.get("options", {}), agent_id)
    for request in hydration.queue:
        check_options(options, request.options, agent_id)
    conversation = Conversation().apply(await _read_journal(agent_id, store))
    contents = {digest: await store.run(port.read_content, digest) for digest in contents_of(hydration)}
    tools = None
    if hydration.execution is not None:
        tools = await turn_tools.rebind(
            binding_of(hydration.execution.state), lambda digest: store.run(port.read_content, digest)
        )
    return AgentState.hydrate(hydration, conversation, contents, tools)


async def _read_journal(agent_id: str, store: StoreClient) -> list[JournalRecord]:
    records: list[JournalRecord] = []
    after = 0
    while True:
        page = await store.run(store.store.read_journal, agent_id, after=after, limit=JOURNAL_PAGE)
        records.extend(page)
        if len(page) < JOURNAL_PAGE:
            return records
        after = page[-1].position
