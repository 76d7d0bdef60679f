"""How another process gets an agent class: the only form in which a definition travels."""

from __future__ import annotations

from dataclasses import dataclass

from phronomy_ray.definition.agent import Agent, import_agent


@dataclass(frozen=True, slots=True)
class DefinitionSource:
    """How a process gets an agent class: by import, or by value where it cannot be imported."""

    class_path: str
    #: The class itself, only for one of the driver's own ``__main__``; Ray pickles it by value.
    cls: type[Agent] | None = None
    #: The runtime's ``module:function`` for tool registries, for classes that name none themselves; empty for none.
    registry: str = ""

    def load(self) -> type[Agent]:
        """The class. Raises `DefinitionUnavailableError`."""
        return self.cls if self.cls is not None else import_agent(self.class_path)
