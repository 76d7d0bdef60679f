"""Conversation values: messages, tool call requests, usage, and how they look on the wire.

The wire form is the chat-completions shape that nearly every provider and litellm speak; it is plain JSON and is
what the journal keeps. Content is text (JSON content is carried as its text).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from phronomy_ray.errors import InvalidConversationError


class Role(StrEnum):
    """Who speaks in a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCallRequest:
    """One call that the model asked for, exactly as it came."""

    #: The provider's id; unique within its message, not beyond it.
    id: str
    #: The tool's name as the model wrote it.
    name: str
    #: Argument text, verbatim; may be empty or broken JSON.
    arguments: str

    def to_wire(self) -> dict[str, Any]:
        """Chat-completions form."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    #: Text; ``None`` only for an assistant message that has tool calls.
    content: str | None = None
    #: Calls of an assistant message, in the model's order.
    tool_calls: tuple[ToolCallRequest, ...] = ()
    #: For a tool message: the provider id of the call that it answers.
    tool_call_id: str | None = None

    @classmethod
    def system(cls, content: str) -> Message:
        """A system message."""
        return cls(Role.SYSTEM, content)

    @classmethod
    def user(cls, content: str) -> Message:
        """A user message."""
        return cls(Role.USER, content)

    @classmethod
    def assistant(cls, content: str | None = None, tool_calls: tuple[ToolCallRequest, ...] = ()) -> Message:
        """An assistant message, with or without calls."""
        return cls(Role.ASSISTANT, content, tuple(tool_calls))

    @classmethod
    def tool(cls, tool_call_id: str, content: str) -> Message:
        """The answer to one tool call."""
        return cls(Role.TOOL, content, tool_call_id=tool_call_id)

    def to_wire(self) -> dict[str, Any]:
        """Chat-completions form."""
        wire: dict[str, Any] = {"role": self.role.value, "content": self.content}
        if self.tool_calls:
            wire["tool_calls"] = [call.to_wire() for call in self.tool_calls]
        if self.tool_call_id is not None:
            wire["tool_call_id"] = self.tool_call_id
        return wire

    @classmethod
    def from_wire(cls, wire: Any) -> Message:
        """Read the chat-completions form.

        Raises:
            InvalidConversationError: a field is missing or of the wrong type.
        """
        if isinstance(wire, Message):
            return wire
        if not isinstance(wire, dict):
            raise InvalidConversationError(f"a message must be a mapping, not {type(wire).__name__}")
        try:
            role = Role(str(wire.get("role")))
        except ValueError:
            raise InvalidConversationError(
                f"unknown message role {wire.get('role')!r}; use system, user, assistant or tool"
            ) from None
        content = wire.get("content")
        if content is not None and not isinstance(content, str):
            raise InvalidConversationError(
                f"content of a {role.value} message must be text, not {type(content).__name__}"
            )
        calls = []
        for call in wire.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise InvalidConversationError(f"a tool call must hold function.name: {call!r}")
            if not isinstance(call.get("id"), str) or not call["id"]:
                raise InvalidConversationError(f"a tool call must hold a non-empty id: {call!r}")
            arguments = function.get("arguments", "")
            if not isinstance(arguments, str):
                raise InvalidConversationError(f"tool call arguments must be JSON text: {call!r}")
            calls.append(ToolCallRequest(call["id"], function["name"], arguments))
        answered = wire.get("tool_call_id")
        if answered is not None and not isinstance(answered, str):
            raise InvalidConversationError(f"tool_call_id must be text, not {answered!r}")
        return cls(role, content, tuple(calls), answered)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or several model calls."""

    input_tokens: int = 0
    output_tokens: int = 0
    #: Part of `input_tokens` that the provider served from its prompt cache.
    cached_tokens: int = 0
    #: Tokens written to the provider's prompt cache.
    cache_creation_tokens: int = 0
    #: Answered model calls for which the provider reported no usage: unknown, not zero.
    unknown_calls: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_creation_tokens + other.cache_creation_tokens,
            self.unknown_calls + other.unknown_calls,
        )

    def to_wire(self) -> dict[str, int]:
        """JSON form, all fields."""
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "cache_creation_tokens": self.cache_creation_tokens,
            "unknown_calls": self.unknown_calls,
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any] | None) -> Usage:
        """Inverse of `to_wire`; missing fields are 0."""
        wire = wire or {}
        return cls(**{name: int(wire.get(name, 0)) for name in cls.__slots__})
