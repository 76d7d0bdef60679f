"""`ToolAssembly`: the tools of one turn, from the agent's own ones, its capabilities and the registries.

Stateless: it holds what it was given and nothing of a turn. `assemble` chooses and binds; `rebind` makes the same tools
from a stored binding without choosing again, so that a resumed turn goes on with the same implementations. A turn's
context never stands on an instance: it comes with each call (`ToolContext`), so ready instances can be shared.

Order: own tools, registry tools by registration, capabilities by the agent's list, what the agent's tool sources offer, tools
of the framework. Follows Insika's ToolAssembly; collisions of names, which pass there unseen, are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from phronomy_ray.assembly.binding import Binding, Choice, Origin
from phronomy_ray.assembly.capabilities import (
    CapabilityEvent,
    CapabilityEventKind,
    Provider,
    ProviderKind,
    Turn,
    failure_event,
)
from phronomy_ray.assembly.registry import Entry, tool_of
from phronomy_ray.assembly.sources import AssemblySources
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.tool import Tool
from phronomy_ray.definition.tool_set import BoundTool, ToolSet, bind_tool
from phronomy_ray.definition.tool_source import Offer
from phronomy_ray.errors import (
    CapabilityError,
    ConfigurationError,
    PhronomyError,
    ToolNameCollisionError,
    safe_message,
)


@dataclass(frozen=True, slots=True)
class Assembled:
    """The tools of a turn."""

    tools: ToolSet
    binding: Binding
    events: tuple[CapabilityEvent, ...] = ()
    #: Texts that the binding names by their hash.
    contents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AssemblyFailed:
    """A turn that cannot have its tools: nothing of it is exposed."""

    error: PhronomyError
    #: What had happened until then, the failure included.
    events: tuple[CapabilityEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Rebound:
    """The tools of a stored binding."""

    tools: ToolSet
    #: Names whose tool is not there any more, with the reason; calls of them fail one by one.
    missing: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Claim:
    capability: str
    provider: Provider
    entry: Entry[Tool]


class ToolAssembly:
    """Assembles the turns of one agent class; pure but for the user's factories and predicates, which it calls."""

    def __init__(
        self, definition: AgentDefinition, sources: AssemblySources | None, *, framework: Sequence[Tool] = ()
    ) -> None:
        self._definition = definition
        self._sources = sources
        self._framework = tuple(framework)

    def assemble(self, turn: Turn, offers: Sequence[Offer] = ()) -> Assembled | AssemblyFailed:
        """Choose and make the tools of a turn. Calls the user's factories and predicates: not for the event loop.

        Args:
            offers: what the agent's tool sources offer.
        """
        events: list[CapabilityEvent] = []
        try:
            claims = self._claims(turn, events)
            chosen: dict[str, tuple[Choice, BoundTool]] = {}
            for choice, bound in self._tools(claims, offers):
                present = chosen.get(choice.name)
                if present is not None:
                    hint = "; give a source a prefix" if choice.source else ""
                    raise ToolNameCollisionError(
                        f"two tools of agent {turn.agent_id!r} would be named {choice.name!r}: {present[0]}, and "
                        f"{choice}{hint}",
                        details={
                            "name": choice.name,
                            "sources": [str(present[0]), str(choice)],
                            "agent_id": turn.agent_id,
                            "execution_id": turn.execution_id,
                        },
                    )
                chosen[choice.name] = (choice, bound)
        except PhronomyError as error:
            return AssemblyFailed(error, tuple(events))
        pinned = tuple((offer.source.source_name, offer.hash) for offer in offers)
        binding = Binding(tuple(choice for choice, _ in chosen.values()), pinned)
        filters = self._definition.result_filters
        tools = ToolSet.of({name: bound.filtered_by(filters) for name, (_, bound) in chosen.items()})
        return Assembled(tools, binding, tuple(events), tuple(offer.text for offer in offers))

    def rebind(self, binding: Binding, contents: Mapping[str, str] | None = None) -> Rebound:
        """The tools that a stored binding names: fresh instances of the same entries, nothing chosen again.

        Args:
            contents: the kept texts of the binding's offers, by their hash.
        """
        framework = {tool.spec.name: tool for tool in self._framework}
        offered = self._offered_then(binding, contents or {})
        tools: dict[str, BoundTool] = {}
        missing: list[tuple[str, str]] = []
        for choice in binding.choices:
            bound: BoundTool | None
            try:
                if choice.origin is Origin.OWN:
                    bound = self._definition.tools.get(choice.name)
                elif choice.origin is Origin.FRAMEWORK:
                    tool = framework.get(choice.name)
                    bound = None if tool is None else BoundTool(tool.spec, tool, is_framework=True)
                elif choice.origin is Origin.SOURCE:
                    bound = offered.get((choice.source, choice.name))
                else:
                    bound = bind_entry(self._definition, self._sources, choice.registry_key, choice.name)
            except PhronomyError as error:
                missing.append((choice.name, error.message))
                continue
            if bound is None:
                missing.append((choice.name, f"{choice} is not there any more"))
            else:
                tools[choice.name] = bound.filtered_by(self._definition.result_filters)
        return Rebound(ToolSet.of(tools), tuple(missing))

    def _offered_then(
        self, binding: Binding, contents: Mapping[str, str]
    ) -> dict[tuple[str, str], BoundTool]:
        sources = {source.source_name: source for source in self._definition.sources}
        return {
            (name, tool_name): bound
            for name, digest in binding.offers
            if name in sources and digest in contents
            for tool_name, bound in self._offered(Offer(sources[name], contents[digest]))
        }

    # --- choosing ----------------------------------------------------------------------------------------------

    def _claims(self, turn: Turn, events: list[CapabilityEvent]) -> dict[str, _Claim]:
        """The capabilities by the registry key that each has claimed; the first one to claim a key has it."""
        definition = self._definition
        registry = self._sources.capabilities if self._sources is not None else None
        claims: dict[str, _Claim] = {}
        for capability in definition.capabilities:
            if registry is None:
                reason = "there is no capability registry"
                events.append(_event(CapabilityEventKind.SKIPPED, turn, capability, reason))
                continue
            try:
                resolution = registry.resolve(capability, turn=turn, denied=definition.tools_deny)
                provider = resolution.provider
                events.append(resolution.event)
                if provider.kind is ProviderKind.WORKFLOW:
                    reason = "workflows are not exposed to agents yet"
                    events.append(_event(CapabilityEventKind.SKIPPED, turn, capability, reason, provider))
                    continue
                entry = self._registered(capability, provider, turn)
            except CapabilityError as error:
                events.append(failure_event(error, capability, turn))
                raise
            claim = _Claim(capability, provider, entry)
            present = claims.setdefault(entry.name, claim)
            if present is not claim:
                reason = f"{entry.name!r} is exposed as {present.capability!r} already"
                claimed = {"claimed_by": present.capability}
                events.append(
                    _event(CapabilityEventKind.SHADOWED, turn, capability, reason, provider, claimed)
                )
        return claims

    def _registered(self, capability: str, provider: Provider, turn: Turn) -> Entry[Tool]:
        entry = self._sources.tools.find(provider.implementation) if self._sources is not None else None
        if entry is None:
            raise CapabilityError(
                f"capability {capability!r} resolved to {provider.implementation!r}, which is not in the tool registry",
                details={
                    "capability": capability,
                    "chosen": provider.candidate(),
                    "agent_id": turn.agent_id,
                    "execution_id": turn.execution_id,
                },
            )
        return entry

    # --- making ------------------------------------------------------------------------------------------------

    def _tools(
        self, claims: dict[str, _Claim], offers: Sequence[Offer]
    ) -> Iterator[tuple[Choice, BoundTool]]:
        """Every tool of the turn in order; an entry that a capability has claimed is dropped before it is made."""
        direct = set(claims)
        denied, timeout_s = self._definition.tools_deny, self._definition.tool_timeout_s
        for name, bound in self._definition.tools.items():
            key = self._key_of(bound.tool)
            if key and (key in direct or key in denied):
                continue
            if key:
                direct.add(key)
            yield Choice(name, Origin.OWN), bound
        for entry in self._allowed():
            if entry.name not in direct:
                bound = bind_tool(make_tool(entry), timeout_s=timeout_s, registry_key=entry.name)
                yield Choice(bound.spec.name, Origin.REGISTRY, entry.name, entry.plugin), bound
        for claim in claims.values():
            bound = bind_tool(
                make_tool(claim.entry),
                name=claim.capability,
                timeout_s=timeout_s,
                registry_key=claim.entry.name,
            )
            yield (
                Choice(claim.capability, Origin.CAPABILITY, claim.entry.name, claim.entry.plugin),
                bound,
            )
        for offer in offers:
            source = offer.source.source_name
            for name, bound in self._offered(offer):
                yield Choice(name, Origin.SOURCE, source=source), bound
        for tool in self._framework:
            yield (
                Choice(tool.spec.name, Origin.FRAMEWORK),
                BoundTool(tool.spec, tool, is_framework=True),
            )

    def _offered(self, offer: Offer) -> Iterator[tuple[str, BoundTool]]:
        """The tools of an offer under the names that the agent gives them, without those that it must not have."""
        aliases = self._definition.cls.tool_aliases
        for tool in offer.source.tools_from(offer.text):
            if tool.spec.name not in self._definition.tools_deny:
                bound = bind_tool(
                    tool,
                    name=aliases.get(tool.spec.name, ""),
                    timeout_s=self._definition.tool_timeout_s,
                )
                yield bound.spec.name, bound

    def _key_of(self, tool: Tool) -> str:
        """The registry key of a tool that the class lists, when the registry holds the very same one."""
        if self._sources is None:
            return ""
        entries = iter(self._sources.tools)
        same = (entry.name for entry in entries if entry.instance is tool or entry.factory is type(tool))
        return next(same, "")

    def _allowed(self) -> Iterator[Entry[Tool]]:
        if self._sources is None:
            return
        allow, deny = self._definition.tools_allow, self._definition.tools_deny
        for entry in self._sources.tools:
            granted = (
                not self._sources.tools.is_optional(entry.name) if allow is None else entry.name in allow
            )
            if granted and entry.name not in deny:
                yield entry


