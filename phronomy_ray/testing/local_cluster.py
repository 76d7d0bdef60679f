"""A real Ray cluster on this machine, with several nodes that can be killed one by one.

```python
with LocalCluster(workers=2, worker_resources={"agents": 1}) as cluster:
    with Runtime(cluster.address, store=...) as runtime:
        ...
        cluster.kill_node(cluster.node_of_pid(agent.status()["pid"]).node_id)
```

Every node is a raylet of its own with its own worker processes, as on different machines. The cluster has a folder of its
own, touches no cluster file of the machine (``ray_current_cluster`` is neither read nor written) and reports nothing home.
All its processes carry a mark in their environment, by which they are found and, at the end, proved to be gone.

Use it from the thread that will outlive it, best the main one: Ray ties its processes to the thread that started them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

from phronomy_ray.testing import processes

#: Environment variables that the cluster's processes are known by.
MARK_ENV = "PHRONOMY_LOCAL_CLUSTER"
NODE_MARK_ENV = "PHRONOMY_LOCAL_NODE"
#: Ray's switch for token authentication.
AUTH_MODE_ENV = "RAY_AUTH_MODE"
#: Longest folder name: Ray puts UNIX sockets below it, whose whole path has at most 107 characters.
MAX_FOLDER_CHARS = 38
#: How long killed processes may take to vanish, in seconds.
DEATH_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One node of the cluster."""

    #: Full Ray node id; agents and tools report its first 12 characters.
    node_id: str
    #: ``head``, ``worker-1``, ...
    name: str
    raylet_pid: int
    #: Value of `NODE_MARK_ENV` in its processes.
    mark: str
    #: Ray's own object for it.
    ray_node: Any = field(repr=False, compare=False)

    @property
    def is_head(self) -> bool:
        """Whether the cluster's control processes (GCS) belong to it."""
        return self.name == "head"

    @property
    def is_alive(self) -> bool:
        """Whether its raylet runs, seen from outside."""
        return processes.is_alive(self.raylet_pid)

    def pids(self) -> set[int]:
        """Its living processes: the raylet, its agents and workers and whatever those have started."""
        found = processes.descendants(self.raylet_pid) | processes.with_environment(NODE_MARK_ENV, self.mark)
        return {pid for pid in found | {self.raylet_pid} if processes.is_alive(pid)}


@dataclass(frozen=True, slots=True)
class KilledNode:
    """What `LocalCluster.kill_node` did."""

    node_id: str
    raylet_pid: int
    #: Every process of the node that was killed, the raylet included.
    pids: tuple[int, ...]
    #: `time.time` of the SIGKILL to the raylet.
    killed_at: float


