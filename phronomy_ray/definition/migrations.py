"""Which earlier definitions an agent class goes on for, and what becomes of the values that they have stored.

Phronomy demands that id and version are equal on load; a class that declares no migrations has the same rule here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from phronomy_ray.definition.callables import takes
from phronomy_ray.errors import ConfigurationError

#: Id and version.
DefinitionKey: TypeAlias = tuple[str, str]
#: From an agent's own JSON mapping to the one that it has from now on. It may run again after a crash.
MapValues: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class DefinitionMigration:
    """What has to change of an agent that is stored under an earlier definition; by default nothing."""

    #: Of the metadata that the agent was created with; ``None`` leaves it as it is.
    metadata: MapValues | None = None
    #: Of the durable context of its running execution and of each request that waits; ``None`` leaves them as they are.
    durable_context: MapValues | None = None


def migrations_of(owner: str, given: object, own: DefinitionKey) -> dict[DefinitionKey, DefinitionMigration]:
    """The checked declaration of `owner`: a list of versions, or a mapping of those to migrations (or ``None``).

    A version alone is one of this definition's id; a pair of id and version is one of another. Raises `ConfigurationError`.
    """

    def wrong(text: str) -> ConfigurationError:
        return ConfigurationError(f"{owner}: definition_migrations {text}")

    listed: Sequence[tuple[object, object]]
    if isinstance(given, Mapping):
        listed = list(given.items())
    elif isinstance(given, Sequence) and not isinstance(given, str):
        listed = [(item, None) for item in given]
    else:
        raise wrong(f"must be a list of versions or a mapping of them, not {given!r}")
    found: dict[DefinitionKey, DefinitionMigration] = {}
    for earlier, migration in listed:
        key = (own[0], earlier) if isinstance(earlier, str) else earlier
        if not (
            isinstance(key, tuple) and len(key) == 2 and all(isinstance(part, str) and part for part in key)
        ):
            raise wrong(f"names {earlier!r}, which is neither a version nor a pair of id and version")
        checked = DefinitionMigration() if migration is None else migration
        if not isinstance(checked, DefinitionMigration):
            raise wrong(f"has {migration!r} for {earlier!r}, which is neither a DefinitionMigration nor None")
        for what in ("metadata", "durable_context"):
            function = getattr(checked, what)
            if function is not None and not (callable(function) and takes(function, 1)):
                raise wrong(f"for {earlier!r}: {what} must be a function of one mapping, not {function!r}")
        if key == own:
            raise wrong(f"names {earlier!r}, which is the present version")
        if key in found:
            raise wrong(f"names {earlier!r} twice")
        found[cast("DefinitionKey", key)] = checked
    return found


__all__ = ["DefinitionKey", "DefinitionMigration", "MapValues", "migrations_of"]