def bind_entry(
    definition: AgentDefinition, sources: AssemblySources | None, registry_key: str, name: str
) -> BoundTool:
    """The tool of a registry entry under the name that a turn gave it.

    Raises:
        ConfigurationError: code ``definition_changed`` when there is no such entry, ``tool_factory`` when it gives no tool.
    """
    entry = sources.tools.find(registry_key) if sources is not None else None
    if entry is None:
        raise ConfigurationError(
            f"the tool registry has no {registry_key!r} any more, which stands behind {name!r}",
            code="definition_changed",
            details={"tool_name": name, "registry_key": registry_key},
        )
    return bind_tool(
        make_tool(entry), name=name, timeout_s=definition.tool_timeout_s, registry_key=registry_key
    )


def make_tool(entry: Entry[Tool]) -> Tool:
    """A tool from `entry`. Raises `ConfigurationError` (``tool_factory``) when its factory raises or gives something else."""
    try:
        return tool_of(entry)
    except PhronomyError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"the factory of tool {entry.name!r} raised {type(error).__name__}: {safe_message(error)}",
            code="tool_factory",
            details={"registry_key": entry.name, "plugin": entry.plugin},
        ) from error


def _event(
    kind: CapabilityEventKind,
    turn: Turn,
    capability: str,
    reason: str,
    provider: Provider | None = None,
    details: dict[str, str] | None = None,
) -> CapabilityEvent:
    chosen = provider.candidate() if provider is not None else None
    return CapabilityEvent(
        kind, turn.agent_id, turn.execution_id, capability, chosen, (), reason, dict(details or {})
    )
