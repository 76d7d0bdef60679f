"""What is set for one agent instance, or for all agents of a runtime, beside their definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from phronomy_ray.definition.callables import takes
from phronomy_ray.definition.filters import callables_of, name_of
from phronomy_ray.definition.tool_options import is_whole
from phronomy_ray.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class InstanceOptions:
    """Filters, hooks and policy of one live agent, after those of its class.

    They travel by value with the agent's actor: functions of a module by name, other objects pickled. They survive a
    restart of the actor, and end with it: an agent that was unloaded, or is woken by its id alone (`Runtime.agent`, the
    command line), has only what its class declares, and refuses to go on with an execution that was started with more.
    Give them again with every ``create`` and ``load``; what must always hold belongs into the class. Child agents
    (``as_tool``) do not get them.

    Raises:
        ConfigurationError: an item cannot be what it is given as.
    """

    input_filters: Sequence[Any] = ()
    output_filters: Sequence[Any] = ()
    result_filters: Sequence[Any] = ()
    before_llm_input: Sequence[Any] = ()
    #: In place of the class's ``tool_approval_policy``, which it may call.
    tool_approval_policy: Callable[..., Any] | None = None
    #: Beside the class's ``on_event``, see `Agent`. It only watches: an execution that was started with it goes on without.
    on_event: Callable[..., Any] | None = None
    #: Whether this ``on_event`` hears of live events too.
    on_event_live: bool = False

    def __post_init__(self) -> None:
        for name in ("input_filters", "output_filters", "result_filters"):
            given = callables_of("InstanceOptions", name, getattr(self, name), arguments=2)
            object.__setattr__(self, name, given)
        hooks = callables_of("InstanceOptions", "before_llm_input", self.before_llm_input, arguments=1)
        object.__setattr__(self, "before_llm_input", hooks)
        policy = self.tool_approval_policy
        if policy is not None and not callable(policy):
            raise ConfigurationError(
                f"InstanceOptions: tool_approval_policy must be callable, not {policy!r}"
            )

        listener: object = self.on_event
        if listener is not None and not (callable(listener) and takes(listener, 1)):
            raise ConfigurationError(
                f"InstanceOptions: on_event must be a function of one argument, the event, not {listener!r}"
            )
        if not isinstance(cast("object", self.on_event_live), bool):
            raise ConfigurationError(
                f"InstanceOptions: on_event_live must be True or False, not {self.on_event_live!r}"
            )

    def needed_names(self) -> dict[str, list[str]]:
        """`names` of what an execution that was started with it cannot go on without."""
        return {name: items for name, items in self.names().items() if name != "on_event"}

    def names(self) -> dict[str, list[str]]:
        """What is set, by name: plain JSON for displays and for comparing with what is asked for."""
        found: dict[str, list[str]] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if value and not isinstance(value, bool):
                found[item.name] = [
                    name_of(part) for part in (value if isinstance(value, tuple) else (value,))
                ]
        return found


@dataclass(frozen=True, slots=True)
class RuntimeDefaults:
    """What a runtime sets for all its agents.

    Raises:
        ConfigurationError: a hook cannot be one, or the limit is not a positive whole number.
    """

    before_llm_input: Sequence[Any] = ()
    #: How much of a result the model is shown, in characters, for tools that set no ``max_result_chars``.
    max_result_chars: int | None = None

    def __post_init__(self) -> None:
        hooks = callables_of("Runtime", "before_llm_input", self.before_llm_input, arguments=1)
        object.__setattr__(self, "before_llm_input", hooks)
        limit = self.max_result_chars
        if limit is not None and not (is_whole(limit) and limit > 0):
            raise ConfigurationError(
                f"max_result_chars must be a positive number of characters, not {limit!r}"
            )
