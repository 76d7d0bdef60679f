"""Which agents the open scopes of one runtime hold."""

from __future__ import annotations

import threading

from phronomy_ray.worker_inputs import WorkerInputRestricted


class OpenScopes(WorkerInputRestricted):
    """Usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, set[str]] = {}

    def enter(self, scope: object, agent_id: str) -> None:
        """The scope has given a handle of the agent."""
        with self._lock:
            self._held.setdefault(id(scope), set()).add(agent_id)

    def leave(self, scope: object) -> None:
        """The scope has ended."""
        with self._lock:
            self._held.pop(id(scope), None)

    def hold(self, agent_id: str) -> bool:
        """Whether an open scope has given a handle of the agent."""
        with self._lock:
            return any(agent_id in agents for agents in self._held.values())


__all__ = ["OpenScopes"]
