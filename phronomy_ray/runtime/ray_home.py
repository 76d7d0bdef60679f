"""A runtime's agents on a Ray cluster, to which this driver connects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from phronomy_ray.actors.directory import RayDirectory
from phronomy_ray.actors.ray_calls import call, find_actor, pickle_by_value
from phronomy_ray.actors.supervisor import ensure_supervisor, supervisor_report
from phronomy_ray.embedding import EmbeddingPort
from phronomy_ray.errors import ConfigurationError, safe_message
from phronomy_ray.hosting.agent_port import CALL_TIMEOUT_S
from phronomy_ray.hosting.shutdown import Shutdown
from phronomy_ray.hosting.wiring import AgentWiring
from phronomy_ray.runtime.cluster_drain import ClusterAgents, drain_node
from phronomy_ray.runtime.config import RuntimeConfig
from phronomy_ray.runtime.hosts import HostReport, NodeReport
from phronomy_ray.runtime.metrics import collect_metrics
from phronomy_ray.store.port import Store
from phronomy_ray.supervision.limits import SupervisionLimits
from phronomy_ray.worker_inputs import WorkerInputRestricted


class RayHome(WorkerInputRestricted):
    """Connects to Ray, or starts one."""

    def __init__(self, config: RuntimeConfig, store: Store) -> None:
        self._config = config
        self._owns_ray = _connect(config)
        self.directory = RayDirectory(config.namespace, config.placement, store)
        self.pickles: Callable[[Any], bytes] = pickle_by_value

    def embeddings(self) -> EmbeddingPort:
        """As `Home.embeddings`: through the model gateways; use it on one event loop."""
        from phronomy_ray.actors.gateway_client import GatewayModel

        return GatewayModel(namespace=self._config.namespace, gateways=self._config.gateways)

    async def metrics(self) -> dict[str, Any]:
        """As `Home.metrics`."""
        return await collect_metrics(self._config.namespace)

    async def supervise(self, like: AgentWiring, limits: SupervisionLimits) -> None:
        """As `Home.supervise`: by the namespace's named actor."""
        await ensure_supervisor(like, limits)

    async def supervisor_report(self) -> list[dict[str, Any]] | None:
        """As `Home.supervisor_report`."""
        return await supervisor_report(self._config.namespace)

    def take_part(self, shutdown: Shutdown) -> None:
        """As `Home.take_part`."""
        agents = ClusterAgents(self._config.namespace)
        shutdown.register("agents", agents)
        shutdown.add_hook(agents.end_services)

    async def drain_node(self, node: str, timeout_s: float) -> NodeReport:
        """As `Home.drain_node`."""
        return await drain_node(self._config.namespace, node, timeout_s)

    async def drain_host(self, host: str, timeout_s: float) -> HostReport:
        """As `Home.drain_host`; a host that is not running is empty."""
        actor = await asyncio.to_thread(find_actor, host, self._config.namespace)
        if actor is None:
            return HostReport(host)
        wire = await call(actor, "drain", timeout_s, timeout_s=timeout_s + CALL_TIMEOUT_S)
        return HostReport.from_wire(host, wire)

    async def reopen_host(self, host: str) -> None:
        """As `Home.reopen_host`."""
        actor = await asyncio.to_thread(find_actor, host, self._config.namespace)
        if actor is not None:
            await call(actor, "reopen", timeout_s=CALL_TIMEOUT_S)

    def close(self) -> None:
        """As `Home.close`; a Ray that somebody else has started or connected is left."""
        if self._owns_ray:
            self._owns_ray = False
            ray.shutdown()


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
