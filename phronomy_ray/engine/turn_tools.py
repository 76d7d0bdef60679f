"""The tools of one agent's turns: assembled on a thread before a turn's first model call, made again for a resumed one."""

from __future__ import annotations

import asyncio
import logging

from phronomy_ray.assembly.assembly import Assembled, AssemblyFailed, ToolAssembly
from phronomy_ray.assembly.binding import Binding
from phronomy_ray.assembly.capabilities import Turn
from phronomy_ray.assembly.sources import SourceReference, sources_of
from phronomy_ray.definition.agent import AgentDefinition
from phronomy_ray.definition.tool_set import ToolSet
from phronomy_ray.errors import PhronomyError

_LOG = logging.getLogger("phronomy_ray.engine")


class TurnTools:
    """Calls the user's registry function, factories and predicates where they cannot stall the agent's loop."""

    def __init__(self, agent_id: str, definition: AgentDefinition, registry: SourceReference) -> None:
        self._agent_id = agent_id
        self._definition = definition
        self._registry = registry

    async def assemble(self, execution_id: str) -> Assembled | AssemblyFailed | None:
        """The tools of a new turn; ``None`` for an agent that has its own ones only."""
        if not self._definition.wants_assembly:
            return None
        turn = Turn(self._agent_id, execution_id)
        return await asyncio.get_running_loop().run_in_executor(None, self._assemble, turn)

    def _assemble(self, turn: Turn) -> Assembled | AssemblyFailed:
        try:
            assembly = self._assembly()
        except PhronomyError as error:
            return AssemblyFailed(error)
        return assembly.assemble(turn)

    async def rebind(self, binding: Binding | None) -> ToolSet | None:
        """The tools behind a stored binding; a tool that is not there any more is left out, and its calls fail.

        Raises:
            DefinitionUnavailableError: the registries cannot be had in this process.
        """
        if binding is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(None, self._rebind, binding)

    def _rebind(self, binding: Binding) -> ToolSet:
        rebound = self._assembly().rebind(binding)
        for name, reason in rebound.missing:
            _LOG.warning(
                "agent %s: the tool %r of a running turn is missing: %s", self._agent_id, name, reason
            )
        return rebound.tools

    def _assembly(self) -> ToolAssembly:
        return ToolAssembly(self._definition, sources_of(self._definition, self._registry))