class LocalCluster:
    """Head and workers as processes of this machine; a context manager.

    Args:
        workers: number of nodes besides the head.
        head_resources, worker_resources: custom Ray resources of the head and of each worker.
        num_cpus: CPUs that each node offers; every one may cost a warm worker process.
        head_num_cpus: CPUs of the head, `num_cpus` by default; with 0 Ray runs no ordinary task there.
        object_store_bytes: object store of each node; Ray's minimum is about 80 MB.
        health_check_period_ms, health_check_timeout_ms, health_check_failure_threshold: how fast a lost node is noticed.
        env: more environment variables for all processes of the cluster.
        system_config: more entries for Ray's system configuration.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        head_resources: Mapping[str, float] | None = None,
        worker_resources: Mapping[str, float] | None = None,
        num_cpus: int = 1,
        head_num_cpus: int | None = None,
        object_store_bytes: int = 100 * 1024 * 1024,
        health_check_period_ms: int = 500,
        health_check_timeout_ms: int = 1000,
        health_check_failure_threshold: int = 3,
        env: Mapping[str, str] | None = None,
        system_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._workers = workers
        self._head_resources = dict(head_resources or {})
        self._worker_resources = dict(worker_resources or {})
        self._num_cpus = num_cpus
        self._head_num_cpus = num_cpus if head_num_cpus is None else head_num_cpus
        self._object_store_bytes = object_store_bytes
        self._system_config = {
            "health_check_initial_delay_ms": 0,
            "health_check_period_ms": health_check_period_ms,
            "health_check_timeout_ms": health_check_timeout_ms,
            "health_check_failure_threshold": health_check_failure_threshold,
            **(system_config or {}),
        }
        self._env = dict(env or {})
        self._auth_mode = "disabled"
        self._cluster: Any = None
        self._folder: Path | None = None
        self._nodes: list[LocalNode] = []
        self._dead: set[str] = set()

    # --- life --------------------------------------------------------------------------------------------------

    def __enter__(self) -> LocalCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def start(self) -> LocalCluster:
        """Start all nodes; returns when they are registered. What was started is removed when one fails."""
        from ray.cluster_utils import Cluster

        self._folder = _short_folder()
        # `ray.init(address="local")` in this process would switch it on for nodes that are added afterwards, and those
        # would refuse every call of the others
        self._auth_mode = os.environ.get(AUTH_MODE_ENV, "disabled")
        try:
            self._cluster = Cluster(shutdown_at_exit=True)
            self.add_node("head", self._head_resources)
            for index in range(self._workers):
                self.add_node(f"worker-{index + 1}", self._worker_resources)
        except BaseException:
            self.shutdown()
            raise
        return self

    def add_node(self, name: str, resources: Mapping[str, float] | None = None) -> LocalNode:
        """Start one more node and wait until it is registered; the first one is the head."""
        assert self._cluster is not None, "the cluster is not started"
        is_head = self._cluster.head_node is None
        options: dict[str, Any] = {
            "num_cpus": self._head_num_cpus if is_head else self._num_cpus,
            "object_store_memory": self._object_store_bytes,
            "resources": dict(resources or {}),
            "temp_dir": str(self._folder),
            "dashboard_agent_listen_port": None,
            "include_log_monitor": False,
        }
        if is_head:
            options |= {
                "include_dashboard": False,
                "no_monitor": True,
                "_system_config": dict(self._system_config),
            }
        mark = f"{self._folder}/{name}"
        marks = {
            MARK_ENV: str(self._folder),
            NODE_MARK_ENV: mark,
            "RAY_USAGE_STATS_ENABLED": "0",
            AUTH_MODE_ENV: self._auth_mode,
            **self._env,
        }
        with _environment(marks), _no_cluster_file():
            node = self._cluster.add_node(**options)
        raylet = node.all_processes["raylet"][0].process.pid
        added = LocalNode(node.node_id, name, raylet, mark, node)
        self._nodes.append(added)
        return added

    def shutdown(self) -> None:
        """Stop every process of the cluster and remove its folder. Idempotent; disconnects this driver from it.

        Raises:
            RuntimeError: a process cannot be stopped.
        """
        import ray

        cluster, self._cluster = self._cluster, None
        folder, self._folder = self._folder, None
        if folder is None:
            return
        if cluster is not None:
            if ray.is_initialized() and ray.get_runtime_context().gcs_address == cluster.address:
                ray.shutdown()
            # Killed nodes, and the impatient: whatever hangs is killed below.
            with contextlib.suppress(Exception), _no_cluster_file():
                cluster.shutdown()
        left = processes.with_environment(MARK_ENV, str(folder))
        for node in self._nodes:
            left |= processes.descendants(node.raylet_pid)
        processes.kill_hard(left)
        alive = processes.wait_dead(left, timeout_s=DEATH_TIMEOUT_S)
        shutil.rmtree(folder, ignore_errors=True)
        self._nodes.clear()
        if alive:
            raise RuntimeError(f"processes of the cluster in {folder} cannot be stopped: {sorted(alive)}")

    # --- what there is -----------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """What goes into ``Runtime(address)`` or ``ray.init(address)``: ``<ip>:<port>``."""
        assert self._cluster is not None, "the cluster is not started"
        return str(self._cluster.address)

    @property
    def folder(self) -> Path:
        """The cluster's own folder: sessions, sockets, logs."""
        assert self._folder is not None, "the cluster is not started"
        return self._folder

    @property
    def nodes(self) -> list[LocalNode]:
        """All nodes, killed ones included, the head first."""
        return list(self._nodes)

    @property
    def alive_nodes(self) -> list[LocalNode]:
        """Nodes whose raylet runs."""
        return [node for node in self._nodes if node.is_alive]

    def node(self, node_id: str) -> LocalNode:
        """A node by its id, by the beginning of it (at least 8 characters) or by its name.

        Raises:
            LookupError: there is none.
        """
        for node in self._nodes:
            if node.name == node_id or (len(node_id) >= 8 and node.node_id.startswith(node_id)):
                return node
        raise LookupError(
            f"no node {node_id!r}; there are {[(node.name, node.node_id[:12]) for node in self._nodes]}"
        )

    def node_of_pid(self, pid: int) -> LocalNode:
        """The node that a process runs on.

        Raises:
            LookupError: it runs on none.
        """
        for node in self._nodes:
            if pid in node.pids():
                return node
        raise LookupError(f"process {pid} belongs to no node of this cluster")

    def pids(self) -> set[int]:
        """All living processes of the cluster, seen from outside."""
        return processes.with_environment(MARK_ENV, str(self.folder))

    # --- harm --------------------------------------------------------------------------------------------------

    def kill_node(self, node_id: str) -> KilledNode:
        """SIGKILL to a node's raylet and to all its other processes, as when the machine loses its power.

        Returns when all of them are dead, seen from outside. Ray notices it later, by its health checks.

        Args:
            node_id: as for `node`.

        Raises:
            LookupError: there is no such node.
            ValueError: it is the head, which holds the whole cluster, or it is dead.
            RuntimeError: a process survived.
        """
        node = self.node(node_id)
        if node.is_head:
            raise ValueError("the head cannot be killed alone: it holds the cluster's control processes")
        if not node.is_alive:
            raise ValueError(f"node {node.name} is dead already")
        victims = node.pids()
        killed_at = time.time()
        processes.kill_hard([node.raylet_pid])  # first, so that it starts no worker in place of a killed one
        processes.kill_hard(victims)
        newer = node.pids() - victims  # started between the look and the kill
        processes.kill_hard(newer)
        victims |= newer
        node.ray_node.all_processes["raylet"][0].process.wait(timeout=DEATH_TIMEOUT_S)  # reap our own child
        alive = processes.wait_dead(victims, timeout_s=DEATH_TIMEOUT_S) | node.pids()
        if alive:
            raise RuntimeError(f"processes of node {node.name} survived SIGKILL: {sorted(alive)}")
        return KilledNode(node.node_id, node.raylet_pid, tuple(sorted(victims)), killed_at)

    def cut_off(self, node_id: str) -> LocalNode:
        """Stop (SIGSTOP) a node's raylet: to the cluster the node is lost after its health checks, while its workers, and the agents in
        them, go on and know nothing of it, as on the wrong side of a torn network. See `reconnect`.

        Args:
            node_id: as for `node`.

        Raises:
            LookupError: there is no such node.
            ValueError: it is the head, or it is dead.
        """
        node = self.node(node_id)
        if node.is_head:
            raise ValueError("the head cannot be cut off: it holds the cluster's control processes")
        if not node.is_alive:
            raise ValueError(f"node {node.name} is dead already")
        os.kill(node.raylet_pid, signal.SIGSTOP)
        return node

    def reconnect(self, node_id: str) -> None:
        """Let a raylet that was cut off go on. One that the cluster has given up ends itself and its workers when it hears of that; a
        raylet that has ended meanwhile is no error.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.node(node_id).raylet_pid, signal.SIGCONT)


def _short_folder() -> Path:
    """A fresh folder in ``RAY_TMPDIR``, the system's temporary folder or ``/tmp``, whichever is short enough."""
    for base in (os.environ.get("RAY_TMPDIR"), tempfile.gettempdir(), "/tmp"):
        if base and len(base) + len("/phr-12345678") <= MAX_FOLDER_CHARS and os.path.isdir(base):
            return Path(tempfile.mkdtemp(prefix="phr-", dir=base))
    raise RuntimeError("no temporary folder has a path short enough for Ray's sockets; set RAY_TMPDIR")


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for the processes that are started in the block."""
    with mock.patch.dict(os.environ, values):
        yield


@contextlib.contextmanager
def _no_cluster_file() -> Iterator[None]:
    """Keep `ray.cluster_utils` from writing or deleting the file by which drivers on this machine find "the" cluster.

    Another cluster may run here, and a killed demo must not leave its address to the next ``ray.init``.
    """
    import ray._common.utils
    import ray._private.utils

    with (
        mock.patch.object(ray._private.utils, "write_ray_address", lambda *_, **__: None),
        mock.patch.object(ray._common.utils, "reset_ray_address", lambda *_, **__: None),
    ):
        yield


__all__ = ["MARK_ENV", "NODE_MARK_ENV", "KilledNode", "LocalCluster", "LocalNode"]
