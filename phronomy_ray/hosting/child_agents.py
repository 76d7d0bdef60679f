"""Child agents: what an agent's process does when one of its tools is another agent.

* A child is an ordinary agent, which lives where its class or the runtime says. Its ids are derived from the parent's id, execution and tool
  call, so a call that runs again after a crash finds the same child and the same execution, whatever became of them
  meanwhile: one child, one result.
* The lineage (definition ids from the first parent down) stands in the child's metadata, where its own children find it.
* A child's life ends with its call: cancelled if it still works, then unloaded; its journal stays in the store. What is left
  to do when the call itself may not wait any longer goes on behind it and is logged.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tenacity import retry_if_exception_type, stop_after_attempt, wait_exponential
from tenacity.asyncio import AsyncRetrying

from phronomy_ray.definition.options import InstanceOptions
from phronomy_ray.definition.placement import Placement
from phronomy_ray.errors import (
    AgentAlreadyExistsError,
    AgentBusyError,
    CleanupError,
    DefinitionUnavailableError,
    ErrorRecord,
    PhronomyError,
    StoreUnavailableError,
    ToolError,
)
from phronomy_ray.hosting.agent_client import SLICE_S, STORE_POLL_S, AgentClient
from phronomy_ray.hosting.agent_port import AgentDirectory
from phronomy_ray.hosting.wiring import AgentWiring, DefinitionSource, NewAgentRequest
from phronomy_ray.journal import ToolCallStatus
from phronomy_ray.results import RunResult
from phronomy_ray.retention import PARENT_KEY
from phronomy_ray.store.port import Store
from phronomy_ray.tool_environment import ChildRequest

_LOG = logging.getLogger("phronomy_ray.hosting")
#: Key of a child's metadata that says whose child it is.
LINEAGE_KEY = PARENT_KEY
#: How often the unload of a child is tried, its own patience with an unreachable actor not counted.
UNLOAD_ATTEMPTS = 3
#: First wait between two of them, in seconds; it doubles.
UNLOAD_WAIT_S = 0.2
#: Part of the parent's quiescence time that a cancelled call waits for its child's end.
CANCEL_WAIT_PART = 0.8
#: How long a cancelled child's end is waited for behind the call, in seconds.
CANCELLED_END_S = 120.0
#: How calls stand that were stopped, or that nobody knows anything of.
_STOPPED = frozenset({ToolCallStatus.CANCELLED, ToolCallStatus.UNKNOWN, ToolCallStatus.TIMED_OUT})
#: A parent's id stands at the beginning of its child's, up to this many characters.
_SHOWN_CHARS = 120


@dataclass(frozen=True, slots=True)
class ParentView:
    """What a runner has to know of the agent whose tools it serves; asked when it is needed."""

    definition_id: Callable[[], str]
    #: Metadata of the agent's root.
    metadata: Callable[[], Mapping[str, Any]]
    #: Whether bodies of an execution should stop because it was cancelled (and not because its owner stopped).
    is_cancelled: Callable[[str], bool]
    #: How long a cancelled body is waited for, in seconds.
    quiescence_timeout_s: Callable[[], float]


class HostedChildAgents:
    """`ChildAgents` of one agent. Use it on the agent's event loop."""

    def __init__(
        self,
        agent_id: str,
        wiring: AgentWiring,
        store: Store,
        parent: ParentView,
        directory: AgentDirectory,
    ) -> None:
        self._agent_id = agent_id
        self._wiring = wiring
        self._store = store
        self._parent = parent
        self._directory = directory
        #: Work that goes on behind a call.
        self._behind: set[asyncio.Task[None]] = set()

    async def run(self, request: ChildRequest) -> RunResult:
        """As `ChildAgents.run`."""
        lineage = next_lineage(
            own_lineage(self._parent), request.agent_class.definition().definition_id, request.max_depth
        )
        child = _Child(*child_ids(self._agent_id, request.execution_id, request.tool_call_id))
        client = AgentClient(child.agent_id, self._directory, self._store, self._wiring_of(request))
        begun = asyncio.get_running_loop().create_task(self._begin(client, child, request, lineage))
        begun.add_done_callback(_looked_at)
        try:
            await asyncio.shield(begun)
            result = await _end_of(client, child.execution_id)
        except asyncio.CancelledError:
            # a body is also stopped when its owner stops in the middle of the call; then the next owner's call goes on
            # with this child
            if not request.is_stopped() or self._parent.is_cancelled(request.execution_id):
                await self._abandon(client, child, begun, keep=request.keep)
            raise
        except PhronomyError:
            # it could not be started, or nobody can say any more what becomes of it
            await self._abandon(client, child, begun, keep=request.keep)
            raise
        if not request.keep:
            await _free(client, child, result)
        return result

    def _wiring_of(self, request: ChildRequest) -> Callable[[], Coroutine[Any, Any, AgentWiring]]:
        path = request.agent_class.definition().class_path
        source = DefinitionSource(
            path, None if path else request.agent_class, self._wiring.definition.registry
        )

        async def wiring() -> AgentWiring:
            return self._wiring_for(source, request.agent_class.placement)

        return wiring

    def _wiring_for(self, source: DefinitionSource, own: Placement | None = None) -> AgentWiring:
        # what is set for the parent's instance is not the child's
        return replace(
            self._wiring,
            definition=source,
            options=InstanceOptions(),
            own_placement=own,
            knows_own_placement=True,
        )

    async def _begin(
        self, client: AgentClient, child: _Child, request: ChildRequest, lineage: list[str]
    ) -> None:
        """Create the child or find it, and start its execution or find that."""
        metadata = {
            LINEAGE_KEY: {
                "agent_id": self._agent_id,
                "execution_id": request.execution_id,
                "tool_call_id": request.tool_call_id,
                "lineage": lineage,
            }
        }
        wiring = await self._wiring_of(request)()
        try:
            new = NewAgentRequest(metadata=metadata, request_id=child.execution_id)
            client.use(await self._directory.create(child.agent_id, wiring, new))
        except AgentAlreadyExistsError:
            client.use(await self._directory.wake(child.agent_id, wiring))
        await client.call("start", child.execution_id, request.input, request.durable_context, False)

    async def _abandon(
        self, client: AgentClient, child: _Child, begun: asyncio.Task[None], *, keep: bool
    ) -> None:
        """Cancel the child and free it; waits for that as long as a cancelled body may."""

        async def end() -> None:
            await asyncio.wait({begun})  # an admission that is under way would come after the cancellation
            started = not begun.cancelled() and begun.exception() is None
            await _cancel_and_free(client, child, started=started, keep=keep)

        ending = self._spawn(end())
        await asyncio.wait({ending}, timeout=CANCEL_WAIT_PART * self._parent.quiescence_timeout_s())

    def reap(self) -> None:
        """As `ChildAgents.reap`."""
        self._spawn(self._reap())

    async def _reap(self) -> None:
        try:
            for child in await asyncio.to_thread(self._left_behind):
                _LOG.info("child agent %s was left behind by a cancelled call and is ended", child.agent_id)
                wiring = self._wiring_of_stored(child.agent_id)
                client = AgentClient(child.agent_id, self._directory, self._store, wiring)
                live = await client.find()
                if live is not None:
                    client.use(live)
                await _cancel_and_free(client, child, started=True, keep=False)
        except PhronomyError as error:
            _LOG.warning("agent %s: its former children are not known: %s", self._agent_id, error)

    def _left_behind(self) -> list[_Child]:
        """Children of the newest execution that work although it was cancelled; reads the store."""
        found = []
        for execution in self._store.list_executions(agent_id=self._agent_id, limit=1):
            if execution.cancel_requested_at is None:
                break
            for row in self._store.tool_calls(execution.execution_id):
                if row.status not in _STOPPED:
                    continue
                child = _Child(*child_ids(self._agent_id, execution.execution_id, row.tool_call_id))
                theirs = self._store.find_execution(child.execution_id)
                if theirs is not None and not theirs.status.is_terminal:
                    found.append(child)
        return found

    def _wiring_of_stored(self, agent_id: str) -> Callable[[], Coroutine[Any, Any, AgentWiring]]:
        async def wiring() -> AgentWiring:
            root = await asyncio.to_thread(self._store.load_root, agent_id)
            if not root.class_path:
                raise DefinitionUnavailableError(
                    f"child agent {agent_id!r} is of a class of a driver's own script and cannot be woken by its id"
                )
            source = DefinitionSource(root.class_path, None, self._wiring.definition.registry)
            return replace(self._wiring_for(source), knows_own_placement=False)

        return wiring

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)
        return task


