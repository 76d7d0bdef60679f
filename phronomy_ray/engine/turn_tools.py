"""The tools of one agent's turns: assembled on a thread before a turn's first model call, made again for a resumed one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from phronomy_ray.assembly.assembly import Assembled, AssemblyFailed, ToolAssembly
from phronomy_ray.assembly.binding import Binding
from phronomy_ray.assembly.capabilities import CapabilityEvent, CapabilityEventKind, Turn
from phronomy_ray.assembly.sources import SourceReference, sources_of
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.tool_set import ToolSet
from phronomy_ray.definition.tool_source import Offer
from phronomy_ray.errors import DefinitionUnavailableError, HookError, PhronomyError
from phronomy_ray.frozen import replace
from phronomy_ray.tools.off_loop import off_loop

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
        events: list[CapabilityEvent] = []
        try:
            offers = await self._offers(turn, events)
        except PhronomyError as error:
            return AssemblyFailed(error, tuple(events))
        try:
            assembled: Assembled | AssemblyFailed = await self._off_loop(self._assemble, turn, offers)
        except TimeoutError:
            return AssemblyFailed(HookError(self._too_slow, code="hook_timeout"), tuple(events))
        return replace(assembled, events=(*events, *assembled.events)) if events else assembled

    async def _offers(self, turn: Turn, events: list[CapabilityEvent]) -> list[Offer]:
        """What the agent's tool sources offer now, all asked at once; an optional one that cannot be asked is left out."""
        sources = self._definition.sources
        answers = await asyncio.gather(*(source.fetch() for source in sources), return_exceptions=True)
        offers: list[Offer] = []
        for source, answer in zip(sources, answers, strict=True):
            if isinstance(answer, str):
                offers.append(Offer(source, answer))
            elif isinstance(answer, PhronomyError) and source.is_optional:
                _LOG.warning(
                    "agent %s: a turn without the tools of %s: %s", turn.agent_id, source.source_name, answer
                )
                kind = CapabilityEventKind.SKIPPED
                events.append(
                    CapabilityEvent(
                        kind, turn.agent_id, turn.execution_id, source.source_name, reason=str(answer)
                    )
                )
            else:
                raise answer
        return offers

    def _assemble(self, turn: Turn, offers: list[Offer]) -> Assembled | AssemblyFailed:
        try:
            assembly = self._assembly()
        except PhronomyError as error:
            return AssemblyFailed(error)
        return assembly.assemble(turn, offers)

    async def rebind(
        self, binding: Binding | None, read_contents: Callable[[frozenset[str]], Awaitable[dict[str, str]]]
    ) -> ToolSet | None:
        """The tools behind a stored binding; a tool that is not there any more is left out, and its calls fail.

        Args:
            read_contents: gives kept texts by their hashes.

        Raises:
            DefinitionUnavailableError: the registries cannot be had in this process, or not in time.
        """
        if binding is None:
            return None
        digests = frozenset(digest for _, digest in binding.offers)
        contents = await read_contents(digests) if digests else {}
        try:
            tools: ToolSet = await self._off_loop(self._rebind, binding, contents)
        except TimeoutError:
            raise DefinitionUnavailableError(self._too_slow) from None
        return tools

    async def _off_loop(self, function: Callable[..., Any], *arguments: Any) -> Any:
        limit = self._definition.hook_timeout_s
        return await off_loop(function, *arguments, timeout_s=limit, name="phronomy-tool-assembly")

    @property
    def _too_slow(self) -> str:
        return (
            f"the tools of agent {self._agent_id!r} were not assembled within {self._definition.hook_timeout_s:g} s "
            "(hook_timeout_s): a registry function, a factory or a predicate does not return"
        )

    def _rebind(self, binding: Binding, contents: dict[str, str]) -> ToolSet:
        rebound = self._assembly().rebind(binding, contents)
        for name, reason in rebound.missing:
            _LOG.warning(
                "agent %s: the tool %r of a running turn is missing: %s", self._agent_id, name, reason
            )
        return rebound.tools

    def _assembly(self) -> ToolAssembly:
        return ToolAssembly(self._definition, sources_of(self._definition, self._registry))
