"""``before_llm_input``: functions that see what a model call would send, and add to it.

```python
def with_clock(context: LLMInputBuildContext) -> LLMInputPatch | None:
    return LLMInputPatch(model_settings={"temperature": 0}, candidates=[f"It is {clock()}."])
```

The runtime's hooks run first, then the class's, then the instance's; each before every model call, off the agent's loop.
Of two patches the later one's setting wins; candidates add up and are sent with this one call: they never become part of the
conversation. What was patched is stored with the call, so that a call repeated after a crash sends the same and runs no
hook again. Follows Phronomy's before_llm_input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, cast, runtime_checkable

from phronomy_ray.canonical_json import to_json_value
from phronomy_ray.errors import InvalidInputError
from phronomy_ray.messages import Message, Role
from phronomy_ray.redaction import SECRET_SETTINGS

#: Parts of a model call that are no settings.
RESERVED_SETTINGS = frozenset({"model", "messages", "tools", "stream"})


@dataclass(frozen=True, slots=True)
class LLMInputBuildContext:
    """The model call that is about to be made; immutable, also inside."""

    agent_id: str
    definition_id: str
    definition_version: str
    execution_id: str
    #: Position of the call within its execution, from 1.
    call_sequence: int
    model: str
    #: The definition's settings, those that hold secrets left out.
    model_settings: Mapping[str, Any]
    #: What would be sent: instructions and knowledge as system messages, then the conversation.
    messages: tuple[Message, ...]
    durable_context: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class LLMInputPatch:
    """What one hook changes of one model call.

    Raises:
        InvalidInputError: a setting is no JSON, names a secret (it would be stored; put it into the agent's
            ``model_settings``) or no setting; a candidate is neither text nor a system or user message.
    """

    #: Settings that replace those of the definition and of earlier hooks.
    model_settings: Mapping[str, Any] = field(default_factory=dict)
    #: Messages for this call: text (a system message), or system and user messages. System ones follow the
    #: instructions, user ones the conversation. Those that do not fit the model's input are left out, last first.
    candidates: Sequence[Message | Mapping[str, Any] | str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.model_settings, Mapping):
            raise InvalidInputError(f"model_settings must be a mapping, not {self.model_settings!r}")
        for name in self.model_settings:
            key = str(name).lower().replace("-", "_")
            if key in SECRET_SETTINGS:
                raise InvalidInputError(
                    f"a hook cannot set {name!r}: secrets belong into the agent's model_settings"
                )
            if key in RESERVED_SETTINGS:
                raise InvalidInputError(f"a hook cannot set {name!r}: it is no model setting")
        if isinstance(self.candidates, str | bytes | Mapping) or not isinstance(self.candidates, Sequence):
            raise InvalidInputError(f"candidates must be a list, not {type(self.candidates).__name__}")
        settings = to_json_value(dict(self.model_settings))
        object.__setattr__(self, "model_settings", settings)
        object.__setattr__(self, "candidates", tuple(map(_candidate, self.candidates)))

    @property
    def messages(self) -> tuple[Message, ...]:
        """The candidates, as they were read."""
        return cast("tuple[Message, ...]", self.candidates)


@runtime_checkable
class LLMInputHook(Protocol):
    """Anything that is called with the context, plain or async."""

    def __call__(self, context: LLMInputBuildContext) -> Any:
        """A `LLMInputPatch`, or ``None`` to leave the call as it is."""
        ...


def frozen(value: Any) -> Any:
    """Plain JSON that cannot be changed: mappings become read-only views of their own, lists tuples."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: frozen(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    return value


def _candidate(item: Message | Mapping[str, Any] | str) -> Message:
    message = (
        Message.system(item)
        if isinstance(item, str)
        else Message.from_wire(dict(item) if isinstance(item, Mapping) else item)
    )
    if message.role not in (Role.SYSTEM, Role.USER) or not message.content:
        raise InvalidInputError(f"a candidate must be a system or user message with text, not {message!r}")
    return message