@dataclass(frozen=True, slots=True)
class _Child:
    agent_id: str
    execution_id: str


def child_ids(agent_id: str, execution_id: str, tool_call_id: str) -> tuple[str, str]:
    """Ids of the child agent and of its execution: the same for the same call."""
    material = "\x00".join((agent_id, execution_id, tool_call_id)).encode("utf-8", "replace")
    digest = hashlib.sha256(material).hexdigest()[:32]
    return f"{agent_id[:_SHOWN_CHARS]}.{digest[:16]}", f"ex_{digest}"


def own_lineage(parent: ParentView) -> list[str]:
    """Definition ids from the first parent down to this agent."""
    entry = parent.metadata().get(LINEAGE_KEY)
    lineage = entry.get("lineage") if isinstance(entry, Mapping) else None
    if isinstance(lineage, list) and lineage:
        return [str(item) for item in lineage]
    return [parent.definition_id()]


def next_lineage(lineage: list[str], definition_id: str, max_depth: int) -> list[str]:
    """The lineage of a child.

    Raises:
        ToolError: code ``agent_cycle``: the child's definition stands in it already; ``agent_depth``: it is too long.
    """
    details = {"lineage": lineage, "child": definition_id}
    if definition_id in lineage:
        raise ToolError(
            f"agent {definition_id!r} is already at work above this call ({' > '.join(lineage)})",
            code="agent_cycle",
            details=details,
        )
    if len(lineage) > max_depth:
        raise ToolError(
            f"agents may call agents {max_depth} levels deep; {definition_id!r} would be level {len(lineage)}",
            code="agent_depth",
            details=details,
        )
    return [*lineage, definition_id]


