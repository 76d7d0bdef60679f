"""Shared by the kernel's tests: the rule that every provider has for a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest


def check_paired(messages: Sequence[dict[str, Any]]) -> None:
    """Every call is answered once, directly behind its message and in its order; nothing else is answered."""
    open_ids: list[str] = []
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            assert open_ids, f"message {index} answers {message['tool_call_id']!r}, nothing is open"
            assert message["tool_call_id"] == open_ids.pop(0), f"message {index} answers out of order"
            assert isinstance(message["content"], str)
            continue
        assert not open_ids, f"message {index} ({role}) stands before the answer to {open_ids}"
        if role == "system":
            assert all(item["role"] == "system" for item in messages[:index]), (
                "a system message in the middle"
            )
        if role == "assistant":
            assert message.get("content") or message.get("tool_calls"), "an empty assistant message"
            open_ids = [call["id"] for call in message.get("tool_calls", ())]
            assert len(set(open_ids)) == len(open_ids), "two calls of one message share an id"
        else:
            assert "tool_calls" not in message
    assert not open_ids, f"unanswered: {open_ids}"
    spoken = [message["role"] for message in messages if message["role"] != "system"]
    assert spoken, "a prompt without a word"
    assert spoken[0] == "user"


@pytest.fixture
def paired() -> Callable[[Sequence[dict[str, Any]]], None]:
    return check_paired
