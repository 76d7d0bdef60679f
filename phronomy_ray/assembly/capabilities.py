"""Capabilities: names for what an agent can do, and the providers that compete for each.

A provider is metadata: it names an implementation by its key in the tool registry and never makes one. Follows the
resolution rules of Insika's capability registry; unlike there, a predicate that raises makes its provider unavailable,
and failures are events too.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from phronomy_ray.assembly.registry import check_name, check_plugin, is_async
from phronomy_ray.errors import (
    CapabilityAmbiguous,
    CapabilityError,
    CapabilityUnavailable,
    ConfigurationError,
    safe_message,
)
from phronomy_ray.redaction import redact_text

_LOG = logging.getLogger("phronomy_ray.assembly")


class ProviderKind(StrEnum):
    """What an implementation is."""

    TOOL = "tool"
    #: Accepted and skipped with an event: workflows are not exposed to an agent's loop yet.
    WORKFLOW = "workflow"


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Provider:
    """One implementation that claims a capability.

    Raises:
        ConfigurationError: a field is not what it must be.
    """

    capability: str
    #: Key in the tool registry.
    implementation: str
    kind: ProviderKind = ProviderKind.TOOL
    plugin: str | None = None
    #: The highest wins; none ranks below every number.
    priority: int | None = None
    #: Asked anew at each resolution, on a thread; a plain function without arguments.
    availability: Callable[[], object] = field(default=_always, compare=False, repr=False)

    def __post_init__(self) -> None:
        capability = check_name(self.capability, "a capability")
        implementation = check_name(self.implementation, f"the implementation of {capability!r}")
        object.__setattr__(self, "capability", capability)
        object.__setattr__(self, "implementation", implementation)
        object.__setattr__(self, "plugin", check_plugin(self.plugin))
        try:
            object.__setattr__(self, "kind", ProviderKind(self.kind))
        except ValueError:
            raise ConfigurationError(
                f"capability {capability!r}: kind must be 'tool' or 'workflow', not {self.kind!r}"
            ) from None
        priority: object = self.priority
        if priority is not None and (not isinstance(priority, int) or isinstance(priority, bool)):
            raise ConfigurationError(
                f"capability {capability!r}: priority must be a whole number or None, not {priority!r}"
            )
        predicate: object = self.availability
        if not callable(predicate) or is_async(predicate):
            raise ConfigurationError(
                f"capability {capability!r}: availability must be a plain function, not {predicate!r}"
            )

    def candidate(self) -> dict[str, Any]:
        """How events and errors name it."""
        return {
            "implementation": self.implementation,
            "plugin": self.plugin,
            "priority": self.priority,
            "kind": self.kind.value,
        }


class CapabilityEventKind(StrEnum):
    """What happened to one capability of a turn."""

    RESOLVED = "capability_resolved"
    #: Its implementation was claimed by an earlier capability, under whose name the model sees it.
    SHADOWED = "capability_shadowed"
    #: It is not exposed: a workflow, or there is no registry to ask.
    SKIPPED = "capability_skipped"
    FAILED = "capability_failed"


@dataclass(frozen=True, slots=True)
class CapabilityEvent:
    """One step of resolving an agent's capabilities, with all that tells whose it was."""

    kind: CapabilityEventKind
    agent_id: str
    execution_id: str
    capability: str
    #: The provider that was chosen, if one was.
    chosen: dict[str, Any] | None = None
    #: Providers that were left to choose from, in the order of their registration.
    candidates: tuple[dict[str, Any], ...] = ()
    #: Why it was shadowed, skipped or failed.
    reason: str = ""
    #: More facts: ``claimed_by``, ``code``, ``dropped``.
    details: dict[str, Any] = field(default_factory=dict)

    def payload(self) -> dict[str, Any]:
        """What a durable event of it holds; plain JSON."""
        return {
            "agent_id": self.agent_id,
            "execution_id": self.execution_id,
            "capability": self.capability,
            "chosen": self.chosen,
            "candidates": list(self.candidates),
            **({"reason": self.reason} if self.reason else {}),
            **self.details,
        }


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose turn is assembled: the correlation of its events."""

    agent_id: str
    execution_id: str


@dataclass(frozen=True, slots=True)
class Resolution:
    """A resolved capability."""

    provider: Provider
    event: CapabilityEvent


class CapabilityRegistry:
    """Providers by capability, in the order of their registration."""

    def __init__(self) -> None:
        self._providers: dict[str, list[Provider]] = {}

    def register(self, provider: Provider) -> Provider:
        """Add a provider; several for one capability are the normal case. A workflow is accepted with a warning."""
        if provider.kind is ProviderKind.WORKFLOW:
            _LOG.warning(
                "capability %r: the workflow %r is registered, but workflows are not exposed to agents yet",
                provider.capability,
                provider.implementation,
            )
        self._providers.setdefault(provider.capability, []).append(provider)
        return provider

    def providers(self, capability: str) -> tuple[Provider, ...]:
        """All providers of a capability; none for an unknown one, which stays unknown."""
        return tuple(self._providers.get(capability, ()))

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Names that have a provider."""
        return tuple(self._providers)

    def remove_plugin(self, plugin: str) -> int:
        """Forget a plugin's providers, and capabilities that have none left; returns how many providers that were."""
        count = 0
        for capability, providers in list(self._providers.items()):
            kept = [provider for provider in providers if provider.plugin != plugin]
            count += len(providers) - len(kept)
            if kept:
                self._providers[capability] = kept
            else:
                del self._providers[capability]
        return count

    def resolve(self, capability: str, *, turn: Turn, denied: Collection[str] = ()) -> Resolution:
        """The provider that serves a capability in this turn.

        Of the providers that are available now and whose implementation is not in `denied`, the one with the highest
        priority; among equals the earliest, unless one plugin (or the application itself) has two of them.

        Raises:
            CapabilityUnavailable: none is left.
            CapabilityAmbiguous: several are, with an equal claim.
        """
        left: list[Provider] = []
        dropped: list[dict[str, Any]] = []
        for provider in self.providers(capability):
            reason = _unavailable(provider)
            if not reason and provider.implementation in denied:
                reason = "tools_deny names it"
            if reason:
                dropped.append({**provider.candidate(), "reason": reason})
            else:
                left.append(provider)
        facts: dict[str, Any] = {
            "capability": capability,
            "agent_id": turn.agent_id,
            "execution_id": turn.execution_id,
            "candidates": [provider.candidate() for provider in left],
            "dropped": dropped,
        }
        if not left:
            why = "; ".join(f"{item['implementation']!r}: {item['reason']}" for item in dropped)
            raise CapabilityUnavailable(
                f"capability {capability!r} has no available provider ({why or 'none is registered'})",
                details=facts,
            )
        top = _top(left)
        if any(count > 1 for count in Counter(provider.plugin for provider in top).values()):
            names = ", ".join(repr(provider.implementation) for provider in top)
            raise CapabilityAmbiguous(
                f"capability {capability!r} has {len(top)} providers with the same claim: {names}; give one a priority",
                details={**facts, "candidates": [provider.candidate() for provider in top]},
            )
        chosen = top[0]
        event = CapabilityEvent(
            CapabilityEventKind.RESOLVED,
            turn.agent_id,
            turn.execution_id,
            capability,
            chosen.candidate(),
            tuple(provider.candidate() for provider in left),
            details={"dropped": dropped} if dropped else {},
        )
        return Resolution(chosen, event)


def failure_event(error: CapabilityError, capability: str, turn: Turn) -> CapabilityEvent:
    """The event of a capability that could not be turned into a tool."""
    details = error.details
    dropped = cast("list[dict[str, Any]]", details.get("dropped", []))
    return CapabilityEvent(
        CapabilityEventKind.FAILED,
        turn.agent_id,
        turn.execution_id,
        capability,
        details.get("chosen"),
        tuple(details.get("candidates", ())),
        error.message,
        {"code": error.code, **({"dropped": dropped} if dropped else {})},
    )


def _unavailable(provider: Provider) -> str:
    """Why the provider cannot serve now; empty when it can."""
    try:
        return "" if provider.availability() else "not available"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a predicate is the user's code; the turn must not fail for one provider
        _LOG.warning(
            "capability %r: the availability of %r raised %s",
            provider.capability,
            provider.implementation,
            type(error).__name__,
        )
        return redact_text(f"its availability check raised {type(error).__name__}: {safe_message(error)}")


def _top(providers: list[Provider]) -> list[Provider]:
    def rank(provider: Provider) -> tuple[bool, int]:
        return (provider.priority is not None, provider.priority or 0)

    best = max(map(rank, providers))
    return [provider for provider in providers if rank(provider) == best]
