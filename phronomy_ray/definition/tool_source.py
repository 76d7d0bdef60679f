"""Tool sources: tools that are known at run time only, such as those of an MCP server.

A source stands in an agent's ``tools`` beside its tools. What it offers is asked for once at the start of each execution,
kept as text with the execution (by its hash), and made into tools from that text alone: a resumed turn has the tools that
its model was shown, whatever the source offers by then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from phronomy_ray.canonical_json import content_hash
from phronomy_ray.definition.tool import Tool


class ToolSource(ABC):
    """Something that offers tools. Values only: it stands on an agent's class and travels with it."""

    __slots__ = ()

    @property
    @abstractmethod
    def source_name(self) -> str:
        """Name of the source, unique within an agent; stored with the execution."""

    @property
    def is_optional(self) -> bool:
        """Whether a turn goes on without its tools when it cannot be asked; otherwise the execution fails."""
        return False

    @abstractmethod
    async def fetch(self) -> str:
        """What it offers now, as text; the same text for the same offer.

        Raises:
            PhronomyError: it cannot be asked, or offers what cannot be used.
        """

    @abstractmethod
    def tools_from(self, text: str) -> tuple[Tool, ...]:
        """The tools of a text that `fetch` gave, now or before a restart. Pure.

        Raises:
            ConfigurationError: the text offers what this declaration cannot use, such as two tools of one name.
        """


@dataclass(frozen=True, slots=True)
class Offer:
    """What a source offered at the start of an execution."""

    source: ToolSource
    text: str

    @property
    def hash(self) -> str:
        """Hash of the text, by which it is kept."""
        return content_hash(self.text)
