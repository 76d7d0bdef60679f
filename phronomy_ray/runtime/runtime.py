"""`Runtime`: a driver's entry to agents on a Ray cluster and their store."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from phronomy_ray.clock import SystemClock
from phronomy_ray.definition.agent import Agent
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.options import InstanceOptions
from phronomy_ray.definition.placement import InProcess, Placement
from phronomy_ray.embedding import EmbeddingPort
from phronomy_ray.engine.creation import check_knowledge, new_agent
from phronomy_ray.engine.migrating import check_definition, check_live_definition
from phronomy_ray.engine.reading import load_status
from phronomy_ray.errors import (
    AgentAlreadyExistsError,
    CleanupError,
    ConfigurationError,
    ExecutionRehydrationRequiredError,
    NotFoundError,
)
from phronomy_ray.hosting.agent_client import AgentClient
from phronomy_ray.hosting.agent_port import AgentDirectory, live_status, status_of
from phronomy_ray.hosting.waking import wiring_for
from phronomy_ray.hosting.wiring import AgentWiring, DefinitionSource, NewAgentRequest
from phronomy_ray.ids import check_id
from phronomy_ray.journal import AgentRoot, ExecutionRow
from phronomy_ray.messages import Message
from phronomy_ray.results import ApprovalRequest, RunResult
from phronomy_ray.runtime.agent_handle import AgentHandle
from phronomy_ray.runtime.bridge import blocking
from phronomy_ray.runtime.config import RuntimeConfig, resolve_config
from phronomy_ray.runtime.execution_handle import ExecutionHandle
from phronomy_ray.runtime.homes import open_home
from phronomy_ray.runtime.reserved_runs import ReservedRuns
from phronomy_ray.runtime.retentions import Retentions
from phronomy_ray.runtime.rules import StandingRules
from phronomy_ray.runtime.scope import Scope
from phronomy_ray.runtime.subscriptions import Subscriptions
from phronomy_ray.runtime.supervision import Supervision
from phronomy_ray.runtime.traces import DEFAULT_LIMIT, ToolTrace, read_traces
from phronomy_ray.store.port import Store
from phronomy_ray.supervision.limits import SupervisionLimits
from phronomy_ray.tools.pool_config import PoolConfig
from phronomy_ray.worker_inputs import check_worker_input


class Runtime(ReservedRuns):
    """Connects to Ray and to the store; a context manager. Leaving it closes this driver's side only.

    Args:
        address: ``local`` starts a Ray of its own, ``auto`` or ``host:port`` connects (``PHRONOMY_RAY_ADDRESS``,
            ``RAY_ADDRESS``; default ``local``). A Ray that is already initialised in this process is used as it is.
        namespace: Ray namespace of the actors (``PHRONOMY_NAMESPACE``; default ``phronomy``).
        store: ``sqlite:///file`` or ``postgresql://...`` (``PHRONOMY_STORE_URL``; default ``sqlite:///phronomy.db``).
            An empty database gets its schema.
        content_key: key for content encryption (``PHRONOMY_CONTENT_KEY``).
        model_gateways: number of model gateway actors (``PHRONOMY_MODEL_GATEWAYS``; default 2).
        placement: where agents live (``PHRONOMY_PLACEMENT``: ``dedicated``, ``packed:<hosts>`` or ``in-process``; default `Dedicated()`).
        registry: ``module:function`` that gives the tool registries of agents whose class names none
            (``PHRONOMY_REGISTRY``); every driver that wakes such agents needs the same.
        pools: bounds of the offload pools that tools name, by name; a pool that is not here has the default bounds.
        working_dir, py_modules, runtime_env: how Ray ships your modules to the nodes; none by default.
        ray_options: more arguments for ``ray.init``.
        before_llm_input: hooks that look at every model call of every agent, before those of its class.
        max_result_chars: how much of a result a model is shown, for tools that set no limit of their own.
        supervisor: whether a supervisor goes on with what was interrupted (``PHRONOMY_SUPERVISOR``: on or off; default on). It is
            started behind the first agent that is created or woken, or at once when the store holds interrupted work; with
            `SupervisionLimits` it is started with these, unless one runs already.

    Raises:
        ConfigurationError: a value cannot be used, or an SQLite file lies on another host.
        SchemaVersionError: the database has another schema version; see ``phronomy db``.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        namespace: str | None = None,
        store: str | None = None,
        content_key: str | None = None,
        model_gateways: int | None = None,
        placement: Placement | None = None,
        registry: str | None = None,
        pools: Mapping[str, PoolConfig] | None = None,
        working_dir: str | os.PathLike[str] | None = None,
        py_modules: Sequence[Any] = (),
        runtime_env: Mapping[str, Any] | None = None,
        ray_options: Mapping[str, Any] | None = None,
        before_llm_input: Sequence[Any] = (),
        max_result_chars: int | None = None,
        supervisor: bool | SupervisionLimits | None = None,
    ) -> None:
        self.config: RuntimeConfig = resolve_config(
            address=address,
            namespace=namespace,
            store=store,
            content_key=content_key,
            model_gateways=model_gateways,
            placement=placement,
            registry=registry,
            pools=pools,
            working_dir=working_dir,
            py_modules=py_modules,
            runtime_env=runtime_env,
            ray_options=ray_options,
            before_llm_input=before_llm_input,
            max_result_chars=max_result_chars,
            supervisor=supervisor,
        )
        opened = _open_store(self.config)
        try:
            home = open_home(self.config, opened)
        except BaseException:
            opened.close()
            raise
        super().__init__(opened, home)
        self._supervision = Supervision(self.config, opened, home, self._bridge)
        self._supervision.look()
        #: How agents are found and woken.
        self.directory = home.directory
        #: Standing rules of the store.
        self.rules = StandingRules(lambda: self.store, lambda: self._bridge)
        #: Holds on what is stored.
        self.retentions = Retentions(lambda: self.store, lambda: self._bridge)
        #: Who is told of events, for certain.
        self.subscriptions = Subscriptions(
            lambda: self.store, lambda: self._bridge, on_add=self._supervision.begin
        )

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close this driver's side; a Ray that this runtime started or connected is left. Idempotent.

        Agents in this process end with it; what they work on goes on from the store.
        """
        self._bridge.close()
        self._home.close()
        self.store.close()

    # --- agents ------------------------------------------------------------------------------------------------

    async def create_async(
        self,
        agent_class: type[Agent],
        agent_id: str,
        *,
        context: Iterable[Message | dict[str, Any]] = (),
        knowledge: Iterable[str | dict[str, Any]] = (),
        metadata: dict[str, Any] | None = None,
        options: InstanceOptions | None = None,
    ) -> AgentHandle:
        """Create an agent; root, imported conversation and first knowledge are one transaction.

        Args:
            agent_class: its definition.
            agent_id: non-empty text.
            context: an existing conversation; a malformed tool exchange is refused, never repaired.
            knowledge: texts, or mappings with ``content`` and ``metadata``.
            metadata: JSON mapping kept with the root.
            options: filters, hooks and policy of this instance; see `InstanceOptions` for how long they hold.

        Raises:
            ConfigurationError: the options cannot travel to the actor.
            AgentAlreadyExistsError: the id exists, live or stored.
            ValueError: the id is empty (`InvalidInputError`), or `InvalidConversationError`.
            DefinitionUnavailableError: the class cannot be imported on the node.
        """
        check_id(agent_id, "agent_id")
        self._check_open()
        definition = agent_class.definition()
        wiring = self._wiring(agent_class, options)
        request = NewAgentRequest(
            context=tuple(Message.from_wire(item).to_wire() for item in context),
            knowledge=tuple(check_knowledge(item) for item in knowledge),
            metadata=dict(metadata or {}),
            request_id=uuid.uuid4().hex,
        )
        # the same checks as in the actor, before any process is started for a malformed request
        new_agent(
            agent_id,
            definition,
            context=request.context,
            knowledge=request.knowledge,
            metadata=request.metadata,
            now=SystemClock().now(),
        )
        if await live_status(self.directory, agent_id) is not None or await self._root(agent_id) is not None:
            raise AgentAlreadyExistsError(f"agent {agent_id!r} exists", details={"agent_id": agent_id})
        live = await self.directory.create(agent_id, wiring, request)
        self._supervision.begin()
        return AgentHandle(self, agent_id, wiring, live=live)

    create = blocking(create_async)

    async def load_async(
        self, agent_class: type[Agent], agent_id: str, *, options: InstanceOptions | None = None
    ) -> AgentHandle:
        """A stored agent, live: hydrated once, however many drivers ask. A live one is used without reading the store.

        `options` are those of `create_async`; ``None`` takes a live agent with whatever it has.

        Raises:
            NotFoundError: it is not stored.
            DefinitionVersionError: it is stored under another definition or version, which this class does not accept, or is
                live under another one.
            ConfigurationError: its live actor uses another store or has other options, or the options cannot travel to the
                actor.
        """
        check_id(agent_id, "agent_id")
        self._check_open()
        definition = agent_class.definition()
        wiring = self._wiring(agent_class, options)
        found = await live_status(self.directory, agent_id)
        if found is not None:
            live, status = found
            self._check_live(status, definition, options)
            self._supervision.begin()
            return AgentHandle(self, agent_id, wiring, live=live)
        root = await asyncio.to_thread(self.store.load_root, agent_id)
        check_definition(definition, root.definition_id, root.definition_version, agent_id)
        live = await self.directory.wake(agent_id, wiring)
        self._supervision.begin()
        serving = await status_of(live)
        if serving is not None:
            self._check_live(serving, definition, options)
        return AgentHandle(self, agent_id, wiring, live=live)

    load = blocking(load_async)

    async def load_or_create_async(
        self,
        agent_class: type[Agent],
        agent_id: str,
        *,
        context: Iterable[Message | dict[str, Any]] = (),
        knowledge: Iterable[str | dict[str, Any]] = (),
        metadata: dict[str, Any] | None = None,
        options: InstanceOptions | None = None,
    ) -> AgentHandle:
        """`load_async`, or `create_async` with the other arguments when it is not stored. Raises as those two."""
        try:
            return await self.load_async(agent_class, agent_id, options=options)
        except NotFoundError:
            pass
        try:
            return await self.create_async(
                agent_class,
                agent_id,
                context=context,
                knowledge=knowledge,
                metadata=metadata,
                options=options,
            )
        except AgentAlreadyExistsError:
            return await self.load_async(agent_class, agent_id, options=options)

    load_or_create = blocking(load_or_create_async)

    async def get_async(self, agent_id: str) -> AgentHandle | None:
        """The live agent, or ``None``; reads nothing of it from the store but where it lived last."""
        found = await live_status(self.directory, agent_id)
        return AgentHandle(self, agent_id, live=found[0]) if found is not None else None

    get = blocking(get_async)

    async def live_for_execution_async(self, execution_id: str) -> AgentHandle:
        """The live agent that holds a non-terminal execution.

        Raises:
            ExecutionRehydrationRequiredError: nobody holds it; load its agent.
            NotFoundError: there is no such execution.
        """
        row = await asyncio.to_thread(self.store.load_execution, execution_id)
        found = await live_status(self.directory, row.agent_id)
        if found is None or found[1]["execution_id"] != execution_id:
            raise ExecutionRehydrationRequiredError(
                f"nobody holds execution {execution_id} ({row.status.value}); load agent {row.agent_id!r}",
                details={"execution_id": execution_id, "agent_id": row.agent_id, "status": row.status.value},
            )
        return AgentHandle(self, row.agent_id, live=found[0])

    live_for_execution = blocking(live_for_execution_async)

    def agent(self, agent_id: str) -> AgentHandle:
        """A handle by id alone; its class is found in the store when the agent has to be woken."""
        return AgentHandle(self, check_id(agent_id, "agent_id"))

    def scope(self) -> Scope:
        """``with runtime.scope() as scope:`` (or ``async with``): agents that are woken through it are unloaded at its end. See
        `Scope`.
        """
        return Scope(self, self._open_scopes)

    def _with_directory(self, directory: AgentDirectory) -> Runtime:
        """This runtime, seen through another way to its agents; it is not closed by itself."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        view.directory = directory
        return view

    def _agent_client(self, agent_id: str) -> AgentClient:
        return self.agent(agent_id)._client

    async def retry_unload_async(self, error: CleanupError) -> bool:
        """Free the process of a child agent whose call ended in `error`; nothing of its work is repeated.

        Returns whether there was a process to free.

        Raises:
            AgentBusyError: somebody has given the child other work.
            WaitTimeoutError: its process does not answer.
        """
        return await self.agent(error.child_agent_id).unload_async()

    retry_unload = blocking(retry_unload_async)

    def embedding_port(self) -> EmbeddingPort:
        """Embeddings for `retrieval.LitellmEmbeddings` in a driver, through the model gateways if there are any; use it on one
        event loop.
        """
        return self._home.embeddings()

    async def actor_for_async(self, agent_id: str) -> Any:
        """The raw handle of an agent under any placement; wakes the agent if need be. See `AgentHandle.actor_async`."""
        return await self.agent(agent_id).actor_async()

    actor_for = blocking(actor_for_async)

    # --- executions and approvals by id ------------------------------------------------------------------------

    async def execution_async(self, execution_id: str) -> ExecutionHandle:
        """A handle on any stored execution, or request that waits for its turn. Raises `NotFoundError`."""
        agent_id, _ = await asyncio.to_thread(load_status, self.store, execution_id)
        return AgentHandle(self, agent_id).execution(execution_id)

    execution = blocking(execution_async)

    async def approve_async(
        self,
        execution_id: str,
        approval_request_id: str,
        *,
        approved: bool = True,
        edited_arguments: dict[str, Any] | None = None,
        decided_by: str | None = None,
        reason: str | None = None,
    ) -> RunResult:
        """Answer an approval request of any agent; see `AgentHandle.approve_async`."""
        handle = await self.execution_async(execution_id)
        return await handle.approve_async(
            approval_request_id,
            approved=approved,
            edited_arguments=edited_arguments,
            decided_by=decided_by,
            reason=reason,
        )

    approve = blocking(approve_async)

    async def pending_approvals_async(self) -> list[ApprovalRequest]:
        """Every request that waits for an answer, oldest first; wakes nothing."""
        rows = await asyncio.to_thread(self.store.approvals, pending_only=True)
        return [ApprovalRequest.from_row(row) for row in rows]

    pending_approvals = blocking(pending_approvals_async)

    async def executions_async(
        self, *, agent_id: str | None = None, non_terminal_only: bool = False, limit: int = 100
    ) -> list[ExecutionRow]:
        """Stored executions, newest first."""
        return await asyncio.to_thread(
            self.store.list_executions, agent_id=agent_id, non_terminal_only=non_terminal_only, limit=limit
        )

    executions = blocking(executions_async)

    async def tool_traces_async(
        self, *, execution_id: str | None = None, agent_id: str | None = None, limit: int = DEFAULT_LIMIT
    ) -> list[ToolTrace]:
        """The newest tool calls of an execution, an agent or all, masked, oldest first; wakes nothing.

        Raises:
            NotFoundError: no such execution or agent.
        """
        return await asyncio.to_thread(
            read_traces, self.store, execution_id=execution_id, agent_id=agent_id, limit=limit
        )

    tool_traces = blocking(tool_traces_async)

    # --- supervision -------------------------------------------------------------------------------------------

    async def start_supervisor_async(self) -> None:
        """Start the supervisor unless one runs, and wait until it looks after this runtime's store.

        Agents do that behind their first use by themselves; this is for whoever has none to use, such as ``phronomy up``.
        """
        await self._supervision.ensure()

    start_supervisor = blocking(start_supervisor_async)

    # --- wiring ------------------------------------------------------------------------------------------------

    def _wiring(self, agent_class: type[Agent], options: InstanceOptions | None = None) -> AgentWiring:
        """How to start an agent of this class.

        Raises:
            ConfigurationError: it has to travel by value, and something in it cannot; or something in the options cannot.
        """
        path = agent_class.definition().class_path
        pickles = self._home.pickles
        if pickles is not None and not path:
            check_worker_input(agent_class, where=f"agent class {agent_class.__name__}", pickles=pickles)
        if pickles is not None and options is not None:
            check_worker_input(options, where="InstanceOptions", pickles=pickles)
        source = DefinitionSource(path, None if path else agent_class)
        # in process nothing else can be served
        own = None if isinstance(self.config.placement, InProcess) else agent_class.placement
        return self.config.wiring(source, options, own)

    async def wiring_of(self, agent_id: str, known: AgentWiring | None) -> AgentWiring:
        """How to start the agent's actor: as the handle knows, or by the class path in its root.

        Raises:
            NotFoundError: it is not stored.
            DefinitionUnavailableError: its class was one of a driver's ``__main__``.
        """
        self._supervision.begin()
        if known is not None:
            return known
        root = await asyncio.to_thread(self.store.load_root, agent_id)
        return wiring_for(root, self.config.wiring(DefinitionSource("")))

    async def _root(self, agent_id: str) -> AgentRoot | None:
        try:
            return await asyncio.to_thread(self.store.load_root, agent_id)
        except NotFoundError:
            return None

    def _check_live(
        self, live: dict[str, Any], definition: AgentDefinition, options: InstanceOptions | None
    ) -> None:
        if options is not None and live.get("options", {}) != options.names():
            # filters that somebody relies on must not be left out in silence
            raise ConfigurationError(
                f"agent {live['agent_id']!r} is live with other options; unload it first, or load it without options",
                details={
                    "agent_id": live["agent_id"],
                    "live": live.get("options", {}),
                    "given": options.names(),
                },
            )
        check_live_definition(definition, live["definition_id"], live["definition_version"], live["agent_id"])
        if live["store"] != self.store.identity:
            raise ConfigurationError(
                f"agent {live['agent_id']!r} is live on the store {live['store']}, and this runtime uses "
                f"{self.store.identity}",
                details={"agent_id": live["agent_id"]},
            )


def _open_store(config: RuntimeConfig) -> Store:
    from phronomy_ray.store.sql_store import open_store

    return open_store(config.store.url, content_key=config.store.content_key, create=True)
