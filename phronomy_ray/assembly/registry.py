"""Registries: named entries that give a ready instance, or a fresh one each time.

A registry is filled while a process starts and read afterwards; the function that fills it runs in every process that
needs it (`sources`). Follows Insika's generic and tool registries.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from phronomy_ray.canonical_json import to_json_value
from phronomy_ray.definition.tool import Replay, Tool
from phronomy_ray.errors import ConfigurationError, NotFoundError, SerializationError

_LOG = logging.getLogger("phronomy_ray.assembly")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Entry(Generic[_T]):
    """One registration."""

    #: Registry key: what allow and deny lists, providers and stored bindings name.
    name: str
    #: Called for each resolution.
    factory: Callable[[], _T] = field(repr=False)
    #: Who registered it, for removal; ``None`` for the application itself.
    plugin: str | None = None
    #: Plain JSON about the entry, read-only.
    metadata: Mapping[str, Any] = field(default_factory=dict)
    #: The one instance that `factory` always gives, when it was registered ready-made.
    instance: _T | None = field(default=None, repr=False)


class Registry(Generic[_T]):
    """Entries by name, in the order of their registration. Not for changes from several threads at once."""

    #: Word for one entry, in messages.
    what = "entry"

    def __init__(self) -> None:
        self._entries: dict[str, Entry[_T]] = {}

    def register(
        self,
        name: str,
        item: _T | type[_T] | None = None,
        *,
        factory: Callable[[], _T] | None = None,
        plugin: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Entry[_T]:
        """Add an entry, or keep the earlier one of that name: the first registration wins, and a warning says so.

        Args:
            name: the registry key; a text enum counts as its value.
            item: a ready instance, given out on every resolution; or a class, which is taken for a factory.
            factory: called without arguments on every resolution.
            plugin: who registers it.
            metadata: plain JSON to keep with it.

        Returns the entry in force.

        Raises:
            ConfigurationError: neither or both of `item` and `factory` are given, or one of them cannot be used.
        """
        key = check_name(name, f"the name of a {self.what}")
        if (item is None) == (factory is None):
            raise ConfigurationError(
                f"{self.what} {key!r}: give either an instance (or a class) or factory=..., not "
                f"{'both' if item is not None else 'neither'}"
            )
        entry = self._entry(key, item, factory, check_plugin(plugin), _metadata(key, self.what, metadata))
        present = self._entries.setdefault(key, entry)
        if present is not entry:
            _LOG.warning(
                "%s %r is registered already (plugin %r): the registration by plugin %r is dropped",
                self.what,
                key,
                present.plugin,
                plugin,
            )
        return present

    def _entry(
        self,
        name: str,
        item: _T | type[_T] | None,
        factory: Callable[[], _T] | None,
        plugin: str | None,
        metadata: Mapping[str, Any],
    ) -> Entry[_T]:
        if factory is None and isinstance(item, type):
            factory = cast("Callable[[], _T]", item)
        if factory is None:
            ready = cast("_T", item)
            return Entry(name, lambda: ready, plugin, metadata, ready)
        if not callable(factory):
            raise ConfigurationError(f"{self.what} {name!r}: factory must be callable, not {factory!r}")
        if is_async(factory):
            raise ConfigurationError(
                f"{self.what} {name!r}: factory must be a plain function, not an async one"
            )
        return Entry(name, factory, plugin, metadata)

    def entry(self, name: str) -> Entry[_T]:
        """The entry of that name. Raises `NotFoundError`."""
        found = self.find(name)
        if found is None:
            raise NotFoundError(
                f"no {self.what} is registered as {name!r}", details={"name": name, "known": list(self.names)}
            )
        return found

    def find(self, name: str) -> Entry[_T] | None:
        """The entry of that name, or ``None``."""
        return self._entries.get(name)

    def resolve(self, name: str) -> _T:
        """A fresh instance, or the ready one. Raises `NotFoundError`, and whatever the factory raises."""
        return self.entry(name).factory()

    def remove_plugin(self, plugin: str) -> int:
        """Forget what a plugin registered; returns how many entries that were. Nothing else removes an entry."""
        gone = [entry.name for entry in self._entries.values() if entry.plugin == plugin]
        for name in gone:
            del self._entries[name]
        return len(gone)

    @property
    def names(self) -> tuple[str, ...]:
        """Keys in the order of their registration."""
        return tuple(self._entries)

    def __iter__(self) -> Iterator[Entry[_T]]:
        return iter(tuple(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


class ToolRegistry(Registry[Tool]):
    """Tools by registry key, which need not be the name that a model sees."""

    what = "tool"

    def register(
        self,
        name: str,
        item: Tool | type[Tool] | None = None,
        *,
        factory: Callable[[], Tool] | None = None,
        plugin: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        optional: bool = False,
    ) -> Entry[Tool]:
        """As `Registry.register`; an `optional` tool is given only to agents whose ``tools_allow`` names it.

        Raises:
            ConfigurationError: also for an instance or a class that is no tool.
        """
        given: object = item
        is_tool = isinstance(given, Tool) or (isinstance(given, type) and issubclass(given, Tool))
        if given is not None and not is_tool:
            hint = "; decorate it with @tool, or give it as factory=" if callable(given) else ""
            raise ConfigurationError(f"tool {name!r}: {given!r} is not a tool{hint}")
        if not isinstance(cast("object", optional), bool):
            raise ConfigurationError(f"tool {name!r}: optional must be True or False, not {optional!r}")
        return super().register(
            name,
            item,
            factory=factory,
            plugin=plugin,
            metadata={**(metadata or {}), "optional": optional},
        )

    def resolve(self, name: str) -> Tool:
        """The tool: fresh, or the ready one.

        Raises:
            NotFoundError: nothing is registered under that name.
            ConfigurationError: its factory gave something that is no tool.
        """
        return tool_of(self.entry(name))

    def is_optional(self, name: str) -> bool:
        """Whether an agent has to ask for it by name; ``False`` for an unknown one."""
        entry = self.find(name)
        return entry is not None and bool(entry.metadata.get("optional"))

    def side_effect(self, name: str) -> bool:
        """Whether a call of it changes the world: its ``replay`` is not ``safe``. ``False`` for an unknown one.

        A tool that is made by a factory is made once more to look at it.
        """
        return name in self and self.resolve(name).spec.replay is not Replay.SAFE


def tool_of(entry: Entry[Tool]) -> Tool:
    """A tool from `entry`. Raises `ConfigurationError` when its factory gives something else."""
    made: object = entry.factory()
    if not isinstance(made, Tool):
        raise ConfigurationError(
            f"the factory of tool {entry.name!r} gave {made!r}, which is no tool",
            code="tool_factory",
            details={"registry_key": entry.name, "plugin": entry.plugin},
        )
    return made


def check_name(name: object, what: str) -> str:
    """`name` as text; a text enum as its value. Raises `ConfigurationError`."""
    value = name.value if isinstance(name, Enum) else name
    if not (isinstance(value, str) and value.strip()):
        raise ConfigurationError(f"{what} must be non-empty text, not {name!r}")
    return str(value)


def check_plugin(plugin: object) -> str | None:
    """A plugin id or ``None``. Raises `ConfigurationError`."""
    return None if plugin is None else check_name(plugin, "a plugin id")


def is_async(function: object) -> bool:
    """Whether calling `function` gives a coroutine, which nobody here would await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__ is meant
    )


def _metadata(name: str, what: str, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    try:
        copied = to_json_value(dict(given or {}))
    except (SerializationError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{what} {name!r}: metadata must be plain JSON: {error}") from error
    return MappingProxyType(cast("dict[str, Any]", copied))
