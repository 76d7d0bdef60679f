"""`Runtime`: a driver's entry to agents on a Ray cluster and their store."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from phronomy_ray.actors.directory import AgentDirectory
from phronomy_ray.actors.wiring import AgentWiring, DefinitionSource, NewAgentRequest
from phronomy_ray.clock import SystemClock
from phronomy_ray.definition.agent import Agent
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.options import InstanceOptions
from phronomy_ray.embedding import EmbeddingPort
from phronomy_ray.engine.creation import check_knowledge, new_agent
from phronomy_ray.engine.reading import check_definition, load_status
from phronomy_ray.errors import (
    AgentAlreadyExistsError,
    CleanupError,
    ConfigurationError,
    DefinitionUnavailableError,
    ExecutionRehydrationRequiredError,
    NotFoundError,
    safe_message,
)
from phronomy_ray.ids import check_id
from phronomy_ray.journal import AgentRoot, ExecutionRow
from phronomy_ray.messages import Message
from phronomy_ray.results import ApprovalRequest, RunResult
from phronomy_ray.runtime.agent_handle import AgentHandle
from phronomy_ray.runtime.bridge import Bridge, blocking
from phronomy_ray.runtime.config import RuntimeConfig, resolve_config
from phronomy_ray.runtime.execution_handle import ExecutionHandle
from phronomy_ray.runtime.metrics import collect_metrics
from phronomy_ray.runtime.placement import Dedicated
from phronomy_ray.runtime.retentions import Retentions
from phronomy_ray.runtime.rules import StandingRules
from phronomy_ray.runtime.traces import DEFAULT_LIMIT, ToolTrace, read_traces
from phronomy_ray.store.port import Store
from phronomy_ray.tools.pool_config import PoolConfig
from phronomy_ray.worker_inputs import WorkerInputRestricted, check_worker_input

if TYPE_CHECKING:
    from ray.actor import ActorHandle


class Runtime(WorkerInputRestricted):
    """Connects to Ray and to the store; a context manager. Leaving it closes this driver's side only.

    Args:
        address: ``local`` starts a Ray of its own, ``auto`` or ``host:port`` connects (``PHRONOMY_RAY_ADDRESS``,
            ``RAY_ADDRESS``; default ``local``). A Ray that is already initialised in this process is used as it is.
        namespace: Ray namespace of the actors (``PHRONOMY_NAMESPACE``; default ``phronomy``).
        store: ``sqlite:///file`` or ``postgresql://...`` (``PHRONOMY_STORE_URL``; default ``sqlite:///phronomy.db``).
            An empty database gets its schema.
        content_key: key for content encryption (``PHRONOMY_CONTENT_KEY``).
        model_gateways: number of model gateway actors (``PHRONOMY_MODEL_GATEWAYS``; default 2).
        placement: where agents live.
        registry: ``module:function`` that gives the tool registries of agents whose class names none
            (``PHRONOMY_REGISTRY``); every driver that wakes such agents needs the same.
        pools: bounds of the offload pools that tools name, by name; a pool that is not here has the default bounds.
        working_dir, py_modules, runtime_env: how Ray ships your modules to the nodes; none by default.
        ray_options: more arguments for ``ray.init``.
        before_llm_input: hooks that look at every model call of every agent, before those of its class.
        max_result_chars: how much of a result a model is shown, for tools that set no limit of their own.

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
        placement: Dedicated | None = None,
        registry: str | None = None,
        pools: Mapping[str, PoolConfig] | None = None,
        working_dir: str | os.PathLike[str] | None = None,
        py_modules: Sequence[Any] = (),
        runtime_env: Mapping[str, Any] | None = None,
        ray_options: Mapping[str, Any] | None = None,
        before_llm_input: Sequence[Any] = (),
        max_result_chars: int | None = None,
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
        )
        self.store: Store = _open_store(self.config)
        try:
            self._owns_ray = _connect(self.config)
        except BaseException:
            self.store.close()
            raise
        self.directory = AgentDirectory(self.config.namespace)
        self._bridge = Bridge()
        #: Standing rules of the store.
        self.rules = StandingRules(lambda: self.store, lambda: self._bridge)
        #: Holds on what is stored.
        self.retentions = Retentions(lambda: self.store, lambda: self._bridge)

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close this driver's side; a Ray that this runtime started or connected is left. Idempotent."""
        self._bridge.close()
        self.store.close()
        if self._owns_ray:
            self._owns_ray = False
            ray.shutdown()

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
        if await self.directory.live_status(agent_id) is not None or await self._root(agent_id) is not None:
            raise AgentAlreadyExistsError(f"agent {agent_id!r} exists", details={"agent_id": agent_id})
        actor = await self.directory.create(agent_id, wiring, request)
        return AgentHandle(self, agent_id, wiring, actor=actor)

    create = blocking(create_async)

    async def load_async(
        self, agent_class: type[Agent], agent_id: str, *, options: InstanceOptions | None = None
    ) -> AgentHandle:
        """A stored agent, live: hydrated once, however many drivers ask. A live one is used without reading the store.

        `options` are those of `create_async`; ``None`` takes a live agent with whatever it has.

        Raises:
            NotFoundError: it is not stored.
            ConfigurationError: it is stored under another class or definition version, its live actor uses another
                store or has other options, or the options cannot travel to the actor.
        """
        check_id(agent_id, "agent_id")
        definition = agent_class.definition()
        wiring = self._wiring(agent_class, options)
        live = await self.directory.live_status(agent_id)
        if live is not None:
            self._check_live(live, definition, options)
            actor = self.directory.find(agent_id)
            if actor is not None:
                return AgentHandle(self, agent_id, wiring, actor=actor)
        root = await asyncio.to_thread(self.store.load_root, agent_id)
        check_definition(definition, root.definition_id, root.definition_version, agent_id)
        actor = await self.directory.wake(agent_id, wiring)
        status = await self.directory.live_status(agent_id)
        if status is not None:
            self._check_live(status, definition, options)
        return AgentHandle(self, agent_id, wiring, actor=actor)

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
        """The live agent, or ``None``; never touches the store."""
        live = await self.directory.live_status(agent_id)
        actor = self.directory.find(agent_id) if live is not None else None
        return AgentHandle(self, agent_id, actor=actor) if actor is not None else None

    get = blocking(get_async)

    async def live_for_execution_async(self, execution_id: str) -> AgentHandle:
        """The live agent that holds a non-terminal execution.

        Raises:
            ExecutionRehydrationRequiredError: nobody holds it; load its agent.
            NotFoundError: there is no such execution.
        """
        row = await asyncio.to_thread(self.store.load_execution, execution_id)
        live = await self.directory.live_status(row.agent_id)
        actor = self.directory.find(row.agent_id)
        if live is None or actor is None or live["execution_id"] != execution_id:
            raise ExecutionRehydrationRequiredError(
                f"nobody holds execution {execution_id} ({row.status.value}); load agent {row.agent_id!r}",
                details={"execution_id": execution_id, "agent_id": row.agent_id, "status": row.status.value},
            )
        return AgentHandle(self, row.agent_id, actor=actor)

    live_for_execution = blocking(live_for_execution_async)

    def agent(self, agent_id: str) -> AgentHandle:
        """A handle by id alone; its class is found in the store when the agent has to be woken."""
        return AgentHandle(self, check_id(agent_id, "agent_id"))

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
        """Embeddings through the model gateways, for `retrieval.LitellmEmbeddings` in a driver; use it on one event loop."""
        from phronomy_ray.actors.gateway_client import GatewayModel

        return GatewayModel(namespace=self.config.namespace, gateways=self.config.gateways)

    async def actor_for_async(self, agent_id: str) -> ActorHandle[Any]:
        """The raw Ray handle of an agent's actor; wakes the agent if need be."""
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

    # --- numbers ------------------------------------------------------------------------------------------------

    async def metrics_async(self) -> dict[str, Any]:
        """What pools and live agents say of themselves, as plain JSON; see the guide to pools. Wakes nothing."""
        return await collect_metrics(self.config.namespace)

    metrics = blocking(metrics_async)

    # --- wiring ------------------------------------------------------------------------------------------------

    def _wiring(self, agent_class: type[Agent], options: InstanceOptions | None = None) -> AgentWiring:
        """How to start an agent of this class.

        Raises:
            ConfigurationError: it has to travel by value, and something in it cannot; or something in the options cannot.
        """
        path = agent_class.definition().class_path
        if not path:
            where = f"agent class {agent_class.__name__}"
            check_worker_input(agent_class, where=where, pickles=ray.cloudpickle.dumps)
        if options is not None:
            check_worker_input(options, where="InstanceOptions", pickles=ray.cloudpickle.dumps)
        return self.config.wiring(DefinitionSource(path, None if path else agent_class), options)

    async def wiring_of(self, agent_id: str, known: AgentWiring | None) -> AgentWiring:
        """How to start the agent's actor: as the handle knows, or by the class path in its root.

        Raises:
            NotFoundError: it is not stored.
            DefinitionUnavailableError: its class was one of a driver's ``__main__``.
        """
        if known is not None:
            return known
        root = await asyncio.to_thread(self.store.load_root, agent_id)
        if not root.class_path:
            raise DefinitionUnavailableError(
                f"agent {agent_id!r} was created from {root.definition_id!r}, a class of a driver's own script or function, "
                "so it cannot be woken by its id: load it from that script, or move the class to a module that every "
                "node can import",
                details={"agent_id": agent_id, "definition_id": root.definition_id},
            )
        return self.config.wiring(DefinitionSource(root.class_path))

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
        check_definition(definition, live["definition_id"], live["definition_version"], live["agent_id"])
        if live["store"] != self.store.identity:
            raise ConfigurationError(
                f"agent {live['agent_id']!r} is live on the store {live['store']}, and this runtime uses "
                f"{self.store.identity}",
                details={"agent_id": live["agent_id"]},
            )


def _open_store(config: RuntimeConfig) -> Store:
    from phronomy_ray.store.sql_store import open_store

    return open_store(config.store.url, content_key=config.store.content_key, create=True)


def _connect(config: RuntimeConfig) -> bool:
    """Connect to or start Ray; whether this runtime has to disconnect it."""
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"namespace": config.namespace, "log_to_driver": False, **config.ray_options}
    if config.runtime_env:
        options["runtime_env"] = dict(config.runtime_env)
    if config.address == "local":
        options.setdefault("include_dashboard", False)
    try:
        ray.init(address=config.address, **options)
    except (ConnectionError, RayError) as error:  # a wrong token, or none where one is wanted
        raise ConfigurationError(
            f"no Ray cluster lets this process in at {config.address!r} ({error}); start one, use address='local', or "
            "give this process the cluster's authentication token (RAY_AUTH_MODE=token, and ~/.ray/auth_token of its head here "
            "or in RAY_AUTH_TOKEN)"
        ) from error
    except (OSError, RuntimeError, TimeoutError, ValueError) as error:
        raise ConfigurationError(
            f"Ray cannot be used at {config.address!r}: {type(error).__name__}: {safe_message(error)}"
        ) from error
    return True
