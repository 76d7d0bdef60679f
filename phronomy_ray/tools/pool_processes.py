"""What a pool needs of whatever runs its calls: worker processes and tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phronomy_ray.tool_calls import CallKey
from phronomy_ray.tools.pool_wire import PoolBatch, PoolCall, WorkerSetup


class Fleet(Protocol):
    """Worker processes and tasks. Every method returns at once; what happens comes back through the core's ``on_...``."""

    @property
    def nodes(self) -> Sequence[str]:
        """Nodes where workers may be started, the best first."""
        ...

    @property
    def max_workers(self) -> int:
        """Bound on worker processes."""
        ...

    @property
    def max_tasks(self) -> int:
        """Bound on tasks at once."""
        ...

    def start(self, worker_id: str, setup: WorkerSetup, node: str) -> None:
        """Start a worker process."""
        ...

    def send(self, worker_id: str, calls: Sequence[tuple[PoolBatch, PoolCall]]) -> None:
        """Have a ready worker run calls."""
        ...

    def cancel(self, worker_id: str, keys: Sequence[CallKey]) -> None:
        """Tell bodies in a worker that they should stop."""
        ...

    def probe(self, worker_id: str) -> None:
        """Ask a worker for a sign of life."""
        ...

    def end(self, worker_id: str) -> None:
        """Kill a worker process."""
        ...

    def run_task(self, batch: PoolBatch, call: PoolCall) -> None:
        """Run one call as a task of its own."""
        ...

    def end_task(self, key: CallKey) -> None:
        """Kill a task's process."""
        ...