async def _end_of(client: AgentClient, execution_id: str) -> RunResult:
    """The child's result. A database that is away is waited for: the call's own time limit ends that."""
    while True:
        try:
            result = await client.wait_once(execution_id, "terminal", SLICE_S)
        except StoreUnavailableError as error:
            _LOG.warning("child agent %s: the store cannot be reached: %s", client.agent_id, error)
            await asyncio.sleep(STORE_POLL_S)
            continue
        if result is not None:
            return result


async def _free(client: AgentClient, child: _Child, result: RunResult) -> None:
    """Unload the child; only that is repeated. Raises `CleanupError`."""
    failures: list[ErrorRecord] = []
    last: Exception | None = None
    for attempt in range(UNLOAD_ATTEMPTS):
        if attempt:
            await asyncio.sleep(UNLOAD_WAIT_S * 2**attempt)
        try:
            await client.unload()
            return
        except PhronomyError as error:
            failures.append(ErrorRecord.from_exception(error))
            last = error
    raise CleanupError(
        f"child agent {child.agent_id!r} has ended ({result.status.value}) and cannot be unloaded: "
        f"{failures[-1].message}",
        details={
            "child_agent_id": child.agent_id,
            "child_execution_id": child.execution_id,
            "result": {"status": result.status.value, "output": result.output},
            "causes": [failure.to_wire() for failure in failures],
        },
    ) from last


async def _cancel_and_free(client: AgentClient, child: _Child, *, started: bool, keep: bool) -> None:
    """End a child that nobody waits for. Never raises: what fails is logged.

    One that was not `started` has no execution, but perhaps a process.
    """
    try:
        async with asyncio.timeout(CANCELLED_END_S):
            if started:
                await client.call("cancel", child.execution_id, "the parent's call ended")
                await _end_of(client, child.execution_id)
            if keep:
                return
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(AgentBusyError),
                stop=stop_after_attempt(UNLOAD_ATTEMPTS),
                wait=wait_exponential(multiplier=UNLOAD_WAIT_S, max=2.0),
                reraise=True,
            ):
                with attempt:
                    await client.unload()
    except (PhronomyError, TimeoutError) as error:
        _LOG.warning("child agent %s was cancelled and could not be freed: %s", child.agent_id, error)
    except Exception:  # noqa: BLE001 - nobody waits for this any more: it must be written down
        _LOG.exception("child agent %s was cancelled and could not be freed", child.agent_id)


def _looked_at(task: asyncio.Task[None]) -> None:
    """Look at the outcome of a task that perhaps nobody waits for any more, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
