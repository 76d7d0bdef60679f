"""The binding of a turn: which tool stands behind each name that the model sees. Stored with the execution."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from phronomy_ray.canonical_json import check_format

BINDING_FORMAT = 2


class Origin(StrEnum):
    """Where a tool of a turn comes from."""

    #: Listed by the agent's class.
    OWN = "own"
    #: Direct from the tool registry.
    REGISTRY = "registry"
    #: Resolved for a capability.
    CAPABILITY = "capability"
    #: The framework's.
    FRAMEWORK = "framework"
    #: Offered by a tool source of the agent's class.
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class Choice:
    """One tool of a turn."""

    #: Name that the model sees; the capability's name for one that was resolved for it.
    name: str
    origin: Origin
    #: Key in the tool registry; empty for `OWN`, `FRAMEWORK` and `SOURCE`.
    registry_key: str = ""
    plugin: str | None = None
    #: Name of the tool source; empty for others.
    source: str = ""

    def __str__(self) -> str:
        plugin = f" of plugin {self.plugin!r}" if self.plugin else ""
        match self.origin:
            case Origin.OWN:
                return "the agent's own tool"
            case Origin.REGISTRY:
                return f"the registry's tool {self.registry_key!r}{plugin}"
            case Origin.CAPABILITY:
                return f"the capability {self.name!r} (implemented by {self.registry_key!r}{plugin})"
            case Origin.FRAMEWORK:
                return "a tool of the framework"
            case Origin.SOURCE:
                return f"a tool of the source {self.source!r}"


@dataclass(frozen=True, slots=True)
class Binding:
    """All tools of a turn, in the order in which the model sees them."""

    choices: tuple[Choice, ...] = ()
    #: Name of each tool source, and hash of the kept text of what it offered.
    offers: tuple[tuple[str, str], ...] = ()

    def registry_key(self, name: str) -> str:
        """The registry key behind a name; empty for an own tool and for a name that it does not hold."""
        return next((choice.registry_key for choice in self.choices if choice.name == name), "")

    def to_wire(self) -> dict[str, Any]:
        """JSON form with its format number: the lowest that can hold it, so that an older release reads what it can."""
        wire: dict[str, Any] = {
            "v": BINDING_FORMAT if self.offers else 1,
            "tools": [
                [choice.name, choice.origin.value, choice.registry_key, choice.plugin]
                + ([choice.source] if choice.source else [])
                for choice in self.choices
            ],
        }
        if self.offers:
            wire["offers"] = [list(offer) for offer in self.offers]
        return wire

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Binding:
        """Inverse of `to_wire`. Raises `SerializationError` for a newer format."""
        check_format(wire, BINDING_FORMAT, "the execution's tool binding")
        return cls(
            tuple(
                Choice(name, Origin(origin), key, plugin, *source)
                for name, origin, key, plugin, *source in wire["tools"]
            ),
            tuple((name, digest) for name, digest in wire.get("offers", ())),
        )
